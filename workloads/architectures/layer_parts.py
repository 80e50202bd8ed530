"""What the blocks of a layer have in common: linear maps, norms, casts and residual sums, made from the shape.

Linear maps may be in few bits, or frozen with adapters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import singledispatch

from clustersim.simulator.hardware.kernel import BYTES
from clustersim.workloads.architectures.shape import Shape
from clustersim.workloads.operators.elementwise import Elementwise, cast, layer_norm, residual, rms_norm
from clustersim.workloads.operators.experts.mixture import Mixture
from clustersim.workloads.operators.linear import Linear, SharedInput, SummedOutput
from clustersim.workloads.operators.lora import AdaptedLinear, with_adapters
from clustersim.workloads.operators.low_precision import scaled
from clustersim.workloads.operators.operator import Operator
from clustersim.workloads.operators.parameter import ParameterTensor
from clustersim.workloads.operators.sharded import ShardedOperator, norm_of_features, on_the_sequence

Parts = tuple[Linear, tuple[Operator, ...], Linear]
"""The first product of a block, what is between, and its second product."""


def norm_operator(shape: Shape) -> Operator:
    """A norm of the residual stream."""
    rows, hidden, stream = shape.own_rows, shape.hidden_size, shape.residual_precision
    output = shape.precision if _casts_fused(shape) else stream
    if shape.norm.kind == "rmsnorm":
        norm, sums = rms_norm(rows, hidden, stream, output, fused=shape.fuses("rms_norm")), 1
    else:
        # the mean and the mean square
        norm, sums = layer_norm(rows, hidden, stream, output, bias=shape.norm.bias), 2
    if not shape.norm.weight:
        norm = replace(norm, weights=0.0, parameters=())
    return norm_of_features(norm, shape.seq_length, shape.cut, sums)


def casts(shape: Shape, products: int) -> tuple[Operator, ...]:
    """The casts of a wide residual stream before so many *products*, none if it is not wide, or products cast it."""
    if shape.residual_precision == shape.precision or _casts_fused(shape) or shape.prepared:
        return ()
    elements = shape.own_rows * shape.hidden_size
    return (on_the_sequence(cast(elements, shape.precision, shape.residual_precision, products), shape.cut),)


def _casts_fused(shape: Shape) -> bool:
    """True if casts are part of the kernels before and after them."""
    return shape.fuses("bias_dropout_add")


def residual_sum(shape: Shape) -> Operator:
    """The sum of what a block makes and of the residual stream."""
    elements = shape.seq_length * shape.hidden_size // shape.cut.sequence_shards
    fused = shape.fuses("bias_dropout_add")
    return residual(elements, shape.precision, shape.residual_precision, drop=shape.dropout, fused=fused)


def plain_product(shape: Shape, linear: Linear) -> Linear:
    """A product without exchanges."""
    return _adapted(shape, scaled(linear, shape.low), {})


def first_product(shape: Shape, linear: Linear, sizes: Mapping[str, int] | None = None) -> Linear:
    """The first product of a block; its input is gathered from the sequence. *sizes*: outputs by adapter's target."""
    own = scaled(linear, shape.low, input_shards=_shards(shape))
    return _adapted(shape, own, sizes or {})


def second_product(shape: Shape, linear: Linear, sizes: Mapping[str, int] | None = None) -> Linear:
    """The second product of a block; the gradient of its output is gathered from the sequence."""
    own = scaled(linear, shape.low, gradient_shards=_shards(shape))
    # what attention returns has 16 bits, whatever the stream
    wide = "projection" not in (sizes or {})
    return _adapted(shape, own, sizes or {}, by_rows=True, wide=wide)


def _shards(shape: Shape) -> int:
    """Shards of a gathered tensor that are cast before the gather; adapters want what is gathered in 16 bits."""
    return 1 if shape.lora else shape.cut.sequence_shards


def _adapted(
    shape: Shape, linear: Linear, sizes: Mapping[str, int], *, by_rows: bool = False, wide: bool = True
) -> Linear:
    return with_adapters(
        linear,
        shape.lora,
        sizes,
        shape.cut,
        fused=shape.fuses("bias_dropout_add"),
        by_rows=by_rows,
        fp32=shape.fp32_adapters,
        wide=wide and shape.prepared,
        joint=shape.software.joint_adapters,
    )


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


def has_tables(operator: Operator) -> bool:
    """True if *operator* has a table of the vocabulary: that of the embedding, or that of the logits."""
    return any(tensor.rows and not tensor.hidden for tensor in operator.tensors)


def trained_copy(operator: Operator) -> Operator:
    """*operator* with trained tensors; its frozen ones are held beside them, in the precision of the model."""
    share = operator
    while isinstance(share, ShardedOperator):
        share = share.share
    width = BYTES[str(getattr(share, "precision", "fp32"))]
    held = tuple(replace(tensor, copy_bytes=tensor.copy_bytes + width) for tensor in operator.tensors)
    if isinstance(operator, ShardedOperator):
        return replace(operator, parameters=held)
    return ShardedOperator(operator, held)


def _untrained(tensors: Iterable[ParameterTensor]) -> tuple[ParameterTensor, ...]:
    return tuple(replace(tensor, trainable=False) for tensor in tensors)
