"""The content of a trace in any format: processes of ranks, tracks of streams, slices of ops, arrows of messages.

Slices are arrays. Names and arguments, which are the same for all spans of an op, are stored once per program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simulator.analysis.traces.arrows import Arrows, arrows
from simulator.schedule import Collective, Compute, Copy, Delay, Op, Program, Recv, Send
from simulator.timeline import NO_MICRO_BATCH, Floats, Integers, Timeline, micro_batches, op_names, op_streams

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
