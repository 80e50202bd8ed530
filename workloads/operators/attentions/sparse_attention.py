"""Attentions that compute a part of the scores: in blocks of a pattern, or among positions that hashing sorts together.

Child et al. 2019, "Generating Long Sequences with Sparse Transformers" (arXiv:1904.10509): a position attends to those
of its own window and to the last *summary* positions of every other window. With windows of sqrt(c n) positions and a
summary of c, each of n rows has 2 sqrt(c n) scores: 2 sqrt(c) n^1.5 in all. Zaheer et al. 2020, "BigBird"
(arXiv:2007.14062), and Beltagy et al. 2020, "Longformer" (arXiv:2004.05150): a sliding window, random blocks, and
global positions that see all and are seen by all. The kernels are those of DeepSpeed (ops/sparse_attention): a product
with a sparse result, a softmax over blocks, and a product with a sparse operand; nothing is dropped out.

Kitaev et al. 2020, "Reformer" (arXiv:2001.04451, section 2): in each of r rounds a random rotation hashes vectors to
n / c buckets, positions are sorted by bucket and cut into chunks of c, and a chunk attends to itself and to the one
before it: 2 c n r scores for each head. The rounds are summed, weighted by their softmax denominators. Reformer shares
queries and keys; here a layer has both, which are hashed and sorted apart (Daras et al. 2020, "SMYRF",
arXiv:2010.05315). Its reversible layers are not part of this. The kernels are those of an implementation in torch
(lucidrains/reformer-pytorch, ``LSHAttention``); no gradient passes the hash.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, isqrt

import numpy as np

from clustersim.simulator.hardware.kernel import Kernel, matmul, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.operators.attentions.core_attention import AttentionKind, Sizes
from clustersim.workloads.operators.operator import Operator


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


INDEX = 8
"""Bytes of a bucket or a position, an int64."""

SORT_PASSES = 8
"""Passes of a radix sort over keys of 64 bits, 8 bits each (NVIDIA CUB, ``DeviceRadixSort``)."""

FP32 = 4
"""Bytes of the softmax denominator of a row."""


@dataclass(frozen=True)
class Hashed(AttentionKind):
    """*rounds* of hashing, with chunks of *chunk* positions."""

    rounds: int = 4
    chunk: int = 64
    name = "lsh"

    def operators(self, sizes: Sizes) -> tuple[Operator, ...]:
        """One operator."""
        return (HashedAttention(sizes, self.rounds, self.chunk),)


@dataclass(frozen=True)
class HashedAttention(Operator):
    """Attention of *sizes* in *rounds*; the products count all 2 c scores of a row, masked or not."""

    sizes: Sizes
    rounds: int
    chunk: int

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """Hash, sort, gather, attention of chunks, order back, sum over rounds."""
        vectors = self._vectors(samples)
        return (
            *self._hash(samples),
            self._moved(2 * 3 * vectors, 3),
            self._into_scores(samples),
            self._moved(2 * self._scores(samples)),
            self._from_scores(samples),
            self._moved(2 * vectors),
            *self._summed(vectors, 1),
        )

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The same way back without the hash: four products, and sums of the gradients of all rounds."""
        vectors, into, out = self._vectors(samples), self._into_scores(samples), self._from_scores(samples)
        return (
            *self._summed(vectors, 2),
            self._moved(2 * vectors),
            into,
            out,
            self._moved(3 * self._scores(samples)),
            out,
            out,
            self._moved(3 * 3 * vectors, 3),
        )

    def kept_bytes(self, samples: int) -> float:
        """Of each round: sorted queries, keys and values, probabilities, the output, denominators, and both orders."""
        rows = samples * self.sizes.heads * self.sizes.length * self.rounds
        several = self.rounds > 1
        vectors = (3 + several) * self._vectors(samples)
        return (vectors + self._scores(samples)) * self.sizes.width + rows * (2 * INDEX + FP32 * several)

    def recomputable_forward(self, samples: int) -> tuple[Kernel, ...]:
        """All of it."""
        return self.forward(samples)

    def recomputable_bytes(self, samples: int) -> float:
        """All but queries, keys and values."""
        return self.kept_bytes(samples) - samples * self.sizes.inputs

    @property
    def _buckets(self) -> int:
        """An even number: half of them are the negative directions of the other half."""
        return max(2, 2 * ceil(self.sizes.length / self.chunk / 2))

    def _hash(self, samples: int) -> tuple[Kernel, ...]:
        """Rotations of queries and of keys, the largest component of each, and sorts: both orders, and one back."""
        sizes, made = self.sizes, list[Kernel]()
        for heads in sizes.heads, sizes.key_value_heads:
            outputs, rows = self.rounds * self._buckets // 2, samples * heads * sizes.length
            made.append(
                matmul(sizes.length, outputs, sizes.head_size, batch=samples * heads, precision=sizes.precision)
            )
            made.append(memory_bound(float(rows * (outputs * sizes.width + self.rounds * INDEX))))
        each = samples * sizes.heads * sizes.length * self.rounds * 2 * INDEX
        made += [memory_bound(2.0 * SORT_PASSES * each, launches=SORT_PASSES)] * 3
        return tuple(made)

    def _vectors(self, samples: int) -> int:
        """Elements of the queries of all rounds."""
        return samples * self.sizes.heads * self.sizes.length * self.sizes.head_size * self.rounds

    def _scores(self, samples: int) -> int:
        return samples * self.sizes.heads * self.rounds * self._chunks * self.chunk * 2 * self.chunk

    @property
    def _chunks(self) -> int:
        return ceil(self.sizes.length / self.chunk)

    def _into_scores(self, samples: int) -> Kernel:
        return self._product(samples, 2 * self.chunk, self.sizes.head_size)

    def _from_scores(self, samples: int) -> Kernel:
        return self._product(samples, self.sizes.head_size, 2 * self.chunk)

    def _product(self, samples: int, n: int, k: int) -> Kernel:
        batch = samples * self.sizes.heads * self.rounds * self._chunks
        return matmul(self.chunk, n, k, batch=batch, precision=self.sizes.precision)

    def _moved(self, elements: float, launches: int = 1) -> Kernel:
        return memory_bound(elements * self.sizes.width, precision=self.sizes.precision, launches=launches)

    def _summed(self, vectors: int, passes: int) -> tuple[Kernel, ...]:
        """The weighted sum of the outputs of all rounds, which reads them *passes* times; none for one round."""
        return (self._moved(passes * vectors + vectors / self.rounds),) if self.rounds > 1 else ()
