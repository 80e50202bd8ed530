"""Attention with a learned pattern: positions of similar queries and keys are sorted side by side by hashing.

Kitaev et al. 2020, "Reformer" (arXiv:2001.04451, section 2): in each of r rounds a random rotation hashes vectors to
n / c buckets, positions are sorted by bucket and cut into chunks of c, and a chunk attends to itself and to the one
before it: 2 c n r scores for each head. The rounds are summed, weighted by their softmax denominators. Reformer shares
queries and keys; here a layer has both, which are hashed and sorted apart (Daras et al. 2020, "SMYRF",
arXiv:2010.05315). Its reversible layers are not part of this. The kernels are those of an implementation in torch
(lucidrains/reformer-pytorch, ``LSHAttention``); no gradient passes the hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from simulator.kernel import Kernel, matmul, memory_bound
from workloads.operators.attentions.kind import AttentionKind, Sizes
from workloads.operators.operator import Operator

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
