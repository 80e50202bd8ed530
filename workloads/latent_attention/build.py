"""The attention of a layer with multi-head latent attention, as Megatron-LM runs it.

Megatron-LM, core/transformer/multi_latent_attention.py: every tensor-parallel rank makes the small vectors, with
sequence parallelism those of its shard of the sequence, which are then gathered in place of the hidden state. Products
from the small vectors are cut by heads.
"""

from __future__ import annotations

from workloads.latent_attention.operator import Latent, LatentAttention
from workloads.low_precision.products import first_product, plain_product, second_product
from workloads.operators.elementwise import rotary
from workloads.operators.fusion import fuses
from workloads.operators.linear import Linear
from workloads.operators.norm import rms_norm
from workloads.operators.operator import Operator
from workloads.operators.sharded import column_parallel, on_the_sequence, row_parallel
from workloads.operators.side_by_side import SharedInput
from workloads.shape import Shape


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
