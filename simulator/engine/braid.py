"""A braid is what ranks do in one run: a line of ops each, beside it one of collectives; some of these tie the ranks.

A time is a float, s, or an array of them, where the same pattern is reckoned many times over.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import reduce
from math import inf
from typing import Any, NamedTuple

import numpy as np

from simulator.engine.course import Played

Time = Any
"""float, or an array of float."""

Most = Callable[[Time, Time], Time]


class Pattern(NamedTuple):
    """How the ops of a run hang together.

    The first *main* of them stand in line, the others, collectives, in a line beside it; *after*: by op the places of
    ops of the other line that it waits for. *steady* ones take their time at any speed of the GPU. *tied* ones begin
    when all ranks of the run have come to them.
    """

    main: int
    steady: tuple[bool, ...]
    tied: tuple[bool, ...]
    after: tuple[tuple[int, ...], ...]

    @property
    def knot(self) -> int | None:
        """The first tied op of the main line, where nothing beside it began before: from there on all go together."""
        first = self.tied.index(True) if any(self.tied) else None
        if first is None or first >= self.main:
            return None
        return first if all(self.behind(op) >= first for op in range(self.main, len(self.tied))) else None

    def behind(self, op: int) -> int:
        """The last op of the main line that *op*, beside it, waits for; -1 if none."""
        return max(self.after[op], default=-1)


class Times(NamedTuple):
    """By rank and op: when it headed its stream, began and ended."""

    ready: list[list[Time]]
    begin: list[list[Time]]
    end: list[list[Time]]


class Leg(NamedTuple):
    """From *time* (s) on a rank's GPU computes at *speed*, 1 if it has nothing else to do."""

    time: float
    speed: float


class Clock:
    """The time of a rank's own, which passes at the speed of its *legs*, the first of which begins it."""

    def __init__(self, legs: Sequence[Leg]) -> None:
        self.times, self.speeds = [leg.time for leg in legs], [leg.speed for leg in legs]
        self.owns = [self.times[0]]
        for place in range(1, len(legs)):
            passed = (self.times[place] - self.times[place - 1]) * self.speeds[place - 1]
            self.owns.append(self.owns[-1] + passed)

    def own(self, time: float) -> float:
        """What it shows at *time*."""
        place = max(0, bisect_right(self.times, time) - 1)
        return self.owns[place] + (time - self.times[place]) * self.speeds[place]

    def time(self, own: float) -> float:
        """When it shows *own*."""
        place = max(0, bisect_right(self.owns, own) - 1)
        return self.times[place] + (own - self.owns[place]) / self.speeds[place]


def braided(
    pattern: Pattern,
    seconds: Sequence[Sequence[Time]],
    shares: Sequence[float],
    starts: Sequence[Time],
    *,
    clocks: Sequence[Clock | None] | None = None,
    ties: Sequence[Time] | None = None,
    first: int = 0,
    most: Most = max,
    least: Most = min,
) -> Times:
    """When the ops of *pattern* run on ranks that begin it at *starts*, with the op *first* of the main line.

    *seconds* are what they take alone, by rank and op, *shares* what each op beside takes of the GPU from what
    computes. *clocks* tell at what speed a rank's GPU goes; without one it has it to itself. *ties* are the times when
    tied ops begin, in order of ops, where they are known; else the last rank to come says it.
    """
    return _Braiding(pattern, seconds, shares, starts, clocks, ties, most, least).done(first)


class _Braiding:
    def __init__(
        self,
        pattern: Pattern,
        seconds: Sequence[Sequence[Time]],
        shares: Sequence[float],
        starts: Sequence[Time],
        clocks: Sequence[Clock | None] | None,
        ties: Sequence[Time] | None,
        most: Most,
        least: Most,
    ) -> None:
        self.pattern, self.seconds, self.shares, self.most, self.least = pattern, seconds, shares, most, least
        self.starts, self.now, self.ranks = starts, list(starts), range(len(starts))
        self.clocks = clocks or [None] * len(starts)
        tied = [op for op, is_tied in enumerate(pattern.tied) if is_tied]
        self.known = dict(zip(tied, ties, strict=True)) if ties is not None else {}
        self.times = Times(*([[0.0] * len(pattern.steady) for _ in starts] for _ in range(3)))
        self.beside: list[int] = []

    def done(self, first: int) -> Times:
        pattern = self.pattern
        waiting = [op for op in range(pattern.main, len(pattern.steady)) if not first or pattern.behind(op) >= first]
        for op in range(first, pattern.main):
            while waiting and pattern.behind(waiting[0]) < op:
                self._beside(waiting.pop(0))
            self._main(op)
        return self.times

    def _main(self, op: int) -> None:
        pattern, times = self.pattern, self.times
        awaited = pattern.after[op]
        if awaited:
            for rank in self.ranks:
                self.now[rank] = reduce(self.most, [times.end[rank][other] for other in awaited], self.now[rank])
            self.beside = [other for other in self.beside if other > max(awaited)]
        self._begin(op, self.now)
        for rank in self.ranks:
            begin, seconds = times.begin[rank][op], self.seconds[rank][op]
            self.now[rank] = begin + seconds if pattern.steady[op] else self._computed(rank, begin, seconds)
            times.end[rank][op] = self.now[rank]

    def _beside(self, op: int) -> None:
        """An op beside begins behind all that it waits for, and behind the one before it."""
        times = self.times
        awaited = [*self.pattern.after[op], *([op - 1] if op > self.pattern.main else [])]
        came = [
            reduce(self.most, [times.end[rank][other] for other in awaited], self.starts[rank]) for rank in self.ranks
        ]
        self._begin(op, came)
        for rank in self.ranks:
            times.end[rank][op] = times.begin[rank][op] + self.seconds[rank][op]
        self.beside.append(op)

    def _begin(self, op: int, came: Sequence[Time]) -> None:
        begins = list(came)
        if self.pattern.tied[op]:
            together = self.known[op] if op in self.known else reduce(self.most, begins)
            begins = [together] * len(begins)
        for rank in self.ranks:
            self.times.ready[rank][op], self.times.begin[rank][op] = came[rank], begins[rank]

    def _computed(self, rank: int, begin: Time, seconds: Time) -> Time:
        """When a computation ends that begins at *begin*, with what stands beside it."""
        clock = self.clocks[rank]
        if not self.beside:
            return begin + seconds if clock is None else clock.time(clock.own(begin) + seconds)
        own: Callable[[Time], Time] = clock.own if clock else lambda time: time
        now, left = own(begin), seconds
        for op in self.beside:
            rest = 1.0 - self.shares[op - self.pattern.main]
            until = own(self.most(self.times.begin[rank][op], begin))
            free = self.least(left, self.most(until - now, 0.0))
            now, left = now + free, left - free
            until = own(self.most(self.times.end[rank][op], begin))
            slowed = self.least(left, self.most(until - now, 0.0) * rest)
            now, left = now + slowed / rest, left - slowed
        return clock.time(now + left) if clock else now + left


class Braid:
    """What one rank does in a run with ops beside: *seconds* and *shares* as `braided` takes them."""

    def __init__(self, pattern: Pattern, seconds: Sequence[float], shares: Sequence[float]) -> None:
        self.pattern, self.seconds, self.shares = pattern, seconds, shares
        self.alone = self.played(0.0, None)
        self.total = float(self.alone.end[pattern.main - 1])

    def play(self, hastened: Callable[[], None]) -> _BraidPlay:
        """Begin it."""
        return _BraidPlay(self)

    def played(self, start: float, clock: Clock | None) -> Played:
        """When its ops run from *start* on, by *clock*."""
        times = braided(self.pattern, [self.seconds], self.shares, [start], clocks=[clock])
        return Played(*(np.array(column[0]) for column in times))


class _BraidPlay:
    def __init__(self, braid: Braid) -> None:
        self.braid = braid
        self.legs: list[Leg] = []
        self._played: Played | None = None
        self._soonest = inf

    @property
    def undisturbed(self) -> bool:
        return len(self.legs) == 1 and self.legs[0].speed == 1.0

    def turn(self, now: float, speed: float) -> None:
        if not self.legs:
            self._soonest = now + self.braid.total
        self.legs.append(Leg(now, speed))
        self._played = None

    def end(self) -> float:
        begin, last = self.legs[0], self.legs[-1]
        if self.undisturbed:
            return begin.time + self.braid.total
        end = float(self.times().end[self.braid.pattern.main - 1])
        # what takes so long at this speed takes at least as long times it at full speed
        self._soonest = last.time + (end - last.time) * last.speed
        return end

    def soonest(self) -> float:
        return self._soonest

    def times(self) -> Played:
        if self._played is None:
            self._played = self.braid.played(self.legs[0].time, Clock(self.legs))
        return self._played
