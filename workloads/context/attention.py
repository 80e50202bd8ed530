"""Flash attention of a rank that has a part of every sequence: what its methods have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from simulator.kernel import BYTES, Kernel
from workloads.context.cut import ALONE, Context
from workloads.operators.attention import FlashAttention
from workloads.operators.by_coordinate import by_coordinate
from workloads.operators.documents import Range, scores
from workloads.operators.segment import Segment

Pass = Literal["forward", "backward"]


@dataclass(frozen=True)
class ContextAttention(FlashAttention):
    """Flash attention of a rank with *length* positions, one of the ranks of *context*."""

    context: Context = ALONE

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
        return float(2 * samples * self.length * self.key_value_heads * self.head_size * BYTES[self.precision])

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
