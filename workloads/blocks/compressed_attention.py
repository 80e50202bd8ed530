"""Attention to a window and to compressed positions before it (DeepSeek-V4).

One vector of head_dim features is the key and the value of all heads. Of *compress_ratio* positions a gated sum makes
one; with an indexer a position attends to *index_topk* of these (CSA), else to all (HCA), and always to its window. The
product of the output is in groups: each makes o_lora_rank features of its heads (transformers,
src/transformers/models/deepseek_v4/modeling_deepseek_v4.py). The indexer is trained as in DeepSeek-V3.2
(`workloads.operators.attentions.indexer`).
"""

from __future__ import annotations

from collections.abc import Mapping

from clustersim.simulator.hardware.kernel import BYTES, Operation
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.quantities import Count, Index
from clustersim.simulator.reading.validation import Fault
from clustersim.workloads.blocks._block import Block, HiddenStates
from clustersim.workloads.operators.attentions import indexer
from clustersim.workloads.operators.attentions.indexed_attention import IndexedLatentAttention
from clustersim.workloads.operators.elementwise import Elementwise, rms_norm, rotary
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.operator import Operator, matrix, parameter_tensors
from clustersim.workloads.operators.sharded import ShardedOperator, column_parallel, on_the_sequence

COMPRESSION = Operation("compression of positions", "elementwise", "attention")


class CompressedAttention(Block):
    """Keys as in transformers' DeepseekV4Config."""

    num_heads: Count = 64
    """Heads."""
    head_dim: Count = 512
    """Features of a query, and of the key and value of all heads."""
    q_lora_rank: Count = 1024
    """Features of the vector from which queries are made."""
    o_groups: Count = 8
    """Groups of heads, each with a product of its own to o_lora_rank features."""
    o_lora_rank: Count = 1024
    """Features that a group of heads gives."""
    qk_rope_head_dim: Index = 64
    """Features of a head that are rotated."""
    window: Count = 128
    """Positions before each one that are not compressed."""
    compress_ratio: Index = 0
    """Positions that are compressed to one; 0: there is the window only."""
    index_topk: Index = 0
    """Compressed positions to which each one attends, which an indexer chooses; 0: all. Windows then overlap."""
    index_n_heads: Count = 64
    """Heads of the indexer."""
    index_head_dim: Count = 128
    """Features of a head of the indexer."""

    def counts(self, features: int) -> Mapping[str, int]:
        """Heads and groups."""
        if self.num_heads % self.o_groups:
            raise Fault("o_groups", f"{self.o_groups} does not divide num_heads = {self.num_heads}")
        if self.index_topk and not self.compress_ratio:
            raise Fault("index_topk", "chooses compressed positions; give compress_ratio too")
        return {"heads of compressed_attention": self.num_heads, "groups of compressed_attention": self.o_groups}

    def operators(self, hidden: HiddenStates) -> tuple[Operator, ...]:
        """Products, compression, the choice, the kernel, and the grouped product of one rank's heads."""
        heads, groups = self.num_heads // hidden.ranks, self.o_groups // hidden.ranks
        rows, precision, size = hidden.rows, hidden.precision, self.head_dim
        own = rows // hidden.cut.sequence_shards
        small = (
            Linear(own, hidden.features, self.q_lora_rank, False, precision),
            rms_norm(own, self.q_lora_rank, precision),
            Linear(own, hidden.features, size, False, precision),
            rms_norm(own, size, precision),
            *self._compressed(hidden, size),
        )
        queries = Linear(rows, self.q_lora_rank, heads * size, False, precision, kept_share=hidden.kept_share)
        inner = heads * size // groups
        grouped = Linear(rows * groups, inner, self.o_lora_rank, False, precision)
        chooses, loss = self._indexer(hidden, heads)
        return (
            *(on_the_sequence(one, hidden.cut) for one in small),
            *chooses,
            column_parallel(queries, hidden.cut),
            rotary(rows * (heads + 1) * self.qk_rope_head_dim, precision),
            self._core(hidden, heads),
            Elementwise(0, 0.0, 0.0, parameters=parameter_tensors(heads)),  # sinks
            *loss,
            ShardedOperator(grouped, (matrix(groups * self.o_lora_rank, inner),)),
            hidden.out_of(groups * self.o_lora_rank),
        )

    def _core(self, hidden: HiddenStates, heads: int) -> Operator:
        rows, size = hidden.rows, self.head_dim
        extra = 0
        if self.compress_ratio:
            length = max(1, rows // self.compress_ratio)
            extra = self._index(length).keys(length)
        near = indexer.Index(1, 1, self.window).keys(rows)
        sizes = rows, heads, heads, size, False, True, hidden.precision
        return CompressedCore(*sizes, value_size=size, whole=rows, keys=min(rows, near + extra))

    def _index(self, length: int) -> indexer.Index:
        return indexer.Index(self.index_n_heads, self.index_head_dim, self.index_topk or length)

    def _compressed(self, hidden: HiddenStates, size: int, *, detached: bool = False) -> tuple[Operator, ...]:
        """The products of values and gates, the sum of each window, and its norm; overlapping ones have two of each."""
        if not self.compress_ratio:
            return ()
        rows = hidden.rows // hidden.cut.sequence_shards
        width, kind = size * (2 if self.index_topk else 1), indexer.DetachedLinear if detached else Linear
        moved = 2.0 * BYTES[hidden.precision]
        positions = matrix(self.compress_ratio, width, hidden=False)
        product = kind(rows, hidden.features, 2 * width, False, hidden.precision, splits=(width, width))
        summed = Elementwise(
            rows * width,
            moved,
            2 * moved,
            kept=moved,
            parameters=(positions,),
            precision=hidden.precision,
            operation=COMPRESSION,
        )
        return product, summed, rms_norm(max(1, rows // self.compress_ratio), size, hidden.precision)

    def _indexer(self, hidden: HiddenStates, heads: int) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
        """What chooses compressed positions, whole on each rank, and its loss."""
        if not self.index_topk:
            return (), ()
        rows, precision, length = hidden.rows, hidden.precision, max(1, hidden.rows // self.compress_ratio)
        index, size = self._index(length), self.index_n_heads * self.index_head_dim
        made = (
            indexer.DetachedLinear(rows, self.q_lora_rank, size, False, precision, keeps_input=False),
            indexer.DetachedLinear(rows, hidden.features, self.index_n_heads, False, precision, keeps_input=False),
            *self._compressed(hidden, self.index_head_dim, detached=True),
            indexer.Selection(index, rows, length, precision, hidden.ranks),
        )
        return (
            tuple(on_the_sequence(one, hidden.cut) for one in made),
            (indexer.IndexLoss(index, rows, length, heads, self.head_dim, precision),),
        )


@dataclass(frozen=True)
class CompressedCore(IndexedLatentAttention):
    """Fused attention of each position to a mean of *keys* others."""

    keys: int = 0

    def _keys(self) -> int:
        return self.keys
