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

    def block(
        self, samples: int, which: Literal["forward", "backward"], rows: int, keys: int, computed: int, counted: float
    ) -> Kernel:
        """Forward one product of either size; backward three of the size of queries and two of that of values."""
        both = self.head_size + self.value_size
        products, passes, depth = {
            "forward": (2, 1, both),
            "backward": (4, 2, 3 * self.head_size + 2 * self.value_size),
        }[which]
        flops = products * samples * self.heads * rows * counted * both
        nbytes = samples * self.heads * (passes * both * (rows + keys) * BYTES[self.precision] + rows * FP32)
        return Kernel(flops, nbytes, (samples * self.heads, rows, computed, depth), self.precision, attention=which)
