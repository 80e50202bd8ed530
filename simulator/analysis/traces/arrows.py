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
"""Stands for a rank or a span that does not exist."""


class Arrows(NamedTuple):
    """The number of the arrow, from 1, that starts or ends at each span; 0 for none. Arrays of one length.

    *sends* and *receives*: arrows of messages; *leaves* and *enters*: arrows of the critical path. *critical*: 1 for
    spans on that path.
    """

    sends: Integers
    receives: Integers
    leaves: Integers
    enters: Integers
    critical: Integers


def arrows(timeline: Timeline, ranks: Sequence[int]) -> Arrows:
    """Return the arrows between the spans of *ranks*. A measured timeline has no critical path."""
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
    # equal ranks have the spans of one, at which a second arrow would start or end
    kept = (left != NOWHERE) & (entered != NOWHERE) & _first_of_each(left) & _first_of_each(entered)
    found.leaves[left[kept]] = found.enters[entered[kept]] = np.arange(kept.sum()) + len(sent) + 1
    return found


def _messages(timeline: Timeline, ranks: Sequence[int]) -> tuple[Integers, Integers]:
    """Return the send and the receive of each message between shown ranks, in one order."""
    first = 0
    rows: tuple[list[Integers], list[Integers]] = ([np.zeros((2, 0), np.int64)], [np.zeros((2, 0), np.int64)])
    for rank in ranks:
        own, program = timeline.of(rank), timeline.schedule.program(rank)
        receives = np.where(program.column(lambda op: isinstance(op, Recv), np.bool_), rank, NOWHERE)
        for receiver, found in zip((_receivers(timeline.schedule, rank), receives), rows, strict=True):
            mine = np.flatnonzero((receiver[own.op] != NOWHERE) & (own.communication != NO_COMMUNICATION))
            # equal ranks have one number of a communication; the receiver distinguishes their messages
            key = own.communication[mine] * timeline.world_size + receiver[own.op[mine]]
            found.append(np.stack((key, mine + first)))
        first += len(own.op)
    sent, received = (np.concatenate(found, axis=1) for found in rows)
    _, sends, receives = np.intersect1d(sent[0], received[0], return_indices=True)
    return sent[1, sends], received[1, receives]


def _receivers(schedule: Schedule, rank: int) -> Integers:
    """Return the receiver of each op of *rank*; `NOWHERE` for ops that do not send."""
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
    """Return the shown span, or its equal, of each span of *path*; `NOWHERE` if it is not shown."""
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
    """Return True for the first of equal values, False for the others."""
    first = np.zeros(len(values), np.bool_)
    first[np.unique(values, return_index=True)[1]] = True
    return first
