"""Tables that are looked up: the embedding of tokens and positions, and the bias of relative positions (T5).

Raffel et al. 2020, arXiv:1910.10683, section 2.1. Pairs fall into buckets by their distance. The first layer of a
stack holds the table of buckets and looks the bias up once for all layers (huggingface/transformers, modeling_t5.py,
``T5Attention.compute_bias``).
"""

from __future__ import annotations

from dataclasses import dataclass

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, memory_bound
from clustersim.workloads.operators.elementwise import Elementwise
from clustersim.workloads.operators.operator import Exchange, Operator
from clustersim.workloads.operators.parameter import ParameterTensor, matrix
from clustersim.workloads.operators.sharded import Cut, ShardedOperator

EMBEDDING = Operation("embedding", "embedding")


def embedding(tables: tuple[int, ...], positions: int, features: int, precision: str) -> Elementwise:
    """The vectors of *tables* (token, position, type: rows of each), added for each of *positions*."""
    elements, width, adds = positions * features, BYTES[precision], len(tables) - 1
    # backward: the dense gradient is set to zero, and each token's row is read, added to and written
    weights = width * (3 + sum(tables) * features / elements)
    return Elementwise(
        elements,
        width * (2 + 3 * adds),
        0.0,
        weights,
        parameters=tuple(matrix(rows, features, hidden=False) for rows in tables),
        launches=(1 + 2 * adds, 1),
        precision=precision,
        operation=EMBEDDING,
    )


def vocabulary_parallel_embedding(lookup: Elementwise, cut: Cut, nbytes: float) -> Operator:
    """A *lookup* where each rank holds some of the words, and adds zeros for the others; its output is *nbytes*.

    With sequence parallelism Megatron-LM scatters the sum at once only if no second table is added to all of it
    (LanguageModelEmbedding, reduce_scatter_embeddings). The gradient is gathered.
    """
    if cut.grid:
        return cut.grid.lookup(lookup)
    if cut.ranks == 1:
        return lookup
    scattered = cut.sequence and len(lookup.tensors) == 1
    summed = Exchange("reduce_scatter" if scattered else "all_reduce", nbytes, cut.over)
    gathered = (("I", Exchange("all_gather", nbytes, cut.over)),) if cut.sequence else ()
    return ShardedOperator(lookup, lookup.tensors, gathered, (("F", summed),))


RELATIVE_BIAS = Operation("relative position bias", "embedding")
BIASED = Operation("bias of scores", "elementwise", "attention")


@dataclass(frozen=True)
class RelativePositionBias(Operator):
    """The bias of *length* x *length* pairs for *heads* heads, from a table of *buckets* rows; one for all samples."""

    length: int
    heads: int
    buckets: int
    precision: str = "fp32"

    @property
    def operation(self) -> Operation:
        """The lookup."""
        return RELATIVE_BIAS

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
    return Elementwise(heads * length**2, 2 * width, width, precision=precision, operation=BIASED)
