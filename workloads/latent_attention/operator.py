"""Multi-head latent attention: keys and values of all heads are made from one small vector for each position.

DeepSeek-AI 2024, "DeepSeek-V2" (arXiv:2405.04434, section 2.1). A part of each query and key is rotated; the rotated
part of a key is one for all heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.kernel import BYTES, Kernel
from workloads.operators.attention import FP32, FlashAttention


@dataclass(frozen=True, slots=True)
class Latent:
    """Features of the vectors from which queries (*queries*, 0: from the hidden state) and keys and values are made.

    Of each head: *plain* and *rotated* features of queries and keys, *value* features of values.
    """

    queries: int
    keys_values: int
    plain: int
    rotated: int
    value: int

    @property
    def query(self) -> int:
        """Features of a query and of a key of one head."""
        return self.plain + self.rotated


@dataclass(frozen=True)
class LatentAttention(FlashAttention):
    """Fused attention with *value_size* features of a value, others than those of queries and keys (*head_size*)."""

    value_size: int = 0

    def kept_bytes(self, samples: int) -> float:
        """Queries, keys, values and `recomputable_bytes`."""
        features = self.heads * (2 * self.head_size + self.value_size)
        return samples * self.length * features * BYTES[self.precision] + self.recomputable_bytes(samples)

    def _kernel(
        self, samples: int, which: Literal["forward", "backward"], counted: int, executed: int, passes: int
    ) -> Kernel:
        """Forward one product of either size; backward three of the size of queries and two of that of values."""
        scores = self._scores_of_a_row()
        both = self.head_size + self.value_size
        depth = both if which == "forward" else 3 * self.head_size + 2 * self.value_size
        flops = counted * samples * self.heads * self.length**2 * both
        nbytes = samples * self.length * self.heads * (passes * both * BYTES[self.precision] + FP32)
        shape = (samples * self.heads, self.length, self._columns(scores), depth)
        return Kernel(flops, nbytes, shape, self.precision, attention=which)
