"""An ensemble is a group of ranks whose collectives nobody else disturbs: it plays its runs together, in one event.

Between two collectives the ranks of a tensor-parallel group go each its own way, one faster, one slower; at the next
one all wait for the last. Nothing from outside comes in before the run is over, so when the last rank has begun it, the
whole run is known: from its *knot* on, the first collective in the main line, all ends are so many seconds away,
whoever came when. That is worked out before, for all turns of a run and for many groups at once (`Score`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import add
from typing import NamedTuple

import numpy as np
from simpy import Environment

from simulator.engine.braid import Clock, Leg, Times, braided
from simulator.engine.course import Floats, Played
from simulator.engine.issue import Issue, Run, Turn
from simulator.engine.pace import Pace
from simulator.hashing import Indices

ROWS = 1 << 14
"""Turns that are worked out at once: enough to make numpy quick, few enough to stay in the cache."""


class Part(NamedTuple):
    """One run as an ensemble plays it, by turn; s.

    *head*: [turns, ranks] from the begin of each rank to the knot; *rest*: [turns, ranks] from the knot to the end;
    *ties*: [turns, tied ops] from the knot to the begin of each tied op.
    """

    head: Floats
    rest: Floats
    ties: Floats


class Score:
    """The parts of all ensembles that play the program *issue* for so many *steps*."""

    def __init__(self, issue: Issue, steps: int) -> None:
        self.issue, self.steps = issue, steps
        self.paces: list[list[Pace]] = []
        self._parts: dict[Run, list[Part]] = {}
        self._expanded: tuple[Ensemble, dict[Run, Played]] | None = None

    def firsts(self, run: Run) -> Indices:
        """The number of the first op of each block in which *run* comes up, step after step."""
        steps = np.arange(self.steps) * self.issue.ops
        return np.asarray(np.add.outer(steps, self.issue.runs[run]).ravel())

    def part(self, run: Run, number: int) -> Part:
        """The part *run* of the ensemble *number*."""
        if run not in self._parts:
            firsts = self.firsts(run)
            many = max(1, ROWS // len(firsts))
            groups = [self.paces[begin : begin + many] for begin in range(0, len(self.paces), many)]
            self._parts[run] = [part for paces in groups for part in _parts(run, paces, firsts)]
        return self._parts[run][number]

    def expanded(self, ensemble: Ensemble, run: Run) -> Played:
        """What *ensemble* played; kept until another one is asked for, since its ranks are read one after the other."""
        if self._expanded is None or self._expanded[0] is not ensemble:
            self._expanded = ensemble, {}
        kept = self._expanded[1]
        if run not in kept:
            kept[run] = ensemble.expanded(run)
        return kept[run]


def _parts(run: Run, groups: Sequence[Sequence[Pace]], firsts: Indices) -> list[Part]:
    """The part *run* of each of *groups*."""
    pattern, knot = run.pattern, run.pattern.knot
    assert knot is not None
    # by rank and op: [groups * turns]
    seconds = [
        list(np.concatenate([pace.seconds(run, firsts) for pace in paces]).T.copy())
        for paces in zip(*groups, strict=True)
    ]
    starts = [np.zeros(len(groups) * len(firsts))] * len(seconds)
    shares = groups[0][0].shares(run)
    times = braided(pattern, seconds, shares, starts, first=knot, most=np.maximum, least=np.minimum)
    head = np.stack([sum(of[:knot], np.zeros_like(of[0])) for of in seconds], axis=-1)
    rest = np.stack([of[pattern.main - 1] for of in times.end], axis=-1)
    tied = [begin for begin, is_tied in zip(times.begin[0], pattern.tied, strict=True) if is_tied]
    whole = Part(head, rest, np.stack(tied, axis=-1))
    return [Part(*rows) for rows in zip(*(np.split(column, len(groups)) for column in whole), strict=True)]


class Ensemble:
    """A group of so many ranks that play what *score* holds."""

    def __init__(self, env: Environment, score: Score, size: int) -> None:
        self.env, self.score, self.size, self.number = env, score, size, len(score.paces)
        self.ranks: list[int] = []
        self.paces: list[Pace] = []
        score.paces.append(self.paces)
        self._under_way: dict[tuple[Run, int], Performance] = {}
        self._begun: dict[Run, Floats] = {}

    def join(self, rank: int, pace: Pace) -> Seat:
        """*rank* belongs to it and computes at *pace*."""
        self.ranks.append(rank)
        self.paces.append(pace)
        return Seat(self, len(self.ranks) - 1)

    def course(self, place: int, turn: Turn, step: int) -> Voice:
        """What the rank at *place* does in *turn*."""
        run = turn.run
        key = run, self.score.issue.number(turn, step)
        performance = self._under_way.get(key)
        if performance is None:
            first = step * self.score.issue.ops + turn.first
            performance = self._under_way[key] = Performance(self, run, key[1], first)
        if performance.enter() == 0:
            del self._under_way[key]
        return Voice(performance, place)

    def begun(self, run: Run, number: int, starts: Sequence[float], knot: float) -> None:
        """In the turn *number* of *run* the ranks began at *starts*, and its knot was tied at *knot*, s."""
        if run not in self._begun:
            self._begun[run] = np.zeros((self.score.steps * len(self.score.issue.runs[run]), self.size + 1))
        self._begun[run][number] = *starts, knot

    def played(self, place: int, run: Run, numbers: Indices) -> Played:
        """When the ops of the rank at *place* ran in the turns *numbers* of *run*, undisturbed."""
        return Played(*(times[place, numbers] for times in self.score.expanded(self, run)))

    def expanded(self, run: Run) -> Played:
        """When the ops of all ranks ran in all turns of *run*, as if undisturbed: [ranks, turns, ops]."""
        score, begun = self.score, self._begun[run]
        # all ranks and turns in one array, as ranks that nothing ties any more
        seconds = np.stack([pace.seconds(run, score.firsts(run)) for pace in self.paces])
        ties = np.tile(score.part(run, self.number).ties + begun[:, -1:], (self.size, 1))
        times = braided(
            run.pattern,
            [list(seconds.reshape(-1, len(run.ops)).T)],
            self.paces[0].shares(run),
            [begun[:, :-1].T.ravel()],
            ties=list(ties.T),
            most=np.maximum,
            least=np.minimum,
        )
        return Played(*(np.stack(of[0], axis=-1).reshape(seconds.shape) for of in times))


class Seat(NamedTuple):
    """The *place* of a rank in an *ensemble*."""

    ensemble: Ensemble
    place: int

    def course(self, turn: Turn, step: int) -> Voice:
        """What the rank does in *turn*."""
        return self.ensemble.course(self.place, turn, step)

    def played(self, run: Run, numbers: Indices) -> Played:
        """When its ops ran in the turns *numbers*, undisturbed."""
        return self.ensemble.played(self.place, run, numbers)


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
