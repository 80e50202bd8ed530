"""A course is what the ops of a run take with the GPU to themselves; it is played at the speed that others leave."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Played(NamedTuple):
    """When each op headed its stream, began and ended, s."""

    ready: Floats
    begin: Floats
    end: Floats


class Play(Protocol):
    """A course under way; *undisturbed* if it has had the GPU to itself."""

    @property
    def undisturbed(self) -> bool: ...  # noqa: D102

    def turn(self, now: float, speed: float) -> None:
        """From *now* on it goes at *speed*, 1 if it has the GPU to itself."""

    def end(self) -> float:
        """When it ends if the speed stays, s."""

    def soonest(self) -> float:
        """A time before which it does not end, whatever happens, s; it takes no reckoning."""

    def times(self) -> Played:
        """When its ops ran, once it has ended."""


class Course(Protocol):
    """What a run takes on one rank."""

    def play(self, hastened: Callable[[], None]) -> Play:
        """Begin it; *hastened* is called where others may make it end sooner than it last said."""


class Known(Course, Protocol):
    """A course of which all is known when it begins: *total* is what it takes alone, s, *alone* when its ops run then.

    Their times count from its begin.
    """

    @property
    def total(self) -> float: ...  # noqa: D102

    @property
    def alone(self) -> Played: ...  # noqa: D102


class Line:
    """Ops one after the other that alone take *seconds*, the *steady* ones at any speed."""

    __slots__ = ("_at", "ends", "seconds", "steady")

    def __init__(self, seconds: Sequence[float], steady: Sequence[bool]) -> None:
        self.seconds, self.steady = seconds, steady
        self.ends = list(accumulate(seconds))
        self._at: dict[float, list[float]] = {1.0: self.ends}

    @property
    def total(self) -> float:
        """The sum of the seconds."""
        return self.ends[-1]

    @property
    def alone(self) -> Played:
        """Each begins as the one before it ends."""
        return _in_a_line(0.0, np.array(self.ends))

    def play(self, hastened: Callable[[], None]) -> Play:
        """Begin it."""
        return _LinePlay(self)

    def left(self, work: float, speed: float) -> float:
        """Seconds that are left at *speed* when *work*, counted in the seconds that it takes alone, is done."""
        return self.total - work if speed == 1.0 else max(0.0, self.at(speed)[-1] - self.time(work, speed))

    def done(self, work: float, speed: float, seconds: float) -> float:
        """The work that is done when *seconds* at *speed* follow *work*."""
        if speed == 1.0:
            return min(work + seconds, self.total)
        times = self.at(speed)
        time = self.time(work, speed) + seconds
        place = bisect_right(times, time)
        if place == len(times):
            return self.total
        before, begin = (times[place - 1], self.ends[place - 1]) if place else (0.0, 0.0)
        return begin + (time - before) * (1.0 if self.steady[place] else speed)

    def at(self, speed: float) -> list[float]:
        """When each op ends, s since the begin, if all is run at *speed*."""
        if speed not in self._at:
            slowed = (s if steady else s / speed for s, steady in zip(self.seconds, self.steady, strict=True))
            self._at[speed] = list(accumulate(slowed))
        return self._at[speed]

    def time(self, work: float, speed: float) -> float:
        """Seconds at *speed* until *work* is done."""
        place = bisect_right(self.ends, work)
        times = self.at(speed)
        if place == len(times):
            return times[-1]
        before, begin = (times[place - 1], self.ends[place - 1]) if place else (0.0, 0.0)
        return before + (work - begin) / (1.0 if self.steady[place] else speed)


class _Leg(NamedTuple):
    """From *time* (s) on, with *work* behind it, a line goes at *speed*."""

    time: float
    work: float
    speed: float


@dataclass(slots=True)
class _LinePlay:
    line: Line
    legs: list[_Leg] = field(default_factory=list)

    @property
    def undisturbed(self) -> bool:
        return len(self.legs) == 1 and self.legs[0].speed == 1.0

    def turn(self, now: float, speed: float) -> None:
        work = 0.0
        if self.legs:
            last = self.legs[-1]
            work = self.line.done(last.work, last.speed, now - last.time)
        self.legs.append(_Leg(now, work, speed))

    def end(self) -> float:
        last = self.legs[-1]
        return last.time + self.line.left(last.work, last.speed)

    def soonest(self) -> float:
        return self.end()

    def times(self) -> Played:
        ends = np.array(self.line.ends)
        written = np.empty(len(ends))
        until = np.searchsorted(ends, [leg.work for leg in self.legs[1:]], "right")
        for leg, first, last in zip(self.legs, (0, *until), (*until, len(ends)), strict=True):
            times = np.array(self.line.at(leg.speed)[first:last])
            written[first:last] = leg.time + times - self.line.time(leg.work, leg.speed)
        return _in_a_line(self.legs[0].time, written)


def _in_a_line(begin: float, ends: Floats) -> Played:
    begins = np.concatenate(([begin], ends[:-1]))
    return Played(begins, begins, ends)
