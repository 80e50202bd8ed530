"""An ensemble is a group of ranks whose collectives nobody else disturbs: it plays its runs together, in one event.

Between two collectives the ranks of a tensor-parallel group go each its own way, one faster, one slower; at the next
one all wait for the last. Nothing from outside comes in before the run is over, so when the last rank has begun it, the
whole run is known: from its *knot* on, the first collective in the main line, all ends are so many seconds away,
whoever came when. That is worked out before (`simulator.engine.score`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from simpy import Environment

from simulator.engine.braid import braided
from simulator.engine.course import Floats, Played
from simulator.engine.issue import Run, Turn
from simulator.engine.pace import Pace
from simulator.engine.performance import Performance, Voice
from simulator.engine.score import Score
from simulator.hashing import Indices


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
        return Played(*(times[place, numbers] for times in self.score.expanded(self.number, run, self._expanded)))

    def _expanded(self, run: Run) -> Played:
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
