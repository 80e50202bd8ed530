"""What a planner may vary: each parallelism names its keys and the values that are worth a try for a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Chosen = Mapping[str, Any]
"""The values chosen so far, by key."""

Given = Mapping[str, Any]
"""The section ``parallelism`` of the scenario, as it is written."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained where: *layers* of a model between its ends, a *batch* of samples, on *gpus*, *node* in a node.

    *given*: the section ``parallelism`` as it is written. *saves*: selective recomputation saves memory. *tokens* of a
    sample and *experts* of a layer, 0 if there are none. *overlaps*: the software can overlap tensor-parallel exchanges
    with products. *precisions*: values of that key that GPU and software have.
    """

    layers: int
    batch: int
    gpus: int
    node: int
    given: Given
    saves: bool = True
    tokens: int = 0
    experts: int = 0
    overlaps: bool = False
    precisions: Sequence[Any] = ("fp32",)


Choices = Callable[[Job, Chosen], Sequence[Any]]
"""The values of a key to try for a job, after those of earlier keys. If it is one value, there is nothing to choose."""


def divisors(number: int, most: int) -> list[int]:
    """Return the divisors of *number* up to *most*, ascending.

    >>> divisors(12, 6)
    [1, 2, 3, 4, 6]
    """
    return [one for one in range(1, min(number, most) + 1) if number % one == 0]
