"""Attention by way of a memory: m learned vectors attend to all n positions, and these attend to the memory.

Lee et al. 2019, "Set Transformer" (arXiv:1810.00825, section 3.1): induced set attention, 2 n m scores for each head.
The vectors that the memory makes are keys and values of the second attention as they are; the paper's products and
feed-forward network for the m vectors are left out. A memory sees all positions, so nothing can be masked.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.kernel import BYTES
from workloads.operators.attentions.cross import CrossAttention
from workloads.operators.attentions.kind import AttentionKind, Sizes
from workloads.operators.operator import Operator
from workloads.operators.parameter import ParameterTensor, parameter_tensors


@dataclass(frozen=True)
class Memory(AttentionKind):
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
