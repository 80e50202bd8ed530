"""What a rank writes down while it runs is one line for each run of ops; read, it becomes a record for each op."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simulator.engine.course import Course, Play
from simulator.engine.issue import Turn
from simulator.timeline import Columns


class _Line(NamedTuple):
    turn: Turn
    step: int
    course: Course
    begin: float
    play: Play | None


class Writing:
    """The lines of a rank."""

    def __init__(self) -> None:
        self.count = 0
        self._computed: list[_Line] = []
        self._met: list[tuple[int, int, float, float, float]] = []

    def met(self, turn: Turn, step: int, ready: float, began: float, end: float) -> None:
        """The communication of *turn* waited from *ready*, began and ended, s."""
        self.count += 1
        self._met.append((turn.first + turn.run.ops[0], step, ready, began, end))

    def computed(self, turn: Turn, step: int, course: Course, begin: float, play: Play | None = None) -> None:
        """The ops of *turn* ran from *begin* (s) as *course* says, undisturbed unless *play* tells."""
        self.count += len(turn.run.ops)
        self._computed.append(_Line(turn, step, course, begin, None if play is None or play.undisturbed else play))

    def columns(self) -> Columns:
        """All records, by end, then begin, then op."""
        met = np.array(self._met, np.float64).reshape(-1, 5).T
        alike: defaultdict[int, list[_Line]] = defaultdict(list)
        for line in self._computed:
            alike[id(line.course)].append(line)
        runs = [_records(lines[0].course, lines) for lines in alike.values()]
        parts = [Columns(met[0].astype(np.int64), met[1].astype(np.int64), *met[2:]), *runs]
        op, step, ready, begin, end = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((op, begin, end))
        return Columns(op[order], step[order], ready[order], begin[order], end[order])


def _records(course: Course, lines: Sequence[_Line]) -> Columns:
    """The ops of *lines*, which all ran *course*."""
    run = lines[0].turn.run
    first = np.array([line.turn.first for line in lines], np.int64)
    step = np.array([line.step for line in lines], np.int64)
    start = np.array([line.begin for line in lines], np.float64)[:, None]
    ready, begin, end = (start + times for times in course.alone)
    for number, line in enumerate(lines):
        if line.play is not None:
            ready[number], begin[number], end[number] = line.play.times()
    op = (first[:, None] + np.array(run.ops, np.int64)).ravel()
    return Columns(op, np.repeat(step, len(run.ops)), ready.ravel(), begin.ravel(), end.ravel())
