"""Attention to keys and values that are gathered from all ranks first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.kernel import Kernel
from workloads.context.attention import ContextAttention, Pass
from workloads.operators.attention import TILE
from workloads.operators.segment import Exchange, Segment


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
