"""Attention with sizes of its own, for models whose layers have unequal ones.

Gemma 4 has wider heads without a product for values in the layers that see all positions; MiMo-V2 has other heads of
keys and values, and sinks, in layers with a window; Step 3.5 scales each head by a gate; MiniMax M3 attends to blocks
of keys that an indexer chooses in all layers but the first three (transformers, src/transformers/models/gemma4,
mimo_v2_flash, step3p7, minimax_m3_vl).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator

from clustersim.simulator.reading.quantities import Count, Flag, Index, number
from clustersim.simulator.reading.validation import Fault
from clustersim.workloads.blocks._block import Block, HiddenStates
from clustersim.workloads.operators.attentions import indexer
from clustersim.workloads.operators.attentions.context_parallel import ContextCut, cut_over
from clustersim.workloads.operators.attentions.core_attention import FlashAttention
from clustersim.workloads.operators.attentions.indexed_attention import BlockIndexedAttention
from clustersim.workloads.operators.elementwise import Elementwise, output_gate, rms_norm, rotary
from clustersim.workloads.operators.operator import Operator, fuses, parameter_tensors
from clustersim.workloads.operators.sharded import ShardedOperator, norm_of_heads, summed_over


class GroupedAttention(Block):
    """Grouped-query attention by a fused kernel."""

    num_heads: Count = 32
    """Heads of queries."""
    num_key_value_heads: Count = 8
    """Heads of keys and values; a divisor of num_heads."""
    head_dim: Count = 128
    """Features of a query and of a key."""
    value_head_dim: Count | None = None
    """Features of a value; by default head_dim."""
    window: Index = 0
    """Positions to which each one attends; 0: all before it."""
    sinks: Flag = False
    """Each head has a learned score that belongs to no position."""
    qk_norm: Flag = False
    """RMS norms of queries and keys, over the features of each head."""
    shared_key_value: Flag = False
    """Values are the keys before their norm: no product makes values."""
    output_gate: Literal["none", "head", "feature"] = "none"
    """A gate scales each head, or each feature, of what attention gives."""
    partial_rotary_factor: Annotated[float, BeforeValidator(number(0.0, 1.0))] = 1.0
    """Share of the features of a head that is rotated, 0 to 1."""
    index_block: Index = 0
    """Positions of a block of keys, which an indexer chooses; 0: there is no indexer."""
    index_topk: Count = 2048
    """Positions of the chosen blocks."""
    index_n_heads: Count = 4
    """Heads of the indexer."""
    index_head_dim: Count = 128
    """Features of a head of the indexer."""

    def counts(self, features: int) -> Mapping[str, int]:
        """Heads of queries."""
        if self.num_heads % self.num_key_value_heads:
            raise Fault(
                "num_key_value_heads", f"{self.num_key_value_heads} does not divide num_heads = {self.num_heads}"
            )
        if self.index_block and (self.window or self.value_head_dim not in (None, self.head_dim)):
            raise Fault("index_block", "is not modelled with a window, nor with values of another size than keys")
        return {"heads of grouped_attention": self.num_heads}

    def context_fault(self, hidden: HiddenStates, context: ContextCut) -> str:
        """Rings and gathers are made for keys that none chooses, and rings for no window."""
        if context.method == "ulysses":
            return "grouped_attention keeps its heads; take cp_method: all_gather or ring"
        if self.index_block:
            return "chosen keys and values are not exchanged yet"
        return "cp_method: ring computes whole blocks of scores, and it has a window; take all_gather" * (
            self.window > 0 and context.method == "ring"
        )

    def operators(self, hidden: HiddenStates) -> tuple[Operator, ...]:
        """Products, norms, rotation, the kernel, sinks and the gate of one rank's heads."""
        heads, groups = self.num_heads // hidden.ranks, max(1, self.num_key_value_heads // hidden.ranks)
        value = self.value_head_dim or self.head_dim
        queries, keys, values = heads * self.head_dim, groups * self.head_dim, groups * value
        gates = {"none": 0, "head": heads, "feature": heads * value}[self.output_gate]
        splits = tuple(filter(None, (queries, keys, 0 if self.shared_key_value else values, gates)))
        rotated = round(hidden.rows * (queries + keys) * self.partial_rotary_factor)
        gate = output_gate(hidden.rows * heads * value, hidden.precision, fused=fuses(hidden.fused, "swiglu"))
        score = Elementwise(0, 0.0, 0.0, parameters=parameter_tensors(heads))
        return (
            *self._indexer(hidden),
            hidden.into(sum(splits), splits=splits),
            *self._norms(hidden, heads, groups),
            *((rotary(rotated, hidden.precision, fused=fuses(hidden.fused, "rope")),) if rotated else ()),
            self._core(hidden, heads, groups, value),
            *(score,) * self.sinks,
            *(gate,) * bool(gates),
            hidden.out_of(heads * value),
        )

    def _norms(self, hidden: HiddenStates, heads: int, groups: int) -> tuple[Operator, ...]:
        fused = fuses(hidden.fused, "rms_norm")
        made = (rms_norm(hidden.rows * n, self.head_dim, hidden.precision, fused=fused) for n in (heads, groups))
        return tuple(norm_of_heads(norm, hidden.cut) for norm in made) if self.qk_norm else ()

    def _core(self, hidden: HiddenStates, heads: int, groups: int, value: int) -> Operator:
        sizes = hidden.rows, heads, groups, self.head_dim, False, True, hidden.precision
        if self.index_block:
            return BlockIndexedAttention(*sizes, index=self._index)
        core = FlashAttention(
            *sizes, causal=True, window=self.window, value_size=value if value != self.head_dim else 0
        )
        return cut_over(core, hidden.context, fused_sum=fuses(hidden.fused, "block_sum"))

    @property
    def _index(self) -> indexer.Index:
        return indexer.Index(self.index_n_heads, self.index_head_dim, self.index_topk, block=self.index_block)

    def _indexer(self, hidden: HiddenStates) -> tuple[Operator, ...]:
        """Queries, a key and their norms, by products of a detached input, and the choice; each rank has it whole."""
        if not self.index_block:
            return ()
        sizes = self.index_n_heads * self.index_head_dim, self.index_head_dim
        product = indexer.DetachedLinear(
            hidden.rows, hidden.features, sum(sizes), False, hidden.precision, splits=sizes, keeps_input=False
        )
        counts = self.index_n_heads, 1
        norms = (rms_norm(hidden.rows * count, self.index_head_dim, hidden.precision) for count in counts)
        made = (
            product,
            *norms,
            indexer.Selection(self._index, hidden.rows, hidden.rows, hidden.precision, hidden.ranks),
        )
        if hidden.ranks == 1:
            return made
        return tuple(ShardedOperator(one, summed_over(one.tensors, hidden.cut.over)) for one in made)
