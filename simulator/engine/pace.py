"""A pace says how long the ops of a rank take where that is known beforehand: as priced, or varied op by op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from simulator.engine.braid import Braid, Pattern, braided
from simulator.engine.course import Floats, Known, Line, Played
from simulator.engine.issue import Run
from simulator.hashing import Indices


class Price(NamedTuple):
    """The *seconds* of an op, and the *share* of the GPU that it takes from what computes beside it."""

    seconds: float
    share: float = 0.0


Prices = Mapping[int, Sequence[Price]]
"""By `id` of a template: the prices of its ops."""


class Pace(Protocol):
    """How long the ops of a rank take."""

    def course(self, run: Run, first: int) -> Known:
        """What the ops of *run* take if nothing slows them down, where its block begins at the op numbered *first*.

        The ops of all steps are numbered on.
        """

    def alone(self, run: Run, firsts: Indices) -> Played:
        """When they run then, from the begin on, where the block begins at each of *firsts*: [blocks, ops]."""

    def seconds(self, run: Run, firsts: Indices) -> Floats:
        """How long each of them takes: [blocks, ops]."""

    def shares(self, run: Run) -> list[float]:
        """What each op beside *run* takes of the GPU."""


@dataclass
class Steady:
    """Every time that a run comes up it takes what *prices* say of its ops, times *slowdown* but for steady ones."""

    prices: Prices
    slowdown: float = 1.0
    _courses: dict[Run, Known] = field(default_factory=dict)

    def course(self, run: Run, first: int) -> Known:
        """The same everywhere."""
        course = self._courses.get(run)
        if course is None:
            course = self._courses[run] = _course(run.pattern, self._seconds(run), self.shares(run))
        return course

    def alone(self, run: Run, firsts: Indices) -> Played:
        """The same everywhere."""
        alone = self.course(run, 0).alone
        return Played(*(np.broadcast_to(times, (len(firsts), len(times))) for times in alone))

    def seconds(self, run: Run, firsts: Indices) -> Floats:
        """The same everywhere."""
        return np.broadcast_to(self._seconds(run), (len(firsts), len(run.ops)))

    def shares(self, run: Run) -> list[float]:
        """As priced."""
        return _shares(run, self.prices)

    def _seconds(self, run: Run) -> list[float]:
        prices = self.prices[id(run.template)]
        return [
            prices[place].seconds * (1.0 if steady else self.slowdown)
            for place, steady in zip(run.ops, run.pattern.steady, strict=True)
        ]


@dataclass
class Varied:
    """Each op takes what *prices* say, times its own of *factors*, by number of op, step after step, if not steady."""

    prices: Prices
    factors: Floats

    def course(self, run: Run, first: int) -> Known:
        """As drawn for these ops."""
        (seconds,) = self.seconds(run, np.array([first])).tolist()
        return _course(run.pattern, seconds, self.shares(run))

    def alone(self, run: Run, firsts: Indices) -> Played:
        """As drawn for these ops."""
        seconds, starts = list(self.seconds(run, firsts).T), np.zeros(len(firsts))
        times = braided(run.pattern, [seconds], self.shares(run), [starts], most=np.maximum, least=np.minimum)
        return Played(*(np.stack(of[0], axis=-1) for of in times))

    def seconds(self, run: Run, firsts: Indices) -> Floats:
        """As drawn for these ops."""
        prices = self.prices[id(run.template)]
        priced = np.array([prices[place].seconds for place in run.ops])
        drawn = self.factors[firsts[:, None] + np.array(run.ops)]
        return np.where(run.pattern.steady, priced, priced * drawn)

    def shares(self, run: Run) -> list[float]:
        """As priced."""
        return _shares(run, self.prices)


def _shares(run: Run, prices: Prices) -> list[float]:
    return [prices[id(run.template)][place].share for place in run.ops[run.pattern.main :]]


def _course(pattern: Pattern, seconds: Sequence[float], shares: Sequence[float]) -> Known:
    return Braid(pattern, seconds, shares) if shares else Line(seconds, pattern.steady)
