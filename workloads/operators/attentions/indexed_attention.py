"""Attention to the tokens that an indexer chooses, of latent vectors (DeepSeek-V3.2) or of blocks (MiniMax M3).

A chosen token is gathered once for all heads of a query, so latent attention runs on the small vectors themselves,
which all heads share: queries are multiplied by the matrix that would make keys, and results by that which would make
values (DeepSeek-AI 2025, "DeepSeek-V3.2", section 2.1, figure 2: "the MQA mode of MLA"). These two products have the
FLOPs of the one that makes keys and values, in whose place they stand.
"""

from __future__ import annotations

from typing import Literal

from clustersim.simulator.hardware.kernel import BYTES, EXECUTED, Kernel
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.operators.attentions.context_parallel import ContextCut
from clustersim.workloads.operators.attentions.core_attention import FP32, FlashAttention, Latent
from clustersim.workloads.operators.attentions.indexer import DetachedLinear, Index, IndexLoss, Selection
from clustersim.workloads.operators.elementwise import layer_norm, rotary
from clustersim.workloads.operators.operator import Exchange, Operator
from clustersim.workloads.operators.sharded import Cut, ShardedOperator, summed_over

ALL = Index(1, 1, 1)


@dataclass(frozen=True)
class IndexedLatentAttention(FlashAttention):
    """Fused attention of each position to the tokens that *index* chooses, of *head_size* features of all heads.

    *value_size* of the features of a key are its value. *whole*: positions of the sequence.
    """

    index: Index = ALL
    whole: int = 0

    def kept_bytes(self, samples: int) -> float:
        """Queries, the vectors of keys and values, and `recomputable_bytes`; the next product keeps the output."""
        features = (self.heads + 1) * self.head_size
        return samples * self.length * features * BYTES[self.precision] + self.recomputable_bytes(samples)

    def _kernel(self, samples: int, which: Literal["forward", "backward"]) -> Kernel:
        keys = self._keys()
        products, passes, depth = {
            "forward": (2, 1, self.head_size + self.value_size),
            "backward": (4, 2, 3 * self.head_size + 2 * self.value_size),
        }[which]
        rows, width, both = samples * self.length, BYTES[self.precision], self.head_size + self.value_size
        # half of the scores of a whole square are under the mask, and all of these count as model FLOPs
        flops = products * rows * self.heads * min(2 * keys, self.whole or self.length) * both
        moved = rows * (passes * (self.heads * both + keys * self.head_size) * width + self.heads * FP32)
        return Kernel(float(flops), moved, (rows, self.heads, keys, depth), self.precision, attention=which)

    def _keys(self) -> int:
        """The mean over the positions of the tokens to which one attends."""
        return self.index.keys(self.whole or self.length)


@dataclass(frozen=True)
class BlockIndexedAttention(FlashAttention):
    """Fused attention of grouped heads to the blocks of keys that *index* chooses for each group."""

    index: Index = ALL

    def _kernel(self, samples: int, which: Literal["forward", "backward"]) -> Kernel:
        keys = self.index.keys(self.length)
        group = max(1, self.heads // self.key_value_heads)
        rows, width = samples * self.length, BYTES[self.precision]
        products, passes = {"forward": (2, 2), "backward": (4, 4)}[which]
        flops = products * 2 * rows * self.heads * min(2 * keys, self.length) * self.head_size
        # a tile of queries shares the keys that it gathers
        gathered = rows * self.key_value_heads * keys * self.head_size * width / self.index.block
        moved = rows * (passes * self.heads * self.head_size * width + self.heads * FP32) + passes * gathered
        shape = (EXECUTED[which] * rows * self.key_value_heads, group, keys, self.head_size)
        return Kernel(float(flops), float(moved), shape, self.precision, attention=which)


def indexed_latent_attention(
    latent: Latent, index: Index, rows: int, heads: int, hidden: int, cut: Cut, context: ContextCut, precision: str
) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """The indexer of a layer, none if it takes the choice of the layer before; attention, and the indexer's loss.

    *heads*: of one tensor-parallel rank. The indexer takes *hidden* features, and latent queries if there are some.
    """
    whole, query = rows * context.ranks, latent.keys_values + latent.rotated
    attend = IndexedLatentAttention(
        rows, heads, heads, query, False, True, precision, causal=True, value_size=latent.keys_values, index=index,
        whole=whole,
    )  # fmt: skip
    core = _gathered(attend, rows * query, context, precision)
    if not index.chooses:
        return (), (core,)
    choose = Selection(index, rows, whole, precision, cut.ranks)
    loss = IndexLoss(index, rows, whole, heads, query, precision)
    width = index.head_size
    made = (
        DetachedLinear(rows, latent.queries or hidden, index.heads * width, False, precision, keeps_input=False),
        DetachedLinear(
            rows, hidden, width + index.heads, False, precision, splits=(width, index.heads), keeps_input=False
        ),
        layer_norm(rows, width, precision),
        rotary(rows * (index.heads + 1) * latent.rotated, precision),
    )
    # every rank has the same tensors, and computes the same gradients
    same = tuple(one if cut.ranks == 1 else ShardedOperator(one, summed_over(one.tensors, cut.over)) for one in made)
    summed = Exchange("all_reduce", float(rows * index.keys(whole) * FP32), cut.over)
    told = ShardedOperator(loss, (), before=(("F", summed),)) if cut.ranks > 1 else loss
    return (*same, _gathered(choose, rows * width, context, precision)), (core, told)


def _gathered(operator: Operator, elements: int, context: ContextCut, precision: str) -> Operator:
    """*operator* of a rank's positions against keys of all, *elements* of each rank, gathered in either pass."""
    if context.ranks == 1:
        return operator
    nbytes = float(context.ranks * elements * BYTES[precision])
    gather, scatter = (Exchange(kind, nbytes, context.over) for kind in ("all_gather", "reduce_scatter"))
    return ShardedOperator(operator, operator.tensors, (("F", gather), ("I", gather)), (("I", scatter),))
