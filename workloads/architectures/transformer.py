"""A transformer is an embedding, a number of equal layers and a head, all made from a `Shape`.

FLOPs of a step over B samples come to 72 B s l h^2 (1 + s/6h + V/12lh), activations of a layer to s b h (34 + 5 a s/h)
bytes in 16 bits (Narayanan et al. 2021, arXiv:2104.04473, equation 3; Korthikanti et al. 2022, arXiv:2205.05198).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.workloads.architectures.attention_keys import Window
from clustersim.workloads.architectures.blocks import (
    Halves,
    first_product,
    frozen,
    latent_attention,
    mixture,
    second_product,
)
from clustersim.workloads.architectures.recomputation import reruns
from clustersim.workloads.architectures.shape import ATTENTION_AND_MLP, Shape
from clustersim.workloads.blocks._block import Block
from clustersim.workloads.operators.attentions.context_parallel import ALONE, cut_over, positions_for_heads
from clustersim.workloads.operators.attentions.core_attention import AttentionKind, CoreAttention, FlashAttention, Sizes
from clustersim.workloads.operators.elementwise import (
    Elementwise,
    cast,
    dropout,
    gelu,
    layer_norm,
    output_gate,
    residual,
    rms_norm,
    rotary,
    swiglu,
    tanh,
)
from clustersim.workloads.operators.embedding import biased_scores, embedding, vocabulary_parallel_embedding
from clustersim.workloads.operators.experts.experts import Experts
from clustersim.workloads.operators.grids.samples import of_samples
from clustersim.workloads.operators.linear import Linear, SharedInput, SummedOutput
from clustersim.workloads.operators.loss import cross_entropy, vocabulary_parallel_loss
from clustersim.workloads.operators.low_precision import LowPrecision
from clustersim.workloads.operators.model import Model, OperatorLayer
from clustersim.workloads.operators.operator import Operator
from clustersim.workloads.operators.operator_names import Rule, fuses
from clustersim.workloads.operators.parameter import parameter_tensors
from clustersim.workloads.operators.saved_activations import RecomputedActivation, Saved, saving
from clustersim.workloads.operators.sharded import (
    column_parallel,
    gathered_output,
    norm_of_columns,
    norm_of_features,
    norm_of_heads,
    on_the_sequence,
    second_parallel,
    sequence_gathered,
)

TOKEN_BYTES = 8
"""A token is an int64, torch's index type."""


@dataclass(frozen=True, kw_only=True)
class Transformer(Model):
    """A model with its *shape*, so that parallelisms can change it."""

    of_shape: ClassVar[bool] = True

    shape: Shape

    def reshaped(self, **changes: Any) -> Transformer:
        """The model with *changes* to fields of its shape."""
        return transformer(replace(self.shape, **changes), self.name, self.notes)

    def with_software(self, software: Software) -> Transformer:
        """The model with the fused softmax, the loss and the products of *software*."""
        keys = (
            "softmax_group",
            "wide_softmax",
            "cross_entropy",
            "gather_logits",
            "keep_gathered",
            "separate_gate",
            "fp32_residual",
        )
        return self.reshaped(**{key: getattr(software, key) for key in keys})

    def saving(self, rule: Saved) -> Transformer:
        """The model with *rule* for what its activation functions keep. Raises `ScenarioError` for a gated one."""
        if rule.bits and self.shape.gated:
            raise ScenarioError(
                f"{self.shape.activation} multiplies two tensors and keeps both; few bits are for gelu, relu and others"
            )
        return self.reshaped(saved=rule)

    def recomputing(self, rule: Rule) -> Transformer:
        """The model with *rule* for what recomputation by operator runs again. Raises `ScenarioError`."""
        return self.reshaped(again=rule)

    def in_low_precision(self, low: LowPrecision) -> Transformer:
        """The model with *low* for the linear maps of its layers; attention and logits keep their precision.

        Raises `ScenarioError` if their weights are in 4 bits already.
        """
        if self.shape.lora and self.shape.lora.quantisation:
            raise ScenarioError("weights in 4 bits are converted to 16 bits for products; leave out lora.quantised")
        return self.reshaped(low=low)


def transformer(shape: Shape, name: str = "transformer", notes: tuple[str, ...] = ()) -> Transformer:
    """The model of *shape*: an embedding, its layers, a head.

    >>> gpt2 = Shape(12, 768, 12, 12, 3072, 1024, 50257)
    >>> transformer(gpt2).parameters
    124439808
    """
    cut = shape.cut
    vectors, head = _trained(shape, embedding_operators(shape)), _trained(shape, head_operators(shape))
    layers = [OperatorLayer("embedding", "embedding", vectors, shape.hidden_bytes), *_layers(shape)]
    # a head passes on the loss, one fp32 number
    layers.append(OperatorLayer("head", "head", head, 4.0))
    return Transformer(
        name,
        layers,
        sample_bytes=TOKEN_BYTES * shape.seq_length,
        tokens_per_sample=shape.seq_length,
        precision=shape.precision,
        fused=shape.fused,
        tied_parameters=layers[0].tensors[0].count if shape.tie_embeddings else 0,
        notes=notes,
        boundary_axis=cut.grid.equal if cut.grid else "" if cut.sequence else cut.over,
        shape=shape,
    )


def _layers(shape: Shape) -> Iterator[OperatorLayer]:
    """The layers between embedding and head."""
    made: dict[int, OperatorLayer] = {}
    for number, operators in enumerate(layers_of_operators(shape, shape.num_layers)):
        name = f"layer {number}"
        if id(operators) not in made:
            again = reruns(operators, shape.again) if shape.again else None
            made[id(operators)] = OperatorLayer(name, "transformer", operators, shape.hidden_bytes, reruns=again)
            yield made[id(operators)]
        else:
            yield made[id(operators)].again(name)


def layers_of_operators(shape: Shape, count: int) -> Iterator[tuple[Operator, ...]]:
    """The operators of each of *count* layers: equal, but for their blocks, windows, and experts with their loads."""
    made: dict[tuple[int | None, int, int], tuple[Operator, ...]] = {}
    sparse = 0
    for number in range(count):
        experts, which, blocks = shape.experts, None, shape.blocks_of(number)
        if experts and experts.is_sparse(number) and "mlp" in blocks:
            which = sparse % len(experts.loads)
            sparse += 1
        turn = number % len(shape.windows) if shape.windows else 0
        key = which, turn, shape.layers.index(blocks) if shape.layers else 0
        if key not in made:
            own = shape.of_layer(number)
            made[key] = _trained(own, transformer_operators(own, which, blocks))
        yield made[key]


def _trained(shape: Shape, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """*operators* of a rank, frozen but for adapters if the model has these."""
    own = of_samples(operators, shape.cut.grid)
    return tuple(map(frozen, own)) if shape.lora else own


def transformer_operators(
    shape: Shape, sparse: int | None = None, blocks: Sequence[str | Block] = ATTENTION_AND_MLP
) -> tuple[Operator, ...]:
    """One layer: its *blocks*, attention and then the feed-forward block, each with its norm and its residual sum.

    A parallel block has one residual sum, and attention and feed-forward side by side before it. *sparse*: the layer
    has experts, with the load of that number.
    """
    if shape.block != "serial":
        return _parallel_block(shape)
    before = (_norm(shape),) * (shape.causal and shape.norm_placement != "after")
    after = (_norm(shape),) * (shape.causal and shape.norm_placement != "before")
    last = (_norm(shape),) * (not shape.causal)
    parts = (_block(shape, block, sparse) for block in blocks)
    return tuple(operator for one in parts for operator in (*before, *one, *after, _residual(shape), *last))


def _block(shape: Shape, block: str | Block, sparse: int | None) -> tuple[Operator, ...]:
    """The operators of *block*, between its norm and its residual sum."""
    if isinstance(block, Block):
        return (*_casts(shape, 1), *block.operators(shape.hidden_states))
    return _attention(shape) if block == "attention" else _feed_forward(shape, sparse)


def _attention(shape: Shape) -> tuple[Operator, ...]:
    if shape.latent:
        return latent_attention(shape, shape.latent)
    columns, inner, output = _attention_parts(shape)
    casts = _casts(shape, max(1, len(columns.splits)))
    return (*casts, column_parallel(columns, shape.cut), *inner, second_parallel(output, shape.cut))


def _feed_forward(shape: Shape, sparse: int | None) -> tuple[Operator, ...]:
    if sparse is not None and shape.experts:
        return (*_casts(shape, 1), _mixture(shape, shape.experts, sparse))
    first, inner, second = _feed_forward_parts(shape)
    casts = _casts(shape, max(1, len(first.splits)))
    return (*casts, _columns(shape, first), *inner, second_parallel(second, shape.cut))


def embedding_operators(shape: Shape) -> tuple[Operator, ...]:
    """Token, position and type vectors added up; norm and dropout where the model has them."""
    elements, cut = shape.seq_length * shape.hidden_size, shape.cut
    learned = shape.position_embedding_type == "learned_absolute"
    positions = (shape.position_rows or shape.whole_length) * learned
    tables = (shape.vocabulary, positions, shape.type_vocab_size)
    vectors = embedding(tuple(filter(None, tables)), shape.seq_length, shape.hidden_size, shape.residual_precision)
    norm = (_norm(shape),) if shape.embedding_norm else ()
    drop = (dropout(elements // cut.sequence_shards, shape.residual_precision),) if shape.dropout else ()
    return (vocabulary_parallel_embedding(vectors, cut, _sequence_bytes(shape)), *norm, *drop)


def head_operators(shape: Shape) -> tuple[Operator, ...]:
    """The final norm or BERT's transform, the logits over the vocabulary and the loss."""
    rows, hidden, precision, cut = shape.seq_length, shape.hidden_size, shape.precision, shape.cut
    before: tuple[Operator, ...] = (_norm(shape),)
    if not shape.causal:
        own = rows // cut.sequence_shards
        dense = on_the_sequence(Linear(own, hidden, hidden, precision=precision), cut)
        before = (*_casts(shape, 1), dense, _gelu(shape, own * hidden), _norm(shape))
    if shape.head == "pretraining":
        pooler = sequence_gathered(Linear(1, hidden, hidden, precision=precision), cut, _sequence_bytes(shape))
        before = (pooler, tanh(hidden, precision), *before)
    logits = Linear(
        rows,
        hidden,
        shape.vocabulary,
        bias=not shape.causal or shape.head_bias,
        precision=precision,
        shared=shape.tie_embeddings,
        kept_share=shape.kept_share,
        hidden=False,
    )
    next_sentence = (Linear(1, hidden, 2, precision=precision, hidden=False),) if shape.head == "pretraining" else ()
    return (*before, *_casts(shape, 1), *_logits_and_loss(shape, logits), *next_sentence)


def _logits_and_loss(shape: Shape, logits: Linear) -> tuple[Operator, Operator]:
    """The product *logits* of one rank, and the loss: of its classes, of all that it gathers, or of its positions."""
    rows, precision, cut = shape.seq_length, shape.precision, shape.cut
    if cut.sequence_head:
        own = replace(logits, rows=rows // cut.ranks, outputs=shape.vocab_size, kept_share=1)
        return on_the_sequence(own, cut), cross_entropy(own.rows, own.outputs, precision, shape.loss)
    product = column_parallel(logits, cut)
    if shape.gather_logits:
        classes = shape.vocabulary * cut.ranks
        return gathered_output(product, cut, float(rows * classes * BYTES[precision])), cross_entropy(
            rows, classes, precision, shape.loss
        )
    loss = cross_entropy(rows, shape.vocabulary, precision, shape.loss)
    return product, vocabulary_parallel_loss(loss, cut, rows)


def _norm(shape: Shape) -> Operator:
    rows, hidden, stream = shape.seq_length // shape.cut.sequence_shards, shape.hidden_size, shape.residual_precision
    output = shape.precision if _casts_fused(shape) else stream
    if shape.normalization == "rmsnorm":
        norm, sums = rms_norm(rows, hidden, stream, output, fused=fuses(shape.fused, "rms_norm")), 1
    else:
        # the mean and the mean square
        norm, sums = layer_norm(rows, hidden, stream, output, bias=shape.norm_bias), 2
    return norm_of_features(norm, shape.seq_length, shape.cut, sums)


def _casts_fused(shape: Shape) -> bool:
    """True if casts are part of the kernels before and after them."""
    return fuses(shape.fused, "bias_dropout_add")


def _casts(shape: Shape, products: int) -> tuple[Operator, ...]:
    """The casts of a wide residual stream before so many *products*, none if it is not wide."""
    if shape.residual_precision == shape.precision or _casts_fused(shape):
        return ()
    elements = shape.seq_length // shape.cut.sequence_shards * shape.hidden_size
    return (on_the_sequence(cast(elements, shape.precision, shape.residual_precision, products), shape.cut),)


def _sequence_bytes(shape: Shape) -> float:
    """Bytes of the hidden state of a whole sequence."""
    return shape.hidden_bytes * shape.cut.sequence_shards


GATE_AND_UP = 2
"""Splits of the product before a gated activation; that of attention has three."""

Parts = tuple[Linear, tuple[Operator, ...], Linear]
"""The first product of a block, what is between, and its second product."""


def _mixture(shape: Shape, experts: Experts, number: int) -> Operator:
    """The block of experts. The shared expert is a feed-forward network of its own width."""
    shared: Halves = (), ()
    if experts.shared:
        first, inner, second = _feed_forward_parts(replace(shape, ffn_hidden_size=experts.shared))
        shared = (_columns(shape, first), *inner), (second_parallel(second, shape.cut),)
    return mixture(shape, experts, number, shared, lambda elements: _activation(shape, elements))


def _columns(shape: Shape, first: Linear) -> Operator:
    """The first product of a block; of a gated activation two products if the software has the gate apart."""
    if shape.separate_gate and len(first.splits) == GATE_AND_UP:
        return column_parallel(SharedInput(first.apart()), shape.cut, summed_first=False)
    return column_parallel(first, shape.cut)


def _parallel_block(shape: Shape) -> tuple[Operator, ...]:
    columns, attention, output = _attention_parts(shape)
    up, feed_forward, down = _feed_forward_parts(shape)
    one, two = _casts(shape, 1), _casts(shape, 2)
    if shape.block == "parallel":
        made = (_norm(shape), *two, column_parallel(SharedInput((columns, up)), shape.cut), *attention, *feed_forward)
    else:
        first = (_norm(shape), *one, column_parallel(columns, shape.cut), *attention)
        made = (*first, _norm(shape), *one, column_parallel(up, shape.cut), *feed_forward)
    return (
        *made,
        second_parallel(SummedOutput((output, down)), shape.cut),
        _residual(shape),
    )


def _attention_parts(shape: Shape) -> Parts:
    """The product that makes queries, keys and values; what is between; the product that makes the output."""
    precision, rows = shape.precision, shape.seq_length
    queries, keys = shape.heads * shape.head_size, shape.key_value_heads * shape.head_size
    asked = queries * (2 if shape.attention_output_gate else 1)
    # GPT-2 and Megatron-LM hold query, key and value in one tensor, Hugging Face's BERT and Llama in three
    apart = not shape.causal or shape.normalization == "rmsnorm"
    columns = Linear(
        rows,
        shape.hidden_size,
        asked + 2 * keys,
        shape.add_bias_linear or shape.attention_bias or shape.add_qkv_bias,
        precision,
        splits=(asked, keys, keys) if apart else (),
        kept_share=shape.kept_share,
    )
    turned = (rotary(rows * (queries + keys), precision, fused=fuses(shape.fused, "rope")),)
    bias = shape.add_bias_linear or shape.attention_bias
    output = Linear(rows, queries, shape.hidden_size, bias, precision)
    output = second_product(shape, output, {"projection": shape.hidden_size})
    columns = first_product(shape, columns, {"query": asked, "key": keys, "value": keys})
    position = turned if shape.position_embedding_type == "rope" else ()
    # stacks that fuse the activation of an MLP fuse this gate too
    gate = (output_gate(rows * queries, precision, fused=fuses(shape.fused, "swiglu")),) * shape.attention_output_gate
    return columns, (*_query_key_norms(shape), *position, *_core(shape), *_sinks(shape), *gate), output


def _sinks(shape: Shape) -> tuple[Operator, ...]:
    """A learned score for each head, which the kernel of the attention reads."""
    return (Elementwise(0, 0.0, 0.0, parameters=parameter_tensors(shape.heads)),) if shape.attention_sinks else ()


def _query_key_norms(shape: Shape) -> tuple[Operator, ...]:
    """RMS norms of queries and of keys. Ranks that hold the same weights sum their gradients."""
    rows, cut, fused = shape.seq_length, shape.cut, fuses(shape.fused, "rms_norm")
    made: list[Operator] = []
    for heads in (shape.heads, shape.key_value_heads) if shape.qk_norm != "none" else ():
        if shape.qk_norm == "per_head":
            norm = rms_norm(rows * heads, shape.head_size, shape.precision, fused=fused)
            made.append(norm_of_heads(norm, cut))
        else:
            norm = rms_norm(rows, heads * shape.head_size, shape.precision, fused=fused)
            made.append(norm_of_columns(norm, rows, cut))
    return tuple(made)


def _core(shape: Shape) -> tuple[Operator, ...]:
    if shape.context.method == "ulysses":
        return _by_heads(shape)
    sizes = (shape.seq_length, shape.heads, shape.key_value_heads, shape.head_size)
    soft = fuses(shape.fused, "softmax")
    if shape.attention == "unfused":
        core = CoreAttention(*sizes, shape.dropout, soft, shape.precision, shape.softmax_group, shape.wide_softmax)
        bias = (biased_scores(shape.seq_length, shape.heads, shape.precision),) if shape.relative_positions else ()
        return (*bias, core)
    if shape.attention == "flash":
        window = shape.windows[0] if shape.windows else Window(0)
        attention = FlashAttention(
            *sizes,
            shape.dropout,
            soft,
            shape.precision,
            causal=shape.masked,
            window=0 if window.chunked else window.size,
            documents=(window.size,) if window.chunked and window.size < shape.whole_length else shape.document_length,
        )
        return (cut_over(attention, shape.context, fused_sum=fuses(shape.fused, "block_sum")),)
    if isinstance(shape.attention, AttentionKind):
        return shape.attention.operators(_attention_sizes(shape))
    made = lookup.function("clustersim.workloads.operators", shape.attention)(shape)
    return (made,) if isinstance(made, Operator) else tuple(made)


def _attention_sizes(shape: Shape) -> Sizes:
    return Sizes(
        shape.seq_length,
        shape.heads,
        shape.key_value_heads,
        shape.head_size,
        shape.masked,
        shape.dropout,
        fuses(shape.fused, "softmax"),
        shape.precision,
        shape.cut.over,
        shape.cut.ranks,
    )


def _by_heads(shape: Shape) -> tuple[Operator, ...]:
    """Attention of all positions of some heads, whatever its kind, between exchanges of positions for heads.

    Fewer key and value heads than ranks are repeated ahead of the exchange, so that each rank gets one (verl,
    models/transformers/monkey_patch.py, ``repeat_kv``).
    """
    ranks = shape.context.ranks
    groups = max(ranks, shape.key_value_heads)
    inner = _core(
        replace(
            shape,
            seq_length=shape.whole_length,
            num_attention_heads=shape.num_attention_heads // ranks,
            num_key_value_heads=max(1, shape.num_key_value_heads // ranks),
            head_dim=shape.head_size,
            context=ALONE,
        )
    )
    sizes = shape.seq_length, shape.heads, groups, shape.head_size
    return positions_for_heads(inner, shape.context, sizes, shape.precision)


def _feed_forward_parts(shape: Shape) -> Parts:
    """The product that widens, the activation, the product that narrows."""
    precision, rows, gated = shape.precision, shape.seq_length, shape.gated
    width = shape.ffn_hidden_size // shape.cut.ranks
    up = Linear(
        rows,
        shape.hidden_size,
        width * (2 if gated else 1),
        shape.add_bias_linear,
        precision,
        splits=(width, width) if gated else (),
        kept_share=shape.kept_share,
    )
    between = _activation(shape, rows * width)
    keeps = not isinstance(between, RecomputedActivation)
    down = Linear(rows, width, shape.hidden_size, shape.add_bias_linear, precision, keeps_input=keeps)
    first = first_product(shape, up, {"gate": width, "up": width} if gated else {"up": width})
    return first, (between,), second_product(shape, down, {"down": shape.hidden_size})


def _activation(shape: Shape, elements: int) -> Elementwise:
    rule, precision = shape.saved, shape.precision
    if shape.lora and not {"down"} & {*shape.lora.targets}:
        # no weight gradient needs the output
        rule = replace(rule, recompute=False)
    if shape.gated:
        gated = swiglu(elements, precision, fused=fuses(shape.fused, "swiglu"), separate=shape.separate_gate)
        return saving(gated, rule, precision)
    return saving(_gelu(shape, elements), rule, precision)


def _gelu(shape: Shape, elements: int) -> Elementwise:
    written_out = shape.activation == "gelu_new" and not fuses(shape.fused, "gelu_new")
    return gelu(elements, shape.precision, written_out=written_out)


def _residual(shape: Shape) -> Operator:
    elements = shape.seq_length * shape.hidden_size // shape.cut.sequence_shards
    fused = fuses(shape.fused, "bias_dropout_add")
    return residual(elements, shape.precision, shape.residual_precision, drop=shape.dropout, fused=fused)
