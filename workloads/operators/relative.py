"""Relative positions: a learned bias of each pair of positions and head is added to the scores (T5).

Raffel et al. 2020, arXiv:1910.10683, section 2.1. Pairs fall into buckets by their distance. The first layer of a
stack holds the table of buckets and looks the bias up once for all layers (huggingface/transformers, modeling_t5.py,
``T5Attention.compute_bias``).
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.kernel import BYTES, Kernel, memory_bound
from workloads.operators.elementwise import Elementwise
from workloads.operators.operator import Operator
from workloads.operators.parameter import ParameterTensor, matrix


@dataclass(frozen=True)
class RelativePositionBias(Operator):
    """The bias of *length* x *length* pairs for *heads* heads, from a table of *buckets* rows; one for all samples."""

    length: int
    heads: int
    buckets: int
    precision: str = "fp32"

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """The table: a number for each bucket and head."""
        return (matrix(self.buckets, self.heads),)

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """Each number of the bias is read from the table and written."""
        return (memory_bound(2 * self._nbytes, precision=self.precision),)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The gradient of the bias is read and added into the table."""
        return (memory_bound(self._nbytes, precision=self.precision),)

    def kept_bytes(self, samples: int) -> float:
        """The bias, for all layers of the stack."""
        return self._nbytes

    @property
    def _nbytes(self) -> float:
        return float(self.heads * self.length**2 * BYTES[self.precision])


def biased_scores(length: int, heads: int, precision: str) -> Elementwise:
    """The bias added to the scores in place; backward their gradient is read and summed over the samples."""
    width = BYTES[precision]
    return Elementwise(heads * length**2, 2 * width, width, precision=precision)
