"""The content of a trace in any format: processes of ranks, tracks of streams, slices of ops; and arrows from each
send to its receive, and along the critical path where it changes streams.

Spans of the ranks that are shown are numbered one rank after the other, in the order of their columns.

Slices are arrays. Names and arguments, which are the same for all spans of an op, are stored once per program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from clustersim.simulator.analysis.critical_path import CriticalPath, critical_path
from clustersim.simulator.analysis.timeline import (
    NO_COMMUNICATION,
    NO_MICRO_BATCH,
    Floats,
    Integers,
    Timeline,
    micro_batches,
    op_names,
    op_streams,
)
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.schedule.ops import Collective, Compute, Copy, Delay, Op, Recv, Send
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule

NOWHERE = -1
"""Stands for a rank or a span that does not exist."""

Args = dict[str, str | float]
"""Arguments of a slice in a viewer, by name."""

KINDS = ("compute", "communication", "copy", "host")
"""Kinds of streams, in the order in which they are drawn."""


class Track(NamedTuple):
    """One *stream* of *rank*, its *number* among the streams of the rank, from 0, and its *kind*."""

    rank: int
    number: int
    stream: str
    kind: str


class Slices(NamedTuple):
    """The slices of a track in order of time, as arrays of one length.

    *op* is the index in the rank's program, *step* the training step. From *ready* to *begin* (s) it waited, from
    *begin* to *end* it worked. *waits* (s) is when the wait is drawn from: a viewer nests slices of a track that
    overlap, and a message waits from when the one before was sent, before that has arrived. The others are those of
    `Arrows`.
    """

    op: Integers
    step: Integers
    ready: Floats
    waits: Floats
    begin: Floats
    end: Floats
    sends: Integers
    receives: Integers
    leaves: Integers
    enters: Integers
    critical: Integers


class OpTexts(NamedTuple):
    """Texts of the ops of a program, by index: name, kind (compute, communication or copy), arguments."""

    names: list[str]
    kinds: list[str]
    args: list[Args]


def op_texts(program: Program) -> OpTexts:
    """Return the texts of the ops of *program*."""
    kinds = program.column(lambda op: KINDS.index(_kind(op)), np.int64).tolist()
    numbers = micro_batches(program).tolist()
    templates = [_args(op) for op in program.distinct()]
    places = iter(range(len(templates)))
    of_template = program.column(lambda _: next(places), np.int64).tolist()
    args = [_completed(templates[place], number) for place, number in zip(of_template, numbers, strict=True)]
    return OpTexts(op_names(program), [KINDS[kind] for kind in kinds], args)


def _completed(args: Args, micro_batch: int) -> Args:
    return args if micro_batch == NO_MICRO_BATCH else {**args, "action": f"{args['action']}{micro_batch}"}


def tracks(timeline: Timeline, rank: int) -> list[Track]:
    """Return the tracks of *rank*: streams of computation first, then communication, copies and delays."""
    kinds: dict[str, int] = {}
    for op in timeline.schedule.program(rank).distinct():
        kind = KINDS.index(_kind(op))
        kinds[op.stream] = min(kind, kinds.get(op.stream, kind))
    order = sorted(kinds, key=kinds.__getitem__)
    return [Track(rank, number, name, KINDS[kinds[name]]) for number, name in enumerate(order)]


def process_name(timeline: Timeline, rank: int) -> str:
    """Return the name of the process of *rank*: rank, role and device."""
    device = f" on {timeline.devices[rank]}" if timeline.devices else ""
    return f"rank {rank} ({timeline.schedule.program(rank).role}){device}"


def slices(timeline: Timeline, ranks: Sequence[int]) -> Iterator[tuple[Track, Slices]]:
    """Yield each track of *ranks* with its slices. Arrows have numbers from 1; both of their ends are among *ranks*."""
    found = arrows(timeline, ranks)
    ends = np.cumsum([0, *(len(timeline.of(rank).op) for rank in ranks)]).tolist()
    for rank, (first, after) in zip(ranks, pairwise(ends), strict=True):
        own, drawn = timeline.of(rank), Arrows(*(column[first:after] for column in found))
        streams = op_streams(timeline.schedule.program(rank))[own.op]
        for track in tracks(timeline, rank):
            mine = np.flatnonzero(streams == track.stream)
            mine = mine[np.lexsort((own.end[mine], own.begin[mine], own.ready[mine]))]
            op, step, ready, begin, end, _ = own
            times = ready[mine], _waits(ready[mine], begin[mine], end[mine]), begin[mine], end[mine]
            yield track, Slices(op[mine], step[mine], *times, *(column[mine] for column in drawn))


def _waits(ready: Floats, begin: Floats, end: Floats) -> Floats:
    """Return *ready*, or the end of all earlier slices of the track if that is later, but not after *begin*."""
    before = np.append(-np.inf, np.maximum.accumulate(end))[: len(end)]
    waits: Floats = np.minimum(np.maximum(ready, before), begin)
    return waits


def _args(op: Op) -> Args:
    """Return the arguments of *op*, of a template; its action has no number of a micro-batch."""
    args: Args = {}
    if op.action is not None:
        args["action"] = f"{op.action.stage}{op.action.phase}"
    if op.layer is not None:
        args["layer"] = op.layer
    match op:
        case Compute():
            args["flops"] = sum(kernel.flops for kernel in op.kernels)
        case Collective():
            args |= {"kind": op.kind, "axis": op.over, "bytes": op.nbytes}
        case Send() | Recv():
            args |= {"axis": op.over, "peer": op.peer, "bytes": op.nbytes}
        case Copy():
            args |= {"from": op.source, "to": op.to, "bytes": op.nbytes}
    return args


def _kind(op: Op) -> str:
    match op:
        case Compute():
            return "compute"
        case Copy():
            return "copy"
        case Delay():
            return "host"
        case _:
            return "communication"


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
