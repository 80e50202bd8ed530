"""Low-rank attention: keys and values are projected along the sequence, from n positions to k.

Wang et al. 2020, "Linformer" (arXiv:2006.04768, section 4): K' = E K and V' = F V, with learned k x n matrices E and F
for each layer, shared by its heads. Scores are n x k. Each row of K' mixes all positions, so nothing can be masked.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.kernel import Kernel, matmul
from workloads.operators.attentions.cross import CrossAttention
from workloads.operators.attentions.kind import AttentionKind, Sizes
from workloads.operators.operator import Operator
from workloads.operators.parameter import REPLICAS, ParameterTensor


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
