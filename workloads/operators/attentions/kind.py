"""A kind of core attention: from the sizes of one rank to operators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from simulator.kernel import BYTES
from workloads.operators.operator import Operator


@dataclass(frozen=True, slots=True)
class Sizes:
    """Core attention of one rank: *heads* of *head_size* over *length* positions.

    *masked*: a position sees those before it only. *drop*: probabilities are dropped out. *fused*: so is the softmax of
    several kernels. *over*, *ranks*: the tensor-parallel ranks that have other heads of the same positions.
    """

    length: int
    heads: int
    key_value_heads: int
    head_size: int
    masked: bool = False
    drop: bool = False
    fused: bool = True
    precision: str = "fp32"
    over: str = ""
    ranks: int = 1

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return BYTES[self.precision]

    @property
    def inputs(self) -> float:
        """Bytes of queries, keys and values of a sample."""
        return float(self.length * self.head_size * (self.heads + 2 * self.key_value_heads) * self.width)


class AttentionKind(ABC):
    """A kind with its own parameters. *name* is the word in a scenario."""

    name: str
    masks = True
    """Whether it can hide later positions from a position."""

    @abstractmethod
    def operators(self, sizes: Sizes) -> tuple[Operator, ...]:
        """The operators between the product that makes queries, keys and values and that which makes the output."""

    def __str__(self) -> str:
        return self.name
