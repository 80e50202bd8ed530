"""What the blocks of a layer have in common: linear maps, norms, casts, residual sums and streams, made from the shape;
and recomputation by operator.

Linear maps may be in few bits, or frozen with adapters.

Hyper-connections: several residual streams, from which each block takes a mixture, and to which it adds its result.

Xie et al. 2025, "mHC" (arXiv:2512.24880), and DeepSeek-V4: a product of all streams of a position makes the weights of
the mixture, of the result in each stream, and of the streams among themselves, whose matrix Sinkhorn's iterations make
doubly stochastic. Kernels are taken as fused: one before a block and one behind it, beside the product.

Recomputation by operator: which operators of a layer run again before its backward pass, and what they free.

*By name*, as Megatron-LM's ``--recompute-modules``: the output of an operator is not kept, since it is computed again
from an input that is (core/transformer/transformer_layer.py and multi_latent_attention.py, output-discarding
checkpoints; DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.3). *Every nth matrix product*, as torchtitan's selective
checkpoints by operator with n = 2 (torchtitan, distributed/activation_checkpoint.py): the results of the other products
and of fused attention are saved, and all else of a layer is computed again from these and from the layer's input.
Products in 8 bits are another operator there (``aten._scaled_mm``), whose results are not saved. Activation functions
have a rule of their own (`workloads.operators.elementwise`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import singledispatch

from clustersim.simulator.hardware.kernel import BYTES, Operation
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.architectures.shape import Shape
from clustersim.workloads.operators.attentions.core_attention import CoreAttention, FlashAttention
from clustersim.workloads.operators.elementwise import (
    GELU,
    LAYER_NORM,
    RMS_NORM,
    SWIGLU,
    Elementwise,
    cast,
    layer_norm,
    residual,
    rms_norm,
)
from clustersim.workloads.operators.linear import Linear, SharedInput, SummedOutput
from clustersim.workloads.operators.lora import AdaptedLinear, with_adapters
from clustersim.workloads.operators.low_precision import ScaledLinear, scaled
from clustersim.workloads.operators.mixture_of_experts import Mixture
from clustersim.workloads.operators.operator import Operator, ParameterTensor, Rule, parameter_tensors
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
        keeps_inputs=shape.software.four_bit_inputs,
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


MIXED, ADDED = Operation("mixture of streams", "elementwise"), Operation("sum of streams", "elementwise")


def mixed(rows: int, hidden: int, streams: int, precision: str, *, last: bool = False) -> tuple[Operator, ...]:
    """What a block takes of *streams*; *last*: the head, behind which there are no streams.

    >>> sum(tensor.count for one in mixed(1, 4096, 4, "bf16") for tensor in one.tensors) == 24 * 4 * 4096 + 24 + 3
    True
    """
    weights = streams if last else (2 + streams) * streams
    wide = streams * hidden
    width = BYTES[precision]
    # the biases and scales of the weights; all streams are read and one is written, backward both are read and written
    learned = parameter_tensors(weights, 1 if last else 3)
    moved = (1.0 + 1.0 / streams) * width
    return (
        Linear(rows, wide, weights, False, precision, hidden=False),
        Elementwise(rows * wide, moved, 2.0 * width + moved, parameters=learned, precision=precision, operation=MIXED),
    )


def added(rows: int, hidden: int, streams: int, precision: str) -> Operator:
    """The streams among themselves, and the result of a block in each; it keeps that result."""
    width, one = BYTES[precision], BYTES[precision] / streams
    wide = rows * streams * hidden
    return Elementwise(wide, 2.0 * width + one, 3.0 * width + 2 * one, kept=one, precision=precision, operation=ADDED)


def streams_taken(shape: Shape, *, last: bool = False) -> tuple[Operator, ...]:
    """What a block takes of several residual streams; *last*: what the head takes."""
    if shape.residual_streams == 1:
        return ()
    made = mixed(shape.own_rows, shape.hidden_size, shape.residual_streams, shape.precision, last=last)
    return tuple(on_the_sequence(one, shape.cut) for one in made)


def streams_added(shape: Shape) -> Operator:
    """The result of a block, added to several residual streams."""
    return added(shape.own_rows, shape.hidden_size, shape.residual_streams, shape.precision)


NORMS = {LAYER_NORM.name, RMS_NORM.name}

Rerun = tuple[Operator, float]
"""An operator whose forward pass runs again, and the bytes a sample that are then not kept."""


def reruns(operators: Sequence[Operator], rule: Rule, *, early_stop: bool = False) -> tuple[Rerun, ...]:
    """What runs again of a layer of *operators*, in order. Raises `ScenarioError` for a mixture by *every*.

    *early_stop*: what nothing needs does not.
    """
    if rule.every:
        return tuple(_between_products(operators, rule.every))
    return tuple(_named(operators, rule.names, early_stop=early_stop))


def _named(operators: Sequence[Operator], names: frozenset[str], *, early_stop: bool) -> Iterator[Rerun]:
    expansion = _expansion(operators) if "mla_up" in names else range(0)
    feed_forward = dense_mlp(operators) if "mlp" in names else range(0)
    for place, operator in enumerate(operators):
        following = operators[place + 1] if place + 1 < len(operators) else None
        if "attention" in names and operator.recomputable_forward(1):
            yield (operator, operator.recomputable_bytes(1))
        elif "experts" in names and isinstance(operator, Mixture):
            given = operator.rows * operator.hidden * BYTES[operator.precision]
            yield (operator, operator.kept_bytes(1) - given)
        elif operator.operation.name in NORMS:
            # the product behind it keeps what a norm makes; what norms of queries and keys make nobody keeps as it is
            takes = following is not None and following.operation.name not in NORMS
            freed = min(operator.kept_bytes(1), following.kept_bytes(1)) if following and takes else 0.0
            if "norm" in names and freed:
                yield (operator, freed)
        elif place in feed_forward:
            # the input of the first product is kept; nothing keeps what the second one makes
            if place < feed_forward.stop - 1:
                yield (operator, operators[place + 1].kept_bytes(1))
            elif not early_stop:
                yield (operator, 0.0)
        elif place in expansion:
            core = operators[expansion.stop]
            last = place == expansion.stop - 1
            yield (operator, core.kept_bytes(1) - core.recomputable_bytes(1) if last else 0.0)


def dense_mlp(operators: Sequence[Operator]) -> range:
    """The places of a layer's dense feed-forward network; none where its last product is one with attention's."""
    products = [
        place for place, one in enumerate(operators) if isinstance(_whole(one), Linear | SharedInput | SummedOutput)
    ]
    if len(products) < 2 or isinstance(_whole(operators[products[-1]]), SummedOutput):
        return range(0)
    between = {one.operation for one in operators[products[-2] + 1 : products[-1]]}
    return range(products[-2], products[-1] + 1) if between in ({GELU}, {SWIGLU}) else range(0)


def _expansion(operators: Sequence[Operator]) -> range:
    """The places of what makes queries, keys and values from small vectors; norms among them run by their own name."""
    core = next((place for place, one in enumerate(operators) if _of_latent_vectors(_whole(one))), None)
    if core is None:
        return range(0)
    products = [place for place in range(core) if isinstance(_whole(operators[place]), Linear)]
    # without a small vector of queries their product comes before the small one of keys and values
    return range(products[-2] if len(products) > 1 and products[-1] - products[-2] == 2 else products[-1], core)


def _of_latent_vectors(operator: Operator) -> bool:
    return isinstance(operator, FlashAttention) and operator.value_size > 0


def _between_products(operators: Sequence[Operator], every: int) -> Iterator[Rerun]:
    if any(isinstance(_whole(operator), Mixture) for operator in operators):
        raise ScenarioError("every counts the matrix products of a dense layer, and this one has experts")
    count, kept = 0, operators[0].kept_bytes(1)
    found: list[Rerun] = []
    last = max(place for place, one in enumerate(operators) if _products(one))
    for place, operator in enumerate(operators[:last]):
        if isinstance(_whole(operator), CoreAttention):
            # its output is what the next product keeps
            kept += operator.recomputable_bytes(1) + operators[place + 1].kept_bytes(1)
            continue
        again = []
        for product in _products(operator):
            wide = not isinstance(product, ScaledLinear)
            count += wide
            if wide and count % every:
                kept += product.rows * product.outputs * BYTES[product.precision]
            else:
                again.append(product)
        if again:
            found += [(_like(operator, product), 0.0) for product in again]
        elif not _products(operator):
            found.append((operator, 0.0))
    freed = sum(operator.kept_bytes(1) for operator in operators) - kept
    yield (found[0][0], max(0.0, freed))
    yield from found[1:]


def _whole(operator: Operator) -> Operator:
    """The operator itself, or what a tensor-parallel rank has of it."""
    return operator.share if isinstance(operator, ShardedOperator) else operator


def _products(operator: Operator) -> tuple[Linear, ...]:
    """The products of *operator* as their parts are in a model of torch: one for each weight."""
    own = _whole(operator)
    every = own.products if isinstance(own, SharedInput) else (own,) if isinstance(own, Linear) else ()
    return tuple(part for one in every for part in (one.apart() or (one,)))


def _like(operator: Operator, product: Linear) -> Operator:
    """*product* alone, with the exchanges of *operator*."""
    return replace(operator, share=product) if isinstance(operator, ShardedOperator) else product
