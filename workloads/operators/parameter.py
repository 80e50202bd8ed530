"""A parameter tensor: how many elements it has, and over which ranks its gradient is summed."""

from __future__ import annotations

from dataclasses import dataclass

REPLICAS = "dp"
"""The axis that joins the replicas of the model, on the mesh of every training step."""


@dataclass(frozen=True, slots=True)
class ParameterTensor:
    """*count* elements on one rank.

    *reduced_over*: the axes over which its gradient is summed, one reduction each, in this order. The last one is that
    of data parallelism. A joint reduction over several axes names their joint axis (`Mesh.joint`). *copy_bytes*: bytes
    of an element that a rank holds beside it all step, in fewer bits; below 0 if they take its place. *gathered_bytes*:
    those that ranks gather, if not in the precision of the model. *trainable*: false if it is frozen, so that it has
    neither a gradient nor optimizer states. *rows*: of a matrix, its first dimension, so that ``view(rows, -1)`` has
    two; 0 if it is none. *hidden*: it is a matrix between hidden features, neither an embedding nor that of the logits.
    """

    count: int
    reduced_over: tuple[str, ...] = (REPLICAS,)
    copy_bytes: float = 0.0
    gathered_bytes: float | None = None
    trainable: bool = True
    rows: int = 0
    hidden: bool = False

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return self.count // (self.rows or 1)

    def gathered(self, width: float) -> float:
        """Bytes of all its elements as ranks gather them; *width*: those of an element in the model's precision."""
        return self.count * (width if self.gathered_bytes is None else self.gathered_bytes)


def parameter_tensors(*counts: int) -> tuple[ParameterTensor, ...]:
    """A tensor for each of *counts*, its gradient summed over the replicas only.

    >>> parameter_tensors(768, 768)[0].count
    768
    """
    return tuple(map(ParameterTensor, counts))


def matrix(
    rows: int, columns: int, reduced_over: tuple[str, ...] = (REPLICAS,), *, hidden: bool = True, trainable: bool = True
) -> ParameterTensor:
    """A tensor with a first dimension of *rows*, and *columns* elements for each.

    >>> matrix(4096, 1024).count
    4194304
    """
    return ParameterTensor(rows * columns, reduced_over, trainable=trainable, rows=rows, hidden=hidden)
