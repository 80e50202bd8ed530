"""What a rank writes down while it runs is one line for each run of ops; read, it becomes a record for each op."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from simulator.engine.course import Floats, Play, Played
from simulator.engine.issue import Issue, Run, Turn
from simulator.hashing import Indices
from simulator.timeline import Columns

Undisturbed = Callable[[Run, Indices, Floats], Played]
"""(run, numbers of its turns, when they began) -> when its ops ran, [turns, ops], where nothing slowed them down."""


@dataclass(slots=True)
class _Lines:
    """Of one run the turns, one after the other: nth of its step, step, begin in s; of some the *plays*, by place."""

    turns: array[float] = field(default_factory=lambda: array("d"))
    plays: dict[int, Play] = field(default_factory=dict)


class Writing:
    """The lines of a rank that issues *issue*; *undisturbed* expands those of runs that had the GPU to themselves.

    Numbers stand in arrays: a large simulation writes millions of lines, and as objects they would fill the memory.
    """

    def __init__(self, issue: Issue, undisturbed: Undisturbed) -> None:
        self.count = 0
        self._issue, self._undisturbed = issue, undisturbed
        self._computed: dict[Run, _Lines] = {}
        self._met = array("d")

    def met(self, turn: Turn, step: int, ready: float, began: float, end: float) -> None:
        """The communication of *turn* waited from *ready*, began and ended, s."""
        self.count += 1
        self._met.extend((turn.first + turn.run.last, step, ready, began, end))

    def computed(self, turn: Turn, step: int, begin: float, play: Play | None = None) -> None:
        """The ops of *turn* ran from *begin* (s), undisturbed unless *play* tells."""
        run = turn.run
        self.count += len(run.ops)
        lines = self._computed.get(run)
        if lines is None:
            lines = self._computed[run] = _Lines()
        if play is not None:
            lines.plays[len(lines.turns) // 3] = play
        lines.turns.extend((turn.nth, step, begin))

    def columns(self) -> Columns:
        """All records, by end, then begin, then op."""
        met = np.frombuffer(self._met).reshape(-1, 5).T
        runs = [self._records(run, lines) for run, lines in self._computed.items()]
        parts = [(met[0].astype(np.int64), met[1].astype(np.int64), *met[2:]), *(run[:5] for run in runs)]
        op, step, ready, begin, end = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((op, begin, end))
        return Columns(op[order], step[order], ready[order], begin[order], end[order], np.full(len(op), -1))

    def _records(self, run: Run, lines: _Lines) -> Columns:
        """The ops of *lines*, which all are of *run*."""
        nth, step, began = np.frombuffer(lines.turns).reshape(-1, 3).T
        firsts = np.array(self._issue.runs[run])
        numbers = (nth + step * len(firsts)).astype(np.int64)
        first = firsts[nth.astype(np.int64)]
        ready, begin, end = times = np.empty((3, len(numbers), len(run.ops)))
        for place, play in lines.plays.items():
            times[:, place] = play.times()
        quiet = np.delete(np.arange(len(numbers)), list(lines.plays))
        if len(quiet):
            times[:, quiet] = self._undisturbed(run, numbers[quiet], began[quiet])
        op = (first[:, None] + np.array(run.ops, np.int64)).ravel()
        return Columns(
            op, np.repeat(step.astype(np.int64), len(run.ops)), ready.ravel(), begin.ravel(), end.ravel(), op
        )
