"""Ring attention: keys and values pass from rank to rank, beside the attention to the block before."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.kernel import BYTES, Kernel, memory_bound
from simulator.operation import Operation
from workloads.context.attention import ContextAttention, Pass
from workloads.operators.attention import FP32, TILE
from workloads.operators.by_coordinate import NO_KERNEL
from workloads.operators.segment import SHIFT, Exchange, Segment

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
            elements = self.heads * rows + (0 if which == "forward" else 2 * self.key_value_heads * keys)
            # apart: a cast, a difference, a product, a difference
            apart = which == "forward" and not self.fused_sum
            moved = BYTES[self.precision] + (9 if apart else 2) * FP32
            nbytes = samples * elements * self.head_size * moved
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
