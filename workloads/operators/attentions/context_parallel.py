"""Context parallelism: attention of a rank that has a part of every sequence, by ring, by gathers or by all-to-alls.

*ring*: keys and values pass from rank to rank, beside the attention to the block before (`RingAttention`).
*all_gather*: keys and values are gathered from all ranks first (`GatheredAttention`). *ulysses*: all-to-alls around an
attention that has all positions of some heads (`positions_for_heads`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.operators.attentions.core_attention import FP32, TILE, FlashAttention, Range, scores
from clustersim.workloads.operators.by_coordinate import NO_KERNEL, by_coordinate
from clustersim.workloads.operators.elementwise import Elementwise
from clustersim.workloads.operators.operator import SHIFT, Exchange, Operator, Segment
from clustersim.workloads.operators.sharded import ShardedOperator


@dataclass(frozen=True, slots=True)
class ContextCut:
    """Sequences are cut over *ranks* ranks of the axis *over*, which attend by *method*; *zigzag*: their layout."""

    over: str = ""
    ranks: int = 1
    method: str = "ring"
    zigzag: bool = True


ALONE = ContextCut()
"""Every rank has whole sequences."""


def cut_over(attention: FlashAttention, context: ContextCut, *, fused_sum: bool = True) -> FlashAttention:
    """*attention* of one rank's positions as *context* has it: unchanged if the rank has whole sequences.

    *fused_sum*: as `RingAttention` has it.
    """
    if context.ranks == 1:
        return attention
    if context.method == "ring":
        return RingAttention(**vars(attention), context=context, fused_sum=fused_sum)
    return GatheredAttention(**vars(attention), context=context)


Pass = Literal["forward", "backward"]


@dataclass(frozen=True)
class ContextAttention(FlashAttention):
    """Flash attention of a rank with *length* positions, one of the ranks of *context*."""

    context: ContextCut = ALONE

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """The kernels of all segments."""
        return tuple(kernel for segment in self.segments("F", samples) for kernel in segment.kernels)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The kernels of all segments."""
        return tuple(kernel for segment in self.segments("I", samples) for kernel in segment.kernels)

    def segments(self, phase: str, samples: int) -> tuple[Segment, ...]:
        """As the method has them."""
        if phase == "W":
            return (Segment(()),)
        return self._passes("forward" if phase == "F" else "backward", samples)

    def _passes(self, which: Pass, samples: int) -> tuple[Segment, ...]:
        raise NotImplementedError

    def _keys_and_values(self, samples: int) -> float:
        """Bytes of the keys and values of one rank."""
        features = self.head_size + self.of_value
        return float(samples * self.length * self.key_value_heads * features * BYTES[self.precision])

    def _counted(self, scores: float) -> float:
        """Model FLOPs count all scores, twice as many as a causal mask leaves."""
        return scores * (2 if self.causal else 1)

    @property
    def _windowed(self) -> bool:
        return 0 < self.window < self.length * self.context.ranks

    def _scores_between(self, rows: Range, keys: Range) -> float:
        """The scores of positions *rows* of a whole sequence against positions *keys*."""
        return scores(self.documents, self.length * self.context.ranks, rows, keys, causal=self.causal)

    def _by_rank(self, kernel: Callable[[int], Kernel]) -> Kernel:
        return by_coordinate(self.context.over, [kernel(rank) for rank in range(self.context.ranks)])


BLOCK_SUM = Operation("sum of blocks", "elementwise", "attention")


@dataclass(frozen=True)
class RingAttention(ContextAttention):
    """A block of scores for each rank of the group; keys and values pass from rank to rank beside it.

    Backward, the blocks pass the other way, from the last that arrived to the rank's own, and their gradients with
    them: so a gradient is complete where its keys are, after as many hops (Transformer Engine, context_parallel.py,
    AttnFuncWithCPAndKVP2P). Results of blocks are added up in fp32, by one kernel or, forward and without *fused_sum*,
    by operators of torch: out - sigmoid(block_lse - lse) * (out - block_out) after a cast (torch,
    distributed/tensor/experimental/_attention.py, _SDPAMerger; zhuzilin/ring-flash-attention, utils.py).
    """

    fused_sum: bool = True

    def _passes(self, which: Pass, samples: int) -> tuple[Segment, ...]:
        """One segment for each block; all but the last forward, and all backward, exchange something."""
        last, nbytes = self.context.ranks - 1, self._keys_and_values(samples)
        made: list[Segment] = []
        for step in range(last + 1):
            # gradients of keys and values are sent from the second block on, keys and values up to the last but one
            forward = which == "forward"
            sent = (step < last) + (step > 0 and not forward)
            hop = Exchange(SHIFT, sent * nbytes, self.context.over, distance=1 if forward else -1)
            made.append(
                Segment(self._block_kernels(which, samples, step, step if forward else last - step), within=(hop,))
            )
        return tuple(made)

    def _block_kernels(self, which: Pass, samples: int, step: int, hops: int) -> tuple[Kernel, ...]:
        """The attention to the block of the rank *hops* before, and the sum of its results with those before."""

        def attend(rank: int) -> Kernel:
            rows, keys, found = self._hop(rank, hops)
            if not rows:
                return NO_KERNEL
            edges = 2 if self.documents else 1 if self.causal and hops == 0 else 0
            computed = max(1, min(keys, int(found) + edges * TILE // 2))
            return self.block(samples, which, rows, keys, computed, self._counted(found))

        def add(rank: int) -> Kernel:
            rows, keys, _ = self._hop(rank, hops)
            if not rows:
                return NO_KERNEL
            elements = self.heads * rows * self.of_value
            if which == "backward":
                both = self.head_size + self.of_value
                elements = self.heads * rows * self.head_size + self.key_value_heads * keys * both
            # apart: a cast, a difference, a product, a difference
            apart = which == "forward" and not self.fused_sum
            moved = BYTES[self.precision] + (9 if apart else 2) * FP32
            nbytes = samples * elements * moved
            return memory_bound(nbytes, precision=self.precision, launches=4 if apart else 1, operation=BLOCK_SUM)

        return (self._by_rank(attend), self._by_rank(add)) if step else (self._by_rank(attend),)

    def _hop(self, rank: int, hops: int) -> tuple[int, int, float]:
        """(rows, keys, scores of a row) that *rank* computes with the block of the rank *hops* before; 0 rows: none."""
        length, ranks = self.length, self.context.ranks
        owner = (rank - hops) % ranks
        if not self.context.zigzag:
            own, theirs = ((one * length, (one + 1) * length) for one in (rank, owner))
            found = self._scores_between(own, theirs) / length
            return (length, length, found) if found else (0, 0, 0.0)
        every = 0, length * ranks
        share = self._scores_between(every, every) / (every[1] ** 2 / (2 if self.causal else 1))
        if not self.causal:
            return length, length, length * share
        if hops == 0:
            return length, length, length / 2 * share
        # all queries see the early chunk of an earlier rank; the late chunk of queries sees all of a later rank
        rows, keys = (length, length // 2) if owner < rank else (length // 2, length)
        return rows, keys, keys * share


@dataclass(frozen=True)
class GatheredAttention(ContextAttention):
    """Every rank gathers all keys and values, again in the backward pass, and reduce-scatters their gradients.

    Transformer Engine, context_parallel.py, AttnFuncWithCPAndKVAllGather: one kernel for each chunk of queries.
    """

    def transient_bytes(self, phase: str, samples: int) -> float:
        """Backward, the gradients of all keys and values."""
        return 0.0 if phase == "F" else self.context.ranks * self._keys_and_values(samples)

    def _passes(self, which: Pass, samples: int) -> tuple[Segment, ...]:
        nbytes = self.context.ranks * self._keys_and_values(samples)
        gather = Exchange("all_gather", nbytes, self.context.over)
        scatter = Exchange("reduce_scatter", nbytes, self.context.over)
        chunks = 2 if self.context.zigzag and self.causal else 1
        kernels = tuple(self._by_rank(self._of_chunk(which, samples, chunk, chunks)) for chunk in range(chunks))
        return (Segment(kernels, before=(gather,), after=() if which == "forward" else (scatter,)),)

    def _of_chunk(self, which: Pass, samples: int, chunk: int, chunks: int) -> Callable[[int], Kernel]:
        """By rank, the kernel of its *chunk* of *chunks*."""
        rows, whole = self.length // chunks, self.length * self.context.ranks

        def kernel(rank: int) -> Kernel:
            first = rows * (chunks * self.context.ranks - 1 - rank if chunk else rank)
            found = self._mean_scores(first, rows)
            edges = 2 if self._windowed or (self.documents and not self.causal) else 1 if self.causal else 0
            keys = self._keys(first, rows) if self.causal else whole
            computed = min(keys, int(found) + edges * TILE // 2)
            return self.block(samples, which, rows, keys, computed, self._counted(found))

        return kernel

    def _mean_scores(self, first: int, rows: int) -> float:
        """Mean scores of the rows from *first* on, in their documents, or under a causal mask with a window."""
        if not self._windowed:
            own, before, after = (first, first + rows), (0, first), (first + rows, self.length * self.context.ranks)
            return sum(self._scores_between(own, keys) for keys in (own, before, after)) / rows
        end, window = first + rows, self.window
        growing = min(window, end) - min(window, first)
        return (growing * (min(window, first) + min(window, end)) / 2 + (rows - growing) * window) / rows

    def _keys(self, first: int, rows: int) -> int:
        return min(first + rows, rows + self.window) if self._windowed else first + rows


PACKING = Operation("packing by receiver", "elementwise", "attention")


def positions_for_heads(
    inner: tuple[Operator, ...],
    context: ContextCut,
    sizes: tuple[int, int, int, int],
    precision: str,
    value_size: int = 0,
) -> tuple[Operator, ...]:
    """*inner*, the attention of all positions of a part of the heads, with the all-to-alls around it.

    *sizes* of one rank before the exchange: positions, heads, key and value heads, head size. *value_size*: features of
    a value, 0: as many. There is an all-to-all
    for queries, for keys, for values and for the output, and the gradients go the other way. Each tensor is copied
    once in the order of its receivers (Transformer Engine, context_parallel.py, flash_attn_a2a_communicate).
    """
    length, heads, groups, head_size = sizes
    width, of_value = BYTES[precision], value_size or head_size
    queries, keys, values, output = (
        Exchange("all_to_all", float(length * features * width), context.over)
        for features in (heads * head_size, groups * head_size, groups * of_value, heads * of_value)
    )
    into, out = (queries, keys, values), (output,)
    first, *others = inner
    first = _around(first, "F", into, "I")
    *others, last = first, *others
    made = (*others, _around(last, "I", out, "F"))
    packed, unpacked = (
        Elementwise(length * features, 2 * width, 2 * width, precision=precision, operation=PACKING)
        for features in ((heads + groups) * head_size + groups * of_value, heads * of_value)
    )
    return (packed, *made, unpacked)


def _around(operator: Operator, before: str, exchanges: tuple[Exchange, ...], after: str) -> Operator:
    """*operator* with *exchanges* ahead of it in the phase *before*, and behind it in the phase *after*."""
    return ShardedOperator(
        operator,
        operator.tensors,
        before=tuple((before, one) for one in exchanges),
        after=tuple((after, one) for one in exchanges),
    )
