"""Frozen operators: their parameters have no gradients, but gradients of their inputs pass through."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import singledispatch

from workloads.adapters.adapted_linear import AdaptedLinear
from workloads.experts.mixture import Mixture
from workloads.operators.elementwise import Elementwise
from workloads.operators.linear import Linear
from workloads.operators.operator import Operator
from workloads.operators.parameter import ParameterTensor
from workloads.operators.sharded import ShardedOperator
from workloads.operators.side_by_side import SharedInput, SummedOutput


@singledispatch
def frozen(operator: Operator) -> Operator:
    """*operator* without weight gradients; one with adapters is as it is, since it is frozen but for these.

    A norm keeps its input, which the gradient of that needs. The gradient of the first layer's input is computed too,
    as with PEFT's ``enable_input_require_grads``.
    """
    if operator.tensors:
        raise TypeError(f"{type(operator).__name__} cannot be frozen")
    return operator


@frozen.register
def _linear(operator: Linear) -> Linear:
    return operator if isinstance(operator, AdaptedLinear) else replace(operator, frozen=True)


@frozen.register
def _elementwise(operator: Elementwise) -> Elementwise:
    return replace(operator, weights=0.0, parameters=_untrained(operator.parameters))


@frozen.register(SharedInput)
@frozen.register(SummedOutput)
def _several(operator: SharedInput | SummedOutput) -> SharedInput | SummedOutput:
    return replace(operator, products=tuple(map(_linear, operator.products)))


@frozen.register
def _mixture(operator: Mixture) -> Mixture:
    """Router, experts and shared expert are frozen. The gradient passes the router's choice, so results are kept."""
    return replace(
        operator,
        router=replace(operator.router, linear=_linear(operator.router.linear)),
        router_parameters=_untrained(operator.router_parameters),
        up=replace(operator.up, frozen=True),
        down=replace(operator.down, frozen=True),
        shared=(tuple(map(frozen, operator.shared[0])), tuple(map(frozen, operator.shared[1]))),
    )


@frozen.register
def _share(operator: ShardedOperator) -> ShardedOperator:
    """The share frozen, and no exchange for weight gradients that are not computed."""
    share = frozen(operator.share)
    trains = bool(share.backward_weights(1))
    before = operator.before if trains else tuple(one for one in operator.before if one[0] != "W")
    tensors = operator.parameters if trains else _untrained(operator.parameters)
    return replace(operator, share=share, parameters=tensors, before=before)


def _untrained(tensors: Iterable[ParameterTensor]) -> tuple[ParameterTensor, ...]:
    return tuple(replace(tensor, trainable=False) for tensor in tensors)
