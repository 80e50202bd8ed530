"""A performance is one turn of a run that an ensemble plays; when the last of its ranks has begun, all ends are known.

Unless something slows a GPU down, they are read from the score. Else the run is reckoned anew, op by op.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from operator import add
from typing import TYPE_CHECKING

import numpy as np

from simulator.engine.braid import Clock, Leg, Times, braided
from simulator.engine.course import Played
from simulator.engine.issue import Run

if TYPE_CHECKING:
    from simulator.engine.ensemble import Ensemble


@dataclass(slots=True, eq=False)
class Performance:
    """One turn of *run*, the one *number* of the *ensemble*, in the block that begins at the op *first*.

    *came* are the ranks that have begun it; *smooth*: nothing has slowed any of them down.
    """

    ensemble: Ensemble
    run: Run
    number: int
    first: int
    smooth: bool = True
    missing: int = field(init=False)
    came: list[int] = field(default_factory=list)
    hastened: list[Callable[[], None] | None] = field(init=False)
    legs: list[list[Leg]] = field(init=False)
    _ends: list[float] | None = None
    _soonest: list[float] = field(init=False)
    _times: Times | None = None
    _seconds: list[list[float]] | None = None

    def __post_init__(self) -> None:
        size = self.missing = self.ensemble.size
        self.hastened = [None] * size
        self.legs = [[] for _ in range(size)]
        self._soonest = [inf] * size
        self.smooth = self.run.pattern.knot is not None

    def enter(self) -> int:
        """One more has been told what it does; how many have not."""
        self.missing -= 1
        return self.missing

    def turn(self, place: int, now: float, speed: float) -> None:
        """From *now* on the GPU of the rank at *place* goes at *speed*."""
        legs = self.legs[place]
        fresh, faster = not legs, bool(legs) and speed > legs[-1].speed
        legs.append(Leg(now, speed))
        if fresh:
            self.came.append(self.ensemble.ranks[place])
        if speed != 1.0:
            self.smooth = False
        self._ends = None
        if len(self.came) == self.ensemble.size and (fresh or faster):
            if fresh:
                self._reckon()
            for other, tell in enumerate(self.hastened):
                if other != place and tell is not None:
                    tell()

    def end(self, place: int) -> float:
        """When the rank at *place* ends if all speeds stay, once all have come, s."""
        return (self._ends or self._reckon())[place]

    def soonest(self, place: int) -> float:
        """A time before which the rank at *place* does not end, s: never as long as not all have come."""
        return self._soonest[place]

    def _reckon(self) -> list[float]:
        """The ends. At other speeds the rest takes at least as long as at those of now, times the least of them."""
        now, slowest = self.ensemble.env.now, min(legs[-1].speed for legs in self.legs)
        ends = self._ends = self._smoothly() if self.smooth else self._roughly()
        self._soonest = [now + (end - now) * slowest for end in ends]
        return ends

    def _smoothly(self) -> list[float]:
        part = self.ensemble.score.part(self.run, self.ensemble.number)
        starts = [legs[0].time for legs in self.legs]
        knot = max(map(add, starts, part.head[self.number].tolist()))
        self.ensemble.begun(self.run, self.number, starts, knot)
        return [knot + rest for rest in part.rest[self.number].tolist()]

    def _roughly(self) -> list[float]:
        self._times = self._reckoned()
        last = self.run.pattern.main - 1
        return [of[last] for of in self._times.end]

    def _reckoned(self) -> Times:
        if self._seconds is None:
            where = np.array([self.first])
            self._seconds = [pace.seconds(self.run, where)[0].tolist() for pace in self.ensemble.paces]
        clocks = [None if len(legs) == 1 and legs[0].speed == 1.0 else Clock(legs) for legs in self.legs]
        starts = [legs[0].time for legs in self.legs]
        shares = self.ensemble.paces[0].shares(self.run)
        return braided(self.run.pattern, self._seconds, shares, starts, clocks=clocks)

    def times(self, place: int) -> Played:
        """When the ops of the rank at *place* ran, once it has ended."""
        if self._times is None or self._ends is None:
            self._roughly()
        assert self._times is not None
        return Played(*(np.array(of[place]) for of in self._times))


@dataclass(slots=True, eq=False)
class Voice:
    """The rank at *place* in a *performance*: a course, and its play."""

    performance: Performance
    place: int

    @property
    def undisturbed(self) -> bool:
        """Whether nothing slowed the performance down."""
        return self.performance.smooth

    def play(self, hastened: Callable[[], None]) -> Voice:
        """Begin it."""
        self.performance.hastened[self.place] = hastened
        return self

    def turn(self, now: float, speed: float) -> None:
        """From *now* on it goes at *speed*."""
        self.performance.turn(self.place, now, speed)

    def end(self) -> float:
        """When it ends if the speeds stay, s."""
        return self.performance.end(self.place)

    def soonest(self) -> float:
        """A time before which it does not end, s."""
        return self.performance.soonest(self.place)

    def times(self) -> Played:
        """When its ops ran, once it has ended."""
        return self.performance.times(self.place)
