"""Cross attention: queries of the decoder, keys and values of the encoder's output (arXiv:1706.03762, 3.2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.kernel import BYTES, Kernel, matmul, memory_bound
from workloads.operators.attention import CoreAttention, FlashAttention


@dataclass(frozen=True)
class CrossAttention(CoreAttention):
    """Core attention of *length* queries to *keys* positions, by several kernels."""

    keys: int = 0

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """As self-attention: gradients of probabilities, values, queries and keys, and of the kernels between them."""
        soft = self._softmax(samples, 3, 7)
        drop = self._dropout(samples) if self.drop else ()
        into_keys = matmul(self.keys, self.head_size, self.length, batch=samples * self.heads, precision=self.precision)
        return (*self._scores(samples), into_keys, *drop, *soft, *self._context(samples), into_keys)

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

    def _over_scores(self, samples: int, each: float, launches: int) -> Kernel:
        nbytes = samples * self.heads * self.length * self.keys * each
        return memory_bound(nbytes, precision=self.precision, launches=launches)


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
