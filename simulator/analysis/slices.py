"""A trace's content, whatever its form: processes of ranks, tracks of streams, slices of ops, arrows of messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator.schedule import Collective, Compute, Copy, Delay, Op, Recv, Schedule, Send
from simulator.timeline import Span, Timeline

KINDS = ("compute", "communication", "copy", "host")
"""What runs in a stream, first that of streams that are drawn first."""


class Track(NamedTuple):
    """One *stream* of *rank*; *number* counts the streams of a rank from 0, *kind* says what runs in it."""

    rank: int
    number: int
    stream: str
    kind: str


@dataclass(frozen=True, slots=True)
class Slice:
    """A box on a track from *begin* to *end* (s), with *args* to show.

    *sends* and *receives* are numbers of arrows that start or end here; 0 is none.
    """

    name: str
    kind: str
    begin: float
    end: float
    args: dict[str, str | float]
    sends: int = 0
    receives: int = 0


def tracks(timeline: Timeline, rank: int) -> list[Track]:
    """The tracks of *rank*: streams that compute first, then communication, copies and delays."""
    streams = timeline.schedule.program(rank).streams()
    kinds = {name: _kind_of_stream(ops) for name, ops in streams.items()}
    order = sorted(streams, key=lambda name: KINDS.index(kinds[name]))
    return [Track(rank, number, name, kinds[name]) for number, name in enumerate(order)]


def process_name(timeline: Timeline, rank: int) -> str:
    """What the process of *rank* is called: rank, role and device."""
    device = f" on {timeline.devices[rank]}" if timeline.devices else ""
    return f"rank {rank} ({timeline.schedule.program(rank).role}){device}"


def slices(timeline: Timeline, ranks: Sequence[int]) -> Iterator[tuple[Track, list[Slice]]]:
    """Each track of *ranks* with its slices in order of time.

    What an op waited for its partners is a slice of its own, ``wait``, before it. Arrows have numbers from 1, and
    both of their ends are among *ranks*.
    """
    arrows = _arrows(timeline, ranks)
    for rank in ranks:
        by_stream: dict[str, list[Slice]] = defaultdict(list)
        spans = sorted(enumerate(timeline.spans(rank)), key=lambda numbered: numbered[1][3:])
        for number, span in spans:
            if span.begin > span.ready:
                wait = Slice("wait", "wait", span.ready, span.begin, {"for": span.op.name})
                by_stream[span.op.stream].append(wait)
            by_stream[span.op.stream].append(_slice(timeline.schedule, span, arrows.get((rank, number), 0)))
        for track in tracks(timeline, rank):
            yield track, by_stream[track.stream]


def _slice(schedule: Schedule, span: Span, arrow: int) -> Slice:
    args = _args(span)
    if schedule.steps > 1:
        args["step"] = span.step
    sends, receives = (arrow, 0) if isinstance(span.op, Send) else (0, arrow)
    return Slice(span.op.name, _kind(span.op), span.begin, span.end, args, sends, receives)


def _args(span: Span) -> dict[str, str | float]:
    op = span.op
    args: dict[str, str | float] = {"waited_us": (span.begin - span.ready) * 1e6}
    if op.action is not None:
        args["action"] = str(op.action)
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


def _kind_of_stream(ops: Sequence[Op]) -> str:
    kinds = {_kind(op) for op in ops}
    return next(kind for kind in KINDS if kind in kinds)


def _arrows(timeline: Timeline, ranks: Sequence[int]) -> dict[tuple[int, int], int]:
    """The number of the arrow that starts or ends at a record (rank, index), of each Send whose Recv is shown too."""
    ends: tuple[dict[object, list[tuple[int, int]]], ...] = (defaultdict(list), defaultdict(list))
    for rank in ranks:
        for number, span in enumerate(timeline.spans(rank)):
            if isinstance(span.op, Send | Recv):
                ends[isinstance(span.op, Recv)][_message(timeline.schedule, span)].append((rank, number))
    pairs = [pair for key, sent in ends[0].items() for pair in zip(sent, ends[1].get(key, ()), strict=False)]
    return {end: number for number, pair in enumerate(pairs, start=1) for end in pair}


def _message(schedule: Schedule, span: Span) -> object:
    """Equal for a Send and the Recv it meets; the n-th of several equal ones meets the n-th."""
    op = span.op
    assert isinstance(op, Send | Recv)
    axis = schedule.mesh.axes[op.over]
    place = axis.place(span.rank)
    assert place is not None
    peer = axis.groups[place[0]][op.peer]
    pair = (span.rank, peer) if isinstance(op, Send) else (peer, span.rank)
    return op.over, pair, op.action, span.step
