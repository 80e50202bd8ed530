"""Arrows of a trace: from each send to its receive, and along the critical path where it changes streams.

Spans of the ranks that are shown are numbered one rank after the other, in the order of their columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.analysis.critical.path import CriticalPath, critical_path
from simulator.errors import SimulatorError
from simulator.schedule import Recv, Schedule, Send
from simulator.timeline import NO_COMMUNICATION, Integers, Timeline

NOWHERE = -1
"""In place of a rank or a span that there is not."""


class Arrows(NamedTuple):
    """By span the number of the arrow that starts or ends there, from 1; 0 is none.

    *sends* and *receives* are of messages, *leaves* and *enters* of the critical path; *critical* is 1 on that path.
    """

    sends: Integers
    receives: Integers
    leaves: Integers
    enters: Integers
    critical: Integers


def arrows(timeline: Timeline, ranks: Sequence[int]) -> Arrows:
    """The arrows between the spans of *ranks*. A timeline that was not simulated has no critical path."""
    firsts = np.cumsum([0, *(len(timeline.of(rank).op) for rank in ranks)])
    found = Arrows(*np.zeros((5, int(firsts[-1])), np.int64))
    sent, received = _messages(timeline, ranks)
    found.sends[sent] = found.receives[received] = np.arange(1, len(sent) + 1)
    try:
        path = critical_path(timeline)
    except SimulatorError:
        return found
    place = _on_path(path, ranks, firsts)
    found.critical[place[place != NOWHERE]] = 1
    turns = np.flatnonzero(np.diff(path.stretch))
    left, entered = place[turns], place[turns + 1]
    # equal ranks share the spans of one, where a second arrow would start or end
    kept = (left != NOWHERE) & (entered != NOWHERE) & _first_of_each(left) & _first_of_each(entered)
    found.leaves[left[kept]] = found.enters[entered[kept]] = np.arange(kept.sum()) + len(sent) + 1
    return found


def _messages(timeline: Timeline, ranks: Sequence[int]) -> tuple[Integers, Integers]:
    """The sends and the receives of the messages of which both ends are shown, in one order."""
    first = 0
    rows: tuple[list[Integers], list[Integers]] = ([np.zeros((2, 0), np.int64)], [np.zeros((2, 0), np.int64)])
    for rank in ranks:
        own, program = timeline.of(rank), timeline.schedule.program(rank)
        receives = np.where(program.column(lambda op: isinstance(op, Recv), np.bool_), rank, NOWHERE)
        for receiver, found in zip((_receivers(timeline.schedule, rank), receives), rows, strict=True):
            mine = np.flatnonzero((receiver[own.op] != NOWHERE) & (own.communication != NO_COMMUNICATION))
            # equal ranks share the number of a communication; its receiver tells their messages apart
            key = own.communication[mine] * timeline.world_size + receiver[own.op[mine]]
            found.append(np.stack((key, mine + first)))
        first += len(own.op)
    sent, received = (np.concatenate(found, axis=1) for found in rows)
    _, sends, receives = np.intersect1d(sent[0], received[0], return_indices=True)
    return sent[1, sends], received[1, receives]


def _receivers(schedule: Schedule, rank: int) -> Integers:
    """By op of *rank* the receiver of what it sends, `NOWHERE` for other ops."""
    program = schedule.program(rank)
    axes: dict[str, int] = {}
    axis = program.column(lambda op: axes.setdefault(op.over, len(axes)) if isinstance(op, Send) else NOWHERE, np.int64)
    peer = program.column(lambda op: op.peer if isinstance(op, Send) else NOWHERE, np.int64)
    receiver = np.full(len(peer), NOWHERE)
    for name, number in axes.items():
        place = schedule.mesh.axes[name].place(rank)
        if place is not None:
            receiver[axis == number] = np.array(schedule.mesh.axes[name].groups[place[0]])[peer[axis == number]]
    return receiver


def _on_path(path: CriticalPath, ranks: Sequence[int], firsts: Integers) -> Integers:
    """Which span of *ranks* each one of *path* is, or is equal to; `NOWHERE` where none is shown."""
    timeline = path.timeline
    place = np.full(len(path.rank), NOWHERE)
    shown = np.where(np.isin(path.rank, ranks), path.rank, timeline.representative[path.rank])
    for rank, first in zip(ranks, firsts.tolist(), strict=False):
        mine = np.flatnonzero(shown == rank)
        if len(mine):
            own, ops = timeline.of(rank), len(timeline.schedule.program(rank).ops)
            row = np.empty(len(own.op), np.int64)
            row[own.step * ops + own.op] = np.arange(len(own.op))
            place[mine] = row[path.step[mine] * ops + path.op[mine]] + first
    return place


def _first_of_each(values: Integers) -> npt.NDArray[np.bool_]:
    """True for each value that no equal one stands before."""
    first = np.zeros(len(values), np.bool_)
    first[np.unique(values, return_index=True)[1]] = True
    return first
