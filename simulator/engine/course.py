"""A course is what the ops of a run take with the GPU to themselves; it is played at the speed that others leave."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
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

    def times(self) -> Played:
        """When its ops ran, once it has ended."""


class Course(Protocol):
    """*total* is what a run takes alone, s; *alone* when its ops run, s since it began."""

    @property
    def total(self) -> float: ...  # noqa: D102

    @property
    def alone(self) -> Played: ...  # noqa: D102

    def play(self) -> Play:
        """Begin it."""


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

    def play(self) -> Play:
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


class Braid:
    """A line of ops, and beside it a second one of collectives, which begin behind an op of the first that they await.

    *seconds*, *steady* are of the ops of the first line, then of those of the second, *beside* in number; each of those
    takes its one of *shares* of the GPU from what computes. *after*: by op the places of ops of the other line that it
    waits for. The first line ends last.
    """

    def __init__(
        self,
        seconds: Sequence[float],
        steady: Sequence[bool],
        shares: Sequence[float],
        after: Sequence[Sequence[int]],
    ) -> None:
        self.seconds, self.steady, self.shares, self.after = seconds, steady, shares, after
        self.main = len(seconds) - len(shares)
        first = _BraidPlay(self)
        first.turn(0.0, 1.0)
        first.turn(0.0, 1.0)
        self.alone = first.times()
        self.total = first.now

    def play(self) -> Play:
        """Begin it."""
        return _BraidPlay(self)


class _BraidPlay:
    """The heads of both lines and what is left of each, at the time *now*."""

    def __init__(self, braid: Braid) -> None:
        self.braid = braid
        self.heads = [0, braid.main]
        self.left: list[float | None] = [None, None]
        self.began = self.now = self.speed = 0.0
        self.fresh: bool | None = None  # whether it was set going once, at full speed
        self.begun: dict[int, float] = {}
        self.ended: dict[int, float] = {}

    @property
    def undisturbed(self) -> bool:
        return bool(self.fresh)

    def turn(self, now: float, speed: float) -> None:
        if self.fresh is None:
            self.began = self.now = now
            self.fresh = speed == 1.0
        else:
            self.advance(now)
            self.fresh = False
        self.speed = speed

    def end(self) -> float:
        if self.fresh:
            return self.began + self.braid.total
        rest = copy(self)
        rest.heads, rest.left, rest.begun, rest.ended = [*self.heads], [*self.left], {}, dict(self.ended)
        rest.advance(inf)
        return rest.now

    def times(self) -> Played:
        if self.fresh:
            return Played(*(self.began + times for times in self.braid.alone))
        self.advance(inf)
        begins, ends = ([of[op] for op in range(len(self.braid.seconds))] for of in (self.begun, self.ended))
        return Played(np.array(begins), np.array(begins), np.array(ends))

    def advance(self, until: float) -> None:
        """Go on to the time *until*, or to the end."""
        while self.now < until and (self._begin(0) | self._begin(1)):
            speeds = self.speed * (1.0 - self._taken()), 1.0
            if self.heads[0] < self.braid.main and self.braid.steady[self.heads[0]]:
                speeds = 1.0, 1.0
            ends = [inf if left is None else self.now + left / speeds[line] for line, left in enumerate(self.left)]
            moment = min(*ends, until)
            for line, left in enumerate(self.left):
                if left is None:
                    continue
                self.left[line] = left - (moment - self.now) * speeds[line]
                if ends[line] <= moment:
                    self.ended[self.heads[line]] = moment
                    self.heads[line] += 1
                    self.left[line] = None
            self.now = moment

    def _begin(self, line: int) -> bool:
        """Whether the head of *line* runs; it begins now if it can."""
        braid, head = self.braid, self.heads[line]
        if self.left[line] is None:
            if head == (braid.main, len(braid.seconds))[line] or any(op not in self.ended for op in braid.after[head]):
                return False
            self.left[line] = braid.seconds[head]
            self.begun[head] = self.now
        return True

    def _taken(self) -> float:
        """The share of the GPU that the collective under way takes."""
        return 0.0 if self.left[1] is None else self.braid.shares[self.heads[1] - self.braid.main]
