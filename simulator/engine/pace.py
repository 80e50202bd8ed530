"""A pace says how long the ops of a rank take where that is known beforehand: as priced, or varied op by op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from simulator.engine.course import Braid, Course, Floats, Line
from simulator.engine.issue import Run, Turn


class Price(NamedTuple):
    """The *seconds* of an op, and the *share* of the GPU that it takes from what computes beside it."""

    seconds: float
    share: float = 0.0


Prices = Mapping[int, Sequence[Price]]
"""By `id` of a template: the prices of its ops."""


class Pace(Protocol):
    """How long the ops of a rank take."""

    def course(self, turn: Turn, step: int) -> Course:
        """What the ops of *turn* take in *step* if nothing slows them down."""


@dataclass
class Steady:
    """Every time that a run comes up it takes what *prices* say of its ops, times *slowdown* but for steady ones."""

    prices: Prices
    slowdown: float = 1.0
    _courses: dict[int, Course] = field(default_factory=dict)

    def course(self, turn: Turn, step: int) -> Course:
        """The same in every step."""
        run = turn.run
        course = self._courses.get(id(run))
        if course is None:
            priced = self.prices[id(run.template)]
            course = self._courses[id(run)] = _course(run, priced, [self.slowdown] * len(priced))
        return course


@dataclass
class Varied:
    """Each op takes what *prices* say, times its own of *factors*, by number of op, step after step, if not steady.

    *ops* is how many a step has.
    """

    prices: Prices
    factors: Floats
    ops: int

    def course(self, turn: Turn, step: int) -> Course:
        """As drawn for these ops of this step."""
        begin = step * self.ops + turn.first
        priced = self.prices[id(turn.run.template)]
        return _course(turn.run, priced, self.factors[begin : begin + len(priced)].tolist())


def _course(run: Run, prices: Sequence[Price], factors: Sequence[float]) -> Course:
    """*prices* and *factors* by place in the template."""
    seconds = [
        prices[place].seconds * (1.0 if steady else factors[place])
        for place, steady in zip(run.ops, run.steady, strict=True)
    ]
    if not run.beside:
        return Line(seconds, run.steady)
    shares = [prices[place].share for place in run.ops[-run.beside :]]
    return Braid(seconds, run.steady, shares, run.after)
