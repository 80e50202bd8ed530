"""Cross attention (arXiv:1706.03762, 3.2.3), and the kinds that are made of it: `LowRank` and `MemoryAttention`.

Wang et al. 2020, "Linformer" (arXiv:2006.04768, section 4): K' = E K and V' = F V, with learned k x n matrices E and F
for each layer, shared by its heads. Scores are n x k. Each row of K' mixes all positions, so nothing can be masked.

Lee et al. 2019, "Set Transformer" (arXiv:1810.00825, section 3.1): induced set attention, 2 n m scores for each head.
The vectors that the memory makes are keys and values of the second attention as they are; the paper's products and
feed-forward network for the m vectors are left out. A memory sees all positions, so nothing can be masked.
"""

from __future__ import annotations

from typing import Literal

from clustersim.simulator.hardware.kernel import BYTES, Kernel, matmul
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.operators.attentions.core_attention import AttentionKind, CoreAttention, FlashAttention, Sizes
from clustersim.workloads.operators.operator import REPLICAS, Operator, ParameterTensor, parameter_tensors


@dataclass(frozen=True)
class CrossAttention(CoreAttention):
    """Core attention of *length* queries to *keys* positions, by several kernels."""

    keys: int = 0

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """As self-attention: gradients of probabilities, values, queries and keys, and of the kernels between them."""
        into_keys = matmul(self.keys, self.head_size, self.length, batch=samples * self.heads, precision=self.precision)
        return (*self._scores(samples), into_keys, *self._between(samples, 1), *self._context(samples), into_keys)

    def kept_bytes(self, samples: int) -> float:
        """Queries, keys, values and `recomputable_bytes`."""
        rows = self.length * self.heads + 2 * self.keys * self.key_value_heads
        return samples * rows * self.head_size * BYTES[self.precision] + self.recomputable_bytes(samples)

    def recomputable_bytes(self, samples: int) -> float:
        """What is kept for each score, as in self-attention."""
        return super().recomputable_bytes(samples) * self.keys / self.length

    def _scores(self, samples: int) -> tuple[Kernel, ...]:
        return (self._product(samples, self.keys, self.head_size),)

    def _context(self, samples: int) -> tuple[Kernel, ...]:
        return (self._product(samples, self.head_size, self.keys),)

    def _scored(self, samples: int) -> int:
        return samples * self.heads * self.length * self.keys


@dataclass(frozen=True)
class FlashCrossAttention(FlashAttention):
    """Core attention of *length* queries to *keys* positions, tile by tile; nothing is masked."""

    causal: bool = False
    keys: int = 0

    def kept_bytes(self, samples: int) -> float:
        """Queries, keys, values and the statistics."""
        rows = self.length * self.heads + 2 * self.keys * self.key_value_heads
        return samples * rows * self.head_size * BYTES[self.precision] + self.recomputable_bytes(samples)

    def _kernel(self, samples: int, which: Literal["forward", "backward"]) -> Kernel:
        return self.block(samples, which, self.length, self.keys, self.keys, self.keys)


@dataclass(frozen=True)
class LowRank(AttentionKind):
    """Keys and values of *rank* rows."""

    rank: int = 256
    name = "low_rank"
    masks = False

    def operators(self, sizes: Sizes) -> tuple[Operator, ...]:
        """The projections, and attention to what they make."""
        core = CrossAttention(
            sizes.length,
            sizes.heads,
            sizes.key_value_heads,
            sizes.head_size,
            sizes.drop,
            sizes.fused,
            sizes.precision,
            keys=self.rank,
        )
        return ProjectedKeys(sizes, self.rank), core


@dataclass(frozen=True)
class ProjectedKeys(Operator):
    """Keys and values of *rank* rows, from those of all positions; one product each."""

    sizes: Sizes
    rank: int

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """E and F. Ranks with other heads have the same ones, and sum their gradients."""
        axes = (self.sizes.over, REPLICAS) if self.sizes.ranks > 1 else (REPLICAS,)
        return (ParameterTensor(self.rank * self.sizes.length, axes, rows=self.rank, hidden=True),) * 2

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """E K and F V."""
        return (self._product(self.rank, self._features, self.sizes.length, samples),) * 2

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The gradients of V and K."""
        return (self._product(self.sizes.length, self._features, self.rank, samples),) * 2

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """The gradients of F and E, sums over the samples."""
        return (self._product(self.rank, self.sizes.length, samples * self._features, 1),) * 2

    def kept_bytes(self, samples: int) -> float:
        """Keys and values of all positions."""
        return float(2 * samples * self.sizes.length * self._features * self.sizes.width)

    @property
    def keeps_inputs(self) -> bool:
        """True."""
        return True

    def weight_bytes(self, samples: int) -> float:
        """Its inputs and the gradients of its outputs."""
        return self.kept_bytes(samples) * (1 + self.rank / self.sizes.length)

    @property
    def _features(self) -> int:
        return self.sizes.key_value_heads * self.sizes.head_size

    def _product(self, m: int, n: int, k: int, batch: int) -> Kernel:
        return matmul(m, n, k, batch=batch, precision=self.sizes.precision)


@dataclass(frozen=True)
class MemoryAttention(AttentionKind):
    """A memory of *tokens* vectors."""

    tokens: int = 64
    name = "memory"
    masks = False

    def operators(self, sizes: Sizes) -> tuple[Operator, ...]:
        """The attention of the memory, and the attention to it."""
        last = sizes.drop, sizes.fused, sizes.precision
        read = _Reading(self.tokens, sizes.heads, sizes.key_value_heads, sizes.head_size, *last, keys=sizes.length)
        return read, _Use(sizes.length, sizes.heads, sizes.heads, sizes.head_size, *last, keys=self.tokens)


@dataclass(frozen=True)
class _Reading(CrossAttention):
    """Attention of the memory to all positions; its queries are parameters."""

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """The queries of the heads of one rank."""
        return parameter_tensors(self._queries)

    def kept_bytes(self, samples: int) -> float:
        """Keys, values and what is kept for each score."""
        return super().kept_bytes(samples) - samples * self._queries * BYTES[self.precision]

    @property
    def _queries(self) -> int:
        return self.length * self.heads * self.head_size


@dataclass(frozen=True)
class _Use(CrossAttention):
    """Attention of all positions to the memory, which is keys and values at once."""

    def kept_bytes(self, samples: int) -> float:
        """Queries, the memory once, and what is kept for each score."""
        once = self.keys * self.heads * self.head_size
        return super().kept_bytes(samples) - samples * once * BYTES[self.precision]
