"""Parts of a transformer's layers, made from its shape: linear maps, latent attention, the mixture of experts.

Linear maps may be in few bits, or frozen with adapters. Latent attention is as Megatron-LM runs it
(core/transformer/multi_latent_attention.py): every tensor-parallel rank makes the small vectors, with sequence
parallelism those of its shard of the sequence, which are then gathered in place of the hidden state. Products from the
small vectors are cut by heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import singledispatch

from clustersim.workloads.architectures.shape import Shape
from clustersim.workloads.operators.attentions.core_attention import Latent, LatentAttention
from clustersim.workloads.operators.elementwise import Elementwise, rms_norm, rotary
from clustersim.workloads.operators.experts.experts import Experts
from clustersim.workloads.operators.experts.grouped_linear import GroupedLinear, scaled_groups
from clustersim.workloads.operators.experts.mixture import Mixture
from clustersim.workloads.operators.experts.routing import Router
from clustersim.workloads.operators.linear import Linear, SharedInput, SummedOutput
from clustersim.workloads.operators.lora import AdaptedLinear, with_adapters
from clustersim.workloads.operators.low_precision import BLOCKWISE, scaled
from clustersim.workloads.operators.operator import Operator
from clustersim.workloads.operators.operator_names import fuses
from clustersim.workloads.operators.parameter import ParameterTensor
from clustersim.workloads.operators.sharded import ShardedOperator, column_parallel, on_the_sequence, row_parallel


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
    return _adapted(shape, own, sizes or {}, by_rows=True)


def _shards(shape: Shape) -> int:
    """Shards of a gathered tensor that are cast before the gather; adapters want what is gathered in 16 bits."""
    return 1 if shape.lora else shape.cut.sequence_shards


def _adapted(shape: Shape, linear: Linear, sizes: Mapping[str, int], *, by_rows: bool = False) -> Linear:
    fused = fuses(shape.fused, "bias_dropout_add")
    return with_adapters(linear, shape.lora, sizes, shape.cut, fused=fused, by_rows=by_rows)


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


def latent_attention(shape: Shape, latent: Latent) -> tuple[Operator, ...]:
    """The products, norms and core attention of one layer, from the normed input to the output."""
    cut, precision, rows, heads = shape.cut, shape.precision, shape.seq_length, shape.heads
    own = rows // cut.sequence_shards
    small = plain_product(shape, Linear(own, shape.hidden_size, latent.keys_values + latent.rotated, False, precision))
    wide = heads * (latent.plain + latent.value)
    values = first_product(shape, Linear(rows, latent.keys_values, wide, False, precision, kept_share=shape.kept_share))
    made: tuple[Operator, ...]
    if latent.queries:
        first = plain_product(shape, Linear(own, shape.hidden_size, latent.queries, False, precision))
        queries = Linear(rows, latent.queries, heads * latent.query, False, precision, kept_share=shape.kept_share)
        made = (
            on_the_sequence(SharedInput((first, small)), cut),
            _norm(shape, own, latent.queries),
            column_parallel(first_product(shape, queries), cut),
        )
    else:
        queries = Linear(rows, shape.hidden_size, heads * latent.query, False, precision, kept_share=shape.kept_share)
        made = (column_parallel(first_product(shape, queries), cut), on_the_sequence(small, cut))
    turned = rotary(rows * (heads + 1) * latent.rotated, precision, fused=fuses(shape.fused, "rope"))
    core = LatentAttention(
        rows, heads, heads, latent.query, shape.dropout, True, precision, causal=shape.causal, value_size=latent.value
    )
    output = second_product(shape, Linear(rows, heads * latent.value, shape.hidden_size, False, precision))
    return (
        *made,
        _norm(shape, own, latent.keys_values),
        column_parallel(values, cut),
        turned,
        core,
        row_parallel(output, cut),
    )


def _norm(shape: Shape, rows: int, features: int) -> Operator:
    norm = rms_norm(rows, features, shape.precision, fused=fuses(shape.fused, "rms_norm"))
    return on_the_sequence(norm, shape.cut)


Halves = tuple[tuple[Operator, ...], tuple[Operator, ...]]
"""The operators of a feed-forward network up to its activation, and its second product."""


def mixture(
    shape: Shape, experts: Experts, number: int, shared: Halves, activation: Callable[[int], Elementwise]
) -> Mixture:
    """The block with the load of that *number*; *shared*: the halves of the shared expert.

    *activation*: of so many elements.
    """
    cut = shape.cut
    rows, width = shape.seq_length // cut.sequence_shards, experts.width // experts.cut.tensor
    bias, precision = shape.add_bias_linear, shape.precision
    score = Linear(rows, shape.hidden_size, experts.count, experts.router_bias, precision)
    gate = (Linear(rows, shape.hidden_size, 1, False, precision),) if experts.shared_gate else ()
    first, second = shared
    reduced = experts.cut.reduced_over
    # what is sent in 8 bits has a scale for each 128 features, as blockwise products take it
    sent_cast = experts.cut.sent_fp8 and shape.low is not None and shape.low.recipe == BLOCKWISE
    counted = not experts.capacity_factor
    doubled = width * (2 if shape.gated else 1)
    up = GroupedLinear(experts.local, shape.hidden_size, doubled, bias, precision, reduced, random_rows=counted)
    down = GroupedLinear(experts.local, width, shape.hidden_size, bias, precision, reduced, random_rows=counted)
    return Mixture(
        experts,
        rows,
        shape.hidden_size,
        Router(score, experts.topk, experts.aux_loss, fuses(shape.fused, "router")),
        on_the_sequence(score, cut).tensors,
        scaled_groups(up, shape.low, input_cast=sent_cast),
        activation(width),
        scaled_groups(down, shape.low, gradient_cast=sent_cast),
        (tuple(on_the_sequence(one, cut) for one in gate) + first, second),
        number,
        sequence_cut=cut.sequence or cut.ranks == 1,
        summed=cut.over if cut.ranks > 1 and not cut.sequence else "",
        precision=precision,
        fused=fuses(shape.fused, "permute"),
        sent_cast=sent_cast,
        kept_fp8=shape.saved.experts_fp8,
    )
