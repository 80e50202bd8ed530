"""A trace's content, whatever its form: processes of ranks, tracks of streams, slices of ops, arrows of messages.

Slices stand in arrays. What is the same for all spans of an op, its name or its arguments, stands once per program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.schedule import Collective, Compute, Copy, Delay, Op, Program, Recv, Schedule, Send
from simulator.timeline import NO_MICRO_BATCH, Floats, Integers, Timeline, micro_batches, op_names, op_streams

Args = dict[str, str | float]
"""What a viewer shows of a slice, by name."""

KINDS = ("compute", "communication", "copy", "host")
"""What runs in a stream, first that of streams that are drawn first."""


class Track(NamedTuple):
    """One *stream* of *rank*; *number* counts the streams of a rank from 0, *kind* says what runs in it."""

    rank: int
    number: int
    stream: str
    kind: str


class Slices(NamedTuple):
    """The slices of a track in order of time, as arrays of one length.

    *op* is the index in the rank's program, *step* the training step. From *ready* to *begin* (s) it waited, from
    *begin* to *end* it worked. *sends* and *receives* are numbers of arrows that start or end here; 0 is none.
    """

    op: Integers
    step: Integers
    ready: Floats
    begin: Floats
    end: Floats
    sends: Integers
    receives: Integers


class OpTexts(NamedTuple):
    """What slices show of the ops of a program, by index: name, kind (compute, communication or copy), arguments."""

    names: list[str]
    kinds: list[str]
    args: list[Args]


def op_texts(program: Program) -> OpTexts:
    """The texts of the ops of *program*."""
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
    """The tracks of *rank*: streams that compute first, then communication, copies and delays."""
    kinds: dict[str, int] = {}
    for op in timeline.schedule.program(rank).distinct():
        kind = KINDS.index(_kind(op))
        kinds[op.stream] = min(kind, kinds.get(op.stream, kind))
    order = sorted(kinds, key=kinds.__getitem__)
    return [Track(rank, number, name, KINDS[kinds[name]]) for number, name in enumerate(order)]


def process_name(timeline: Timeline, rank: int) -> str:
    """What the process of *rank* is called: rank, role and device."""
    device = f" on {timeline.devices[rank]}" if timeline.devices else ""
    return f"rank {rank} ({timeline.schedule.program(rank).role}){device}"


def slices(timeline: Timeline, ranks: Sequence[int]) -> Iterator[tuple[Track, Slices]]:
    """Each track of *ranks* with its slices. Arrows have numbers from 1; both of their ends are among *ranks*."""
    arrows = _arrows(timeline, ranks)
    for rank, (sends, receives) in zip(ranks, arrows, strict=True):
        own = timeline.of(rank)
        streams = op_streams(timeline.schedule.program(rank))[own.op]
        for track in tracks(timeline, rank):
            mine = np.flatnonzero(streams == track.stream)
            mine = mine[np.lexsort((own.end[mine], own.begin[mine], own.ready[mine]))]
            op, step, ready, begin, end, _ = own
            times = ready[mine], begin[mine], end[mine]
            yield track, Slices(op[mine], step[mine], *times, sends[mine], receives[mine])


def _args(op: Op) -> Args:
    """The arguments of *op*, of a template; its action lacks the number of its micro-batch."""
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
            args |= {"to": op.to, "bytes": op.nbytes}
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


def _arrows(timeline: Timeline, ranks: Sequence[int]) -> list[tuple[Integers, Integers]]:
    """For each of *ranks*, by span: the number of the arrow that starts there, and of the one that ends there.

    An arrow runs from a Send to the Recv that it meets, where that is shown too; the n-th of several equal ones meets
    the n-th.
    """
    known: dict[int, _Messages] = {}
    ways, keys = [], []
    for rank in ranks:
        number, own = timeline.schedule.program_of[rank], timeline.of(rank)
        if number not in known:
            known[number] = _messages(timeline.schedule.programs[number])
        table = known[number]
        ways.append(table.way[own.op])
        keys.append(np.column_stack((_pairs(timeline.schedule, rank, table), table.action))[own.op])
        keys[-1] = np.column_stack((keys[-1], own.step))
    way = np.concatenate(ways)
    sent, received = np.flatnonzero(way == SENDS), np.flatnonzero(way == RECEIVES)
    key = _numbered(np.concatenate(keys)[np.append(sent, received)])
    first, second = _paired(key[: len(sent)], key[len(sent) :])
    numbers = np.zeros((2, len(way)), np.int64)
    numbers[0, sent[first]] = numbers[1, received[second]] = np.arange(1, len(first) + 1)
    ends = np.cumsum([len(one) for one in ways])[:-1]
    return list(zip(np.split(numbers[0], ends), np.split(numbers[1], ends), strict=True))


def _paired(sent: Integers, received: Integers) -> tuple[Integers, Integers]:
    """The places in *sent* and in *received* of equal keys, ascending in *sent*; the n-th of several meets the n-th.

    >>> [places.tolist() for places in _paired(np.array([5, 7, 5, 1]), np.array([5, 5, 7]))]
    [[0, 1, 2], [0, 2, 1]]
    """
    nth = _occurrence(sent), _occurrence(received)
    several = 1 + max(int(one.max(initial=0)) for one in nth)
    order = np.argsort(received * several + nth[1])
    wanted = sent * several + nth[0]
    place = np.searchsorted((received * several + nth[1])[order], wanted)
    first = np.flatnonzero(np.isin(wanted, received * several + nth[1]))
    return first, order[place[first]]


SENDS, RECEIVES = 1, 2


class _Messages(NamedTuple):
    """By op of a program: *way* is `SENDS`, `RECEIVES` or neither (0), *axis* the place of its axis in *axes*.

    *peer* is its coordinate on that axis. *action* has a row for each op, equal for equal actions.
    """

    way: Integers
    axis: Integers
    axes: list[str]
    peer: Integers
    action: Integers


def _messages(program: Program) -> _Messages:
    axes: dict[str, int] = {}
    way = program.column(lambda op: SENDS * isinstance(op, Send) + RECEIVES * isinstance(op, Recv), np.int64)
    axis = program.column(lambda op: axes.setdefault(getattr(op, "over", ""), len(axes)), np.int64)
    peer = program.column(lambda op: getattr(op, "peer", -1), np.int64)
    actions = [program.column(lambda op: ord(op.action.phase) if op.action else -1, np.int64)]
    actions += [program.column(lambda op: op.action.stage if op.action else -1, np.int64), micro_batches(program)]
    return _Messages(way, axis, list(axes), peer, np.column_stack(actions))


def _pairs(schedule: Schedule, rank: int, table: _Messages) -> Integers:
    """By op of *rank*: axis, sender and receiver of its message."""
    peers, axes = np.full(len(table.peer), rank), list(schedule.mesh.axes)
    named = np.zeros(len(table.peer), np.int64)
    for number, name in enumerate(table.axes):
        place = schedule.mesh.axes[name].place(rank) if name in axes else None
        if place is not None:
            mine = (table.axis == number) & (table.way > 0)
            peers[mine] = np.array(schedule.mesh.axes[name].groups[place[0]])[table.peer[mine]]
            named[mine] = axes.index(name)
    sends = table.way == SENDS
    return np.column_stack((named, np.where(sends, rank, peers), np.where(sends, peers, rank)))


def _numbered(rows: Integers) -> Integers:
    """A number for each row, equal where rows are equal."""
    key: npt.NDArray[np.int64] = np.zeros(len(rows), np.int64)
    for column in rows.T:
        _, one = np.unique(column, return_inverse=True)
        _, key = np.unique(key * (one.max(initial=0) + 1) + one, return_inverse=True)
    return key


def _occurrence(values: Integers) -> Integers:
    """How many equal values stand before each.

    >>> _occurrence(np.array([7, 5, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(values, kind="stable")
    firsts = np.flatnonzero(np.diff(values[order], prepend=-1))
    result = np.empty_like(values)
    result[order] = np.arange(len(values)) - np.repeat(firsts, np.diff(np.append(firsts, len(values))))
    return result
