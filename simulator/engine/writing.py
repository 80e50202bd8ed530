"""What a rank writes down while it runs is one line for each run of ops; read, it becomes a record for each op."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from simulator.engine.course import Play, Played
from simulator.engine.issue import Run, Turn
from simulator.timeline import Columns

Undisturbed = Callable[[Run, Sequence["Line"]], Played]
"""(run, lines) -> when its ops ran, [lines, ops], where nothing slowed them down."""


class Line(NamedTuple):
    """A run, in its *turn* of a *step*, ran from *begin* (s), undisturbed unless *play* tells."""

    turn: Turn
    step: int
    begin: float
    play: Play | None


class Writing:
    """The lines of a rank; *undisturbed* expands them."""

    def __init__(self, undisturbed: Undisturbed) -> None:
        self.count = 0
        self._undisturbed = undisturbed
        self._computed: dict[Run, list[Line]] = {}
        self._met = array("d")

    def met(self, turn: Turn, step: int, ready: float, began: float, end: float) -> None:
        """The communication of *turn* waited from *ready*, began and ended, s."""
        self.count += 1
        self._met.extend((turn.first + turn.run.last, step, ready, began, end))

    def computed(self, line: Line) -> None:
        """The ops of a run."""
        run = line.turn.run
        self.count += len(run.ops)
        self._computed.setdefault(run, []).append(line)

    def columns(self) -> Columns:
        """All records, by end, then begin, then op."""
        met = np.frombuffer(self._met).reshape(-1, 5).T
        runs = [self._records(run, lines) for run, lines in self._computed.items()]
        parts = [Columns(met[0].astype(np.int64), met[1].astype(np.int64), *met[2:]), *runs]
        op, step, ready, begin, end = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((op, begin, end))
        return Columns(op[order], step[order], ready[order], begin[order], end[order])

    def _records(self, run: Run, lines: Sequence[Line]) -> Columns:
        """The ops of *lines*, which all are of *run*."""
        first = np.array([line.turn.first for line in lines], np.int64)
        step = np.array([line.step for line in lines], np.int64)
        ready, begin, end = times = np.empty((3, len(lines), len(run.ops)))
        quiet = [number for number, line in enumerate(lines) if line.play is None]
        if quiet:
            times[:, quiet] = self._undisturbed(run, [lines[number] for number in quiet])
        for number, line in enumerate(lines):
            if line.play is not None:
                times[:, number] = line.play.times()
        op = (first[:, None] + np.array(run.ops, np.int64)).ravel()
        return Columns(op, np.repeat(step, len(run.ops)), ready.ravel(), begin.ravel(), end.ravel())
