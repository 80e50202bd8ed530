"""Frozen operators: their parameters have no gradients, but gradients of their inputs pass through."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from workloads.adapters.adapted_linear import AdaptedLinear
from workloads.operators.elementwise import Elementwise
from workloads.operators.linear import Linear
from workloads.operators.operator import Operator
from workloads.operators.parameter import ParameterTensor
from workloads.operators.sharded import ShardedOperator
from workloads.operators.side_by_side import SharedInput, SummedOutput


def frozen(operator: Operator) -> Operator:
    """*operator* without weight gradients; one with adapters is as it is, since it is frozen but for these.

    A norm keeps its input, which the gradient of that needs. The gradient of the first layer's input is computed too,
    as with PEFT's ``enable_input_require_grads``.
    """
    if isinstance(operator, AdaptedLinear):
        return operator
    if isinstance(operator, Linear):
        return replace(operator, frozen=True)
    if isinstance(operator, Elementwise):
        return replace(operator, weights=0.0, parameters=_untrained(operator.parameters))
    if isinstance(operator, SharedInput | SummedOutput):
        return replace(operator, products=tuple(_linear(product) for product in operator.products))
    if isinstance(operator, ShardedOperator):
        return _frozen_share(operator)
    if operator.tensors:
        raise TypeError(f"{type(operator).__name__} cannot be frozen")
    return operator


def _linear(product: Linear) -> Linear:
    made = frozen(product)
    assert isinstance(made, Linear)
    return made


def _frozen_share(operator: ShardedOperator) -> ShardedOperator:
    """The share frozen, and no exchange for weight gradients that are not computed."""
    share = frozen(operator.share)
    trains = bool(share.backward_weights(1))
    before = operator.before if trains else tuple(one for one in operator.before if one[0] != "W")
    tensors = operator.parameters if trains else _untrained(operator.parameters)
    return replace(operator, share=share, parameters=tensors, before=before)


def _untrained(tensors: Iterable[ParameterTensor]) -> tuple[ParameterTensor, ...]:
    return tuple(replace(tensor, trainable=False) for tensor in tensors)
