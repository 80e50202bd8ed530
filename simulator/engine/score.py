"""A score says how long the runs take that ensembles play, worked out beforehand for many groups and turns at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from simulator.engine.braid import braided
from simulator.engine.course import Floats, Played
from simulator.engine.issue import Issue, Run
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
        self._expanded: tuple[int, dict[Run, Played]] = -1, {}

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

    def expanded(self, number: int, run: Run, expand: Callable[[Run], Played]) -> Played:
        """What the ensemble *number* played, as *expand* makes it.

        It is kept until another ensemble is asked for, since the ranks of one are read one after the other.
        """
        if self._expanded[0] != number:
            self._expanded = number, {}
        kept = self._expanded[1]
        if run not in kept:
            kept[run] = expand(run)
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
