"""Block-sparse attention: scores are computed in blocks, and only in those of a pattern.

Child et al. 2019, "Generating Long Sequences with Sparse Transformers" (arXiv:1904.10509): a position attends to those
of its own window and to the last *summary* positions of every other window. With windows of sqrt(c n) positions and a
summary of c, each of n rows has 2 sqrt(c n) scores: 2 sqrt(c) n^1.5 in all. Zaheer et al. 2020, "BigBird"
(arXiv:2007.14062), and Beltagy et al. 2020, "Longformer" (arXiv:2004.05150): a sliding window, random blocks, and
global positions that see all and are seen by all. The kernels are those of DeepSpeed (ops/sparse_attention): a product
with a sparse result, a softmax over blocks, and a product with a sparse operand; nothing is dropped out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, isqrt

import numpy as np

from simulator.kernel import Kernel, matmul, memory_bound
from workloads.operators.attentions.kind import AttentionKind, Sizes
from workloads.operators.operator import Operator


@dataclass(frozen=True)
class BlockSparse(AttentionKind):
    """The blocks of scores that are computed; sizes are positions, in whole blocks of *block* x *block*.

    *window*: positions of a window, 0: sqrt(summary x length). *summary*: the last positions of each window, which all
    positions see; windows then lie side by side, else each position is in the middle of its own. *fixed* (``global``):
    the first positions, which see all and are seen by all. *random*: further positions of each row. *density*: the
    share of all blocks, in place of these.
    """

    block: int = 64
    window: int = 0
    summary: int = 0
    fixed: int = 0
    random: int = 0
    density: float | None = None
    name = "sparse"

    def scores(self, length: int, *, masked: bool) -> int:
        """The scores of *length* positions of a head that are computed.

        >>> BlockSparse(window=256, summary=64).scores(4096, masked=False) / 4096
        1216.0
        """
        return _blocks(self, length, masked) * self.block**2

    def operators(self, sizes: Sizes) -> tuple[Operator, ...]:
        """One operator."""
        return (BlockSparseAttention(sizes, self),)


@lru_cache(maxsize=1024)
def _blocks(pattern: BlockSparse, length: int, masked: bool) -> int:
    """The blocks of all rows of blocks."""
    count, block = ceil(length / pattern.block), pattern.block
    rows = np.arange(count)
    visible = rows + 1 if masked else np.full(count, count)
    if pattern.density is not None:
        return min(int(visible.sum()), max(count, round(pattern.density * count**2)))
    window = pattern.window or isqrt(max(1, pattern.summary) * length)
    wide, first = max(1, ceil(window / block)), ceil(pattern.fixed / block)
    if pattern.summary:
        seen = _in_windows(rows, count, wide, min(wide, ceil(pattern.summary / block)), masked)
    else:
        begin = np.maximum(0, rows - wide // 2)
        seen = np.minimum(visible, rows + wide // 2 + 1) - begin + np.minimum(first, begin)
    seen = np.minimum(seen + ceil(pattern.random / block), visible)
    return int(np.where(rows < first, visible, seen).sum())


def _in_windows(
    rows: np.ndarray[tuple[int], np.dtype[np.int64]], count: int, wide: int, last: int, masked: bool
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Blocks of the own window of each row, and the *last* ones of all others, or of those before if *masked*."""
    begin = rows // wide * wide
    size = np.minimum(wide, count - begin)
    if masked:
        return rows - begin + 1 + rows // wide * last
    others = sum(min(last, count - start) for start in range(0, count, wide))
    return size + others - np.minimum(last, size)


@dataclass(frozen=True)
class BlockSparseAttention(Operator):
    """Attention of *sizes* over the blocks of *pattern*, by several kernels; the FLOPs are those of its blocks."""

    sizes: Sizes
    pattern: BlockSparse

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """Scores, softmax, context."""
        return self._into_scores(samples), self._over_scores(samples, 2), self._from_scores(samples)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """Gradients of probabilities and values, of the softmax, and of queries and keys."""
        into, out = self._into_scores(samples), self._from_scores(samples)
        return into, out, self._over_scores(samples, 3), out, out

    def kept_bytes(self, samples: int) -> float:
        """Queries, keys, values and probabilities."""
        return samples * self.sizes.inputs + self.recomputable_bytes(samples)

    def recomputable_forward(self, samples: int) -> tuple[Kernel, ...]:
        """All of it."""
        return self.forward(samples)

    def recomputable_bytes(self, samples: int) -> float:
        """Probabilities."""
        return float(samples * self._scores * self.sizes.width)

    @property
    def _scores(self) -> int:
        """Of all heads, for a sample."""
        return self.sizes.heads * self.pattern.scores(self.sizes.length, masked=self.sizes.masked)

    def _into_scores(self, samples: int) -> Kernel:
        """A product of two dense operands with a sparse result: each row of blocks has as many columns on average."""
        return self._product(samples, self._columns, self.sizes.head_size)

    def _from_scores(self, samples: int) -> Kernel:
        """A product of a sparse and a dense operand."""
        return self._product(samples, self.sizes.head_size, self._columns)

    def _product(self, samples: int, n: int, k: int) -> Kernel:
        sizes, block = self.sizes, self.pattern.block
        batch = samples * sizes.heads * ceil(sizes.length / block)
        made = matmul(block, n, k, batch=batch, precision=sizes.precision)
        dense = 2 * sizes.heads * sizes.length * sizes.head_size
        return Kernel(
            2.0 * samples * self._scores * sizes.head_size,
            float(samples * (dense + self._scores) * sizes.width),
            made.shape,
            sizes.precision,
            aligned=made.aligned,
        )

    @property
    def _columns(self) -> int:
        return ceil(
            self._scores / (self.sizes.heads * ceil(self.sizes.length / self.pattern.block) * self.pattern.block)
        )

    def _over_scores(self, samples: int, passes: int) -> Kernel:
        return memory_bound(passes * self.recomputable_bytes(samples), precision=self.sizes.precision)
