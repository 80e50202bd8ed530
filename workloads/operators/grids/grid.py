"""A grid is a way to cut a transformer over several axes of ranks at once.

Between two blocks, a rank holds some of the samples, and of these some of the hidden features. Within a block it holds
some of the columns: heads, or features of the feed-forward network. A grid says which axis cuts which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from workloads.operators.operator import Operator
from workloads.operators.parameter import ParameterTensor


@dataclass(frozen=True, slots=True)
class Side:
    """*ranks* ranks along the axis *over*."""

    over: str
    ranks: int = 1


@dataclass(frozen=True, kw_only=True)
class Grid(ABC):
    """*columns* and *features*: the side that cuts each. *samples*: the sides that divide the samples of a micro-batch.

    *copies*: the ranks that hold the same columns of the same samples, and compute the same between two products.
    *equal*: the axis with the ranks that hold the same output of a layer; "" if there is none.
    """

    columns: Side
    features: Side
    samples: Sequence[Side]
    copies: int = 1
    equal: str = ""

    @property
    def sample_shares(self) -> int:
        """The parts into which a micro-batch is divided."""
        return prod(side.ranks for side in self.samples)

    def summed(self, tensors: Iterable[ParameterTensor], *sides: Side) -> tuple[ParameterTensor, ...]:
        """*tensors* that every rank of *sides* has, with a gradient of its own samples or heads from each."""
        axes = tuple(side.over for side in sides if side.ranks > 1)
        return tuple(replace(tensor, reduced_over=(*axes, *tensor.reduced_over)) for tensor in tensors)

    def of_features(self, tensors: Iterable[ParameterTensor]) -> tuple[ParameterTensor, ...]:
        """A rank's part of *tensors* with an element for each hidden feature, such as those of norms."""
        own = (replace(tensor, count=ceil(tensor.count / self.features.ranks)) for tensor in tensors)
        return self.summed(own, *self.samples)

    @abstractmethod
    def first(self, product: Operator) -> Operator:
        """The first product of a block or the logits; it is given with all inputs and the columns of one rank."""

    @abstractmethod
    def second(self, product: Operator) -> Operator:
        """The second product of a block; it is given with the columns of one rank as inputs and with all outputs."""

    @abstractmethod
    def lookup(self, embedding: Operator) -> Operator:
        """An embedding; its first table is given with the rows of one column of ranks, and with all features."""
