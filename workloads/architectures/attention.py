"""Attention of a layer, made from the shape: its products, norms, positions, core and gate; or latent attention.

Latent attention is as Megatron-LM runs it (core/transformer/multi_latent_attention.py): every tensor-parallel rank
makes the small vectors, with sequence parallelism those of its shard of the sequence, which are then gathered in place
of the hidden state. Products from the small vectors are cut by heads.
"""

from __future__ import annotations

from dataclasses import replace

from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading import lookup
from clustersim.workloads.architectures.attention_keys import Window
from clustersim.workloads.architectures.layer_parts import Parts, casts, first_product, plain_product, second_product
from clustersim.workloads.architectures.shape import Shape
from clustersim.workloads.operators.attentions.context_parallel import ALONE, cut_over, positions_for_heads
from clustersim.workloads.operators.attentions.core_attention import (
    AttentionKind,
    CoreAttention,
    FlashAttention,
    Latent,
    Sizes,
)
from clustersim.workloads.operators.attentions.indexed_attention import indexed_latent_attention
from clustersim.workloads.operators.attentions.kernel_attention import KernelAttention
from clustersim.workloads.operators.attentions.torch_softmax import copied_heads
from clustersim.workloads.operators.elementwise import (
    CAST,
    Elementwise,
    TorchOperator,
    composed,
    output_gate,
    rms_norm,
    rotary,
)
from clustersim.workloads.operators.embedding_and_loss import biased_scores
from clustersim.workloads.operators.linear import Linear, SharedInput
from clustersim.workloads.operators.operator import Operator, parameter_tensors
from clustersim.workloads.operators.sharded import (
    column_parallel,
    norm_of_columns,
    norm_of_heads,
    on_the_sequence,
    row_parallel,
    second_parallel,
)

OPERANDS = 3
"""Of attention: queries, keys and values."""


def attention_operators(shape: Shape) -> tuple[Operator, ...]:
    """The operators of attention, between its norm and its residual sum."""
    if shape.attention.latent:
        return _latent_attention(shape, shape.attention.latent)
    columns, inner, output = attention_parts(shape)
    before = casts(shape, max(1, len(columns.splits)))
    if shape.software.separate_qkv and columns.splits:
        first = column_parallel(SharedInput(columns.apart()), shape.cut, summed_first=False)
    else:
        first = column_parallel(columns, shape.cut)
    return (*before, first, *inner, second_parallel(output, shape.cut))


def attention_parts(shape: Shape) -> Parts:
    """The product that makes queries, keys and values; what is between; the product that makes the output."""
    own, precision, rows = shape.attention, shape.precision, shape.seq_length
    queries, keys = shape.heads * shape.head_size, shape.key_value_heads * shape.head_size
    asked = queries * (2 if own.output_gate else 1)
    columns = Linear(
        rows,
        shape.hidden_size,
        asked + 2 * keys,
        own.bias or own.qkv_bias,
        precision,
        splits=(asked, keys, keys) if _in_three_tensors(shape) else (),
        kept_share=shape.kept_share,
    )
    rotated = round(own.rotary_share * rows * (queries + keys))
    turned = (rotary(rotated, shape.activation_precision, fused=shape.fuses("rope")),)
    # fused attention saves its own output
    held = own.kind == "flash" and not own.output_gate
    output = Linear(rows, queries, shape.hidden_size, own.bias, precision, input_held=held)
    output = second_product(shape, output, {"projection": shape.hidden_size})
    columns = first_product(shape, columns, {"query": asked, "key": keys, "value": keys})
    position = turned if shape.embedding.positions == "rope" else ()
    # stacks that fuse the activation of an MLP fuse this gate too
    gate = (output_gate(rows * queries, precision, fused=shape.fuses("swiglu")),) * own.output_gate
    return (
        columns,
        (*_query_key_norms(shape), *position, *_operand_casts(shape), *_core(shape), *_sinks(shape), *gate),
        output,
    )


def _operand_casts(shape: Shape) -> tuple[Operator, ...]:
    """The casts of wide queries, keys and values, which attention takes in 16 bits."""
    if shape.activation_precision == shape.precision:
        return ()
    elements = shape.seq_length * shape.head_size * (shape.heads + 2 * shape.key_value_heads)
    each = BYTES[shape.precision] + BYTES[shape.activation_precision]
    casts = (TorchOperator(CAST, each, each, (OPERANDS, OPERANDS)),)
    return (composed(elements, shape.precision, CAST, casts, 0.0),)


def _sinks(shape: Shape) -> tuple[Operator, ...]:
    """A learned score for each head, which the kernel of the attention reads."""
    return (Elementwise(0, 0.0, 0.0, parameters=parameter_tensors(shape.heads)),) if shape.attention.sinks else ()


def _query_key_norms(shape: Shape) -> tuple[Operator, ...]:
    """RMS norms of queries and of keys. Ranks that hold the same weights sum their gradients."""
    rows, cut, fused = shape.seq_length, shape.cut, shape.fuses("rms_norm")
    made: list[Operator] = []
    for heads in (shape.heads, shape.key_value_heads) if shape.attention.qk_norm != "none" else ():
        if shape.attention.qk_norm == "per_head":
            norm = rms_norm(rows * heads, shape.head_size, shape.precision, fused=fused)
            made.append(norm_of_heads(norm, cut))
        else:
            norm = rms_norm(rows, heads * shape.head_size, shape.precision, fused=fused)
            made.append(norm_of_columns(norm, rows, cut))
    return tuple(made)


def _core(shape: Shape) -> tuple[Operator, ...]:
    if shape.context.method == "ulysses":
        return _by_heads(shape)
    match shape.attention.kind:
        case "unfused":
            return _unfused(shape)
        case "flash":
            return (cut_over(_flash(shape), shape.context, fused_sum=shape.fuses("block_sum")),)
        case KernelAttention() as kind:
            return kind.operators(_attention_sizes(shape), shape.context)
        case AttentionKind() as kind:
            return kind.operators(_attention_sizes(shape))
        case name:
            made = lookup.function("clustersim.workloads.operators", name)(shape)
            return (made,) if isinstance(made, Operator) else tuple(made)


def _unfused(shape: Shape) -> tuple[Operator, ...]:
    sizes, stack = (shape.seq_length, shape.heads, shape.key_value_heads, shape.head_size), shape.software
    soft = shape.fuses("softmax")
    # full attention says that it hides nothing; encoders of text, which say nothing, hide padding
    masks = shape.attention.mask != "full"
    core = CoreAttention(*sizes, shape.dropout, soft, shape.precision, stack.softmax_group, stack.fp32_scores, masks)
    bias = (biased_scores(shape.seq_length, shape.heads, shape.precision),) if shape.relative_positions else ()
    return (*bias, *_copies(shape), core)


def _copies(shape: Shape) -> tuple[Operator, ...]:
    """Of heads, where torch's operators multiply them and samples come first."""
    if shape.fuses("softmax") or not shape.software.batch_first:
        return ()
    queries, keys = shape.heads * shape.head_size, shape.key_value_heads * shape.head_size
    joint = not (_in_three_tensors(shape) and shape.software.separate_qkv)
    return (copied_heads(shape.seq_length, queries, keys, shape.precision, joint=joint),)


def _in_three_tensors(shape: Shape) -> bool:
    """GPT-2 and Megatron-LM hold query, key and value in one tensor, Hugging Face's BERT and Llama in three."""
    return not shape.causal or shape.norm.kind == "rmsnorm"


def _flash(shape: Shape) -> FlashAttention:
    own = shape.attention
    window = own.windows[0] if own.windows else Window(0)
    return FlashAttention(
        shape.seq_length,
        shape.heads,
        shape.key_value_heads,
        shape.head_size,
        shape.dropout,
        shape.fuses("softmax"),
        shape.precision,
        causal=shape.masked,
        window=0 if window.chunked else window.size,
        documents=(window.size,) if window.chunked and window.size < shape.whole_length else own.document_length,
    )


def _attention_sizes(shape: Shape) -> Sizes:
    return Sizes(
        shape.seq_length,
        shape.heads,
        shape.key_value_heads,
        shape.head_size,
        shape.masked,
        shape.dropout,
        shape.fuses("softmax"),
        shape.precision,
        shape.cut.over,
        shape.cut.ranks,
    )


def _by_heads(shape: Shape) -> tuple[Operator, ...]:
    """Attention of all positions of some heads, whatever its kind, between exchanges of positions for heads.

    Fewer key and value heads than ranks are repeated ahead of the exchange, so that each rank gets one (verl,
    models/transformers/monkey_patch.py, ``repeat_kv``).
    """
    ranks, whole = shape.context.ranks, shape.attention
    groups = max(ranks, shape.key_value_heads)
    own = replace(
        whole,
        num_heads=whole.num_heads // ranks,
        num_key_value_heads=max(1, whole.num_key_value_heads // ranks),
        head_dim=shape.head_size,
    )
    inner = _core(replace(shape, seq_length=shape.whole_length, attention=own, context=ALONE))
    sizes = shape.seq_length, shape.heads, groups, shape.head_size
    return positions_for_heads(inner, shape.context, sizes, shape.precision)


def _latent_attention(shape: Shape, latent: Latent) -> tuple[Operator, ...]:
    """The products, norms and core attention of one layer, from the normed input to the output."""
    cut, precision, rows, heads = shape.cut, shape.precision, shape.seq_length, shape.heads
    own = shape.own_rows
    small = plain_product(shape, Linear(own, shape.hidden_size, latent.keys_values + latent.rotated, False, precision))
    wide = heads * (latent.plain + latent.value)
    values = first_product(shape, Linear(rows, latent.keys_values, wide, False, precision, kept_share=shape.kept_share))
    made: tuple[Operator, ...]
    if latent.queries:
        first = plain_product(shape, Linear(own, shape.hidden_size, latent.queries, False, precision))
        queries = Linear(rows, latent.queries, heads * latent.query, False, precision, kept_share=shape.kept_share)
        made = (
            on_the_sequence(SharedInput((first, small)), cut),
            _latent_norm(shape, own, latent.queries),
            column_parallel(first_product(shape, queries), cut),
        )
    else:
        queries = Linear(rows, shape.hidden_size, heads * latent.query, False, precision, kept_share=shape.kept_share)
        made = (column_parallel(first_product(shape, queries), cut), on_the_sequence(small, cut))
    turned = rotary(rows * (heads + 1) * latent.rotated, precision, fused=shape.fuses("rope"))
    chooses: tuple[Operator, ...] = ()
    core: tuple[Operator, ...]
    if latent.index:
        chooses, core = indexed_latent_attention(
            latent, latent.index, rows, heads, shape.hidden_size, cut, shape.context, precision
        )
    else:
        core = _latent_core(shape, latent)
    output = second_product(shape, Linear(rows, heads * latent.value, shape.hidden_size, False, precision))
    return (
        *chooses,
        *made,
        _latent_norm(shape, own, latent.keys_values),
        column_parallel(values, cut),
        turned,
        *core,
        row_parallel(output, cut),
    )


def _latent_core(shape: Shape, latent: Latent) -> tuple[Operator, ...]:
    """Fused attention of the rank's positions, or of all positions of a part of its heads."""
    context = shape.context
    by_heads = context.method == "ulysses" and context.ranks > 1
    rows, heads = (shape.whole_length, shape.heads // context.ranks) if by_heads else (shape.seq_length, shape.heads)
    core = FlashAttention(
        rows,
        heads,
        heads,
        latent.query,
        shape.dropout,
        True,
        shape.precision,
        causal=shape.causal,
        value_size=latent.value,
    )
    if by_heads:
        sizes = shape.seq_length, shape.heads, shape.heads, latent.query
        return positions_for_heads((core,), context, sizes, shape.precision, latent.value)
    return (cut_over(core, context, fused_sum=shape.fuses("block_sum")),)


def _latent_norm(shape: Shape, rows: int, features: int) -> Operator:
    norm = rms_norm(rows, features, shape.precision, fused=shape.fuses("rms_norm"))
    return on_the_sequence(norm, shape.cut)
