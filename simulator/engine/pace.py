"""A pace says how long the ops of a rank take where that is known beforehand: as priced, or varied op by op."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from simulator.engine.issue import Run, Turn

Floats = npt.NDArray[np.float64]

Prices = Mapping[int, Sequence[float]]
"""By `id` of a template: the seconds of its ops."""


class Leg(NamedTuple):
    """From *time* (s) on, with *work* seconds behind it, a course runs at *speed*."""

    time: float
    work: float
    speed: float


class Course:
    """Ops one after the other that alone take *seconds*, the *steady* ones at any speed.

    Work is counted in the seconds that it takes alone.
    """

    __slots__ = ("_at", "ends", "seconds", "steady")

    def __init__(self, seconds: Sequence[float], steady: Sequence[bool]) -> None:
        self.seconds, self.steady = seconds, steady
        self.ends = list(accumulate(seconds))
        self._at: dict[float, list[float]] = {1.0: self.ends}

    @property
    def total(self) -> float:
        """Seconds that all take alone."""
        return self.ends[-1]

    def left(self, work: float, speed: float) -> float:
        """Seconds that are left at *speed* when *work* is done."""
        return self.total - work if speed == 1.0 else max(0.0, self._times(speed)[-1] - self._time(work, speed))

    def done(self, work: float, speed: float, seconds: float) -> float:
        """The work that is done when *seconds* at *speed* follow *work*."""
        if speed == 1.0:
            return min(work + seconds, self.total)
        times = self._times(speed)
        time = self._time(work, speed) + seconds
        place = bisect_right(times, time)
        if place == len(times):
            return self.total
        before, begin = (times[place - 1], self.ends[place - 1]) if place else (0.0, 0.0)
        return begin + (time - before) * (1.0 if self.steady[place] else speed)

    def times(self, legs: Sequence[Leg]) -> Floats:
        """When each op ends, s, if the course is run in *legs*."""
        ends = np.array(self.ends)
        written = np.empty(len(ends))
        until = np.searchsorted(ends, [leg.work for leg in legs[1:]], "right")
        for leg, first, last in zip(legs, (0, *until), (*until, len(ends)), strict=True):
            times = np.array(self._times(leg.speed)[first:last])
            written[first:last] = leg.time + times - self._time(leg.work, leg.speed)
        return written

    def _times(self, speed: float) -> list[float]:
        """When each op ends, s, if all is run at *speed*."""
        if speed not in self._at:
            slowed = (s if steady else s / speed for s, steady in zip(self.seconds, self.steady, strict=True))
            self._at[speed] = list(accumulate(slowed))
        return self._at[speed]

    def _time(self, work: float, speed: float) -> float:
        """Seconds at *speed* until *work* is done."""
        place = bisect_right(self.ends, work)
        times = self._times(speed)
        if place == len(times):
            return times[-1]
        before, begin = (times[place - 1], self.ends[place - 1]) if place else (0.0, 0.0)
        return before + (work - begin) / (1.0 if self.steady[place] else speed)


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


def _course(run: Run, priced: Sequence[float], factors: Sequence[float]) -> Course:
    """*priced* and *factors* by place in the template."""
    seconds = [
        priced[place] * (1.0 if steady else factors[place]) for place, steady in zip(run.ops, run.steady, strict=True)
    ]
    return Course(seconds, run.steady)
