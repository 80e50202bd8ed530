"""The embedding looks up a vector for each token; its gradient is a sum into the rows of the table."""

from __future__ import annotations

from simulator.kernel import BYTES
from simulator.operation import Operation
from workloads.operators.elementwise import Elementwise
from workloads.operators.operator import Operator
from workloads.operators.parameter import matrix
from workloads.operators.segment import Exchange
from workloads.operators.sharded import Cut, ShardedOperator

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
