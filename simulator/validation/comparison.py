"""A comparison holds a measured timeline against the simulated one: kinds of work, ops, and the order of ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan
from statistics import fmean
from typing import NamedTuple

import numpy as np

from simulator.mesh import family
from simulator.schedule import Collective, Compute, Delay, Op, Recv, Send
from simulator.timeline import Timeline
from simulator.validation.meetings import Meeting, meetings

COMPUTATION = "computation"

MOST_SIZES = 8
"""Of communications of one kind, told apart; more than these only in the mean."""


@dataclass(frozen=True, slots=True)
class Line:
    """Work of one kind, *what*: so many of it, of so many bytes and seconds each, in the mean."""

    what: str
    count: int
    nbytes: float
    simulated: float
    measured: float

    @property
    def error(self) -> float:
        """The relative error of the simulation."""
        return relative_error(self.simulated, self.measured)


class OpTime(NamedTuple):
    """How long *op* of *rank* worked, s; the mean over the steps."""

    rank: int
    op: str
    simulated: float
    measured: float


class Swap(NamedTuple):
    """Two ops of *rank*: *first* ended *seconds* before *second* began in the simulation, in reality it began after."""

    rank: int
    first: str
    second: str
    seconds: float


def relative_error(simulated: float, measured: float) -> float:
    """By what share the simulation is too long; nan where nothing was measured.

    >>> relative_error(1.1, 1.0)
    0.10000000000000009
    """
    return simulated / measured - 1 if measured else nan


def lines(simulated: Timeline, measured: Timeline) -> list[Line]:
    """Communication by axis and kind, then computation; a communication lasts until the last of its partners has it.

    Where a kind has few sizes, there is a line for each, the smallest first.
    """
    ours, theirs = _by_kind(simulated), _by_kind(measured)
    return [
        Line(
            what,
            len(ours[what][size]),
            fmean(nbytes for nbytes, _ in ours[what][size]),
            fmean(seconds for _, seconds in ours[what][size]),
            fmean(seconds for _, seconds in theirs[what][size]),
        )
        for what in sorted(ours, key=lambda what: what == COMPUTATION)
        for size in sorted(ours[what])
    ]


_Works = list[tuple[float, float]]
"""(bytes, seconds) of each piece of work."""


def _by_kind(timeline: Timeline) -> dict[str, dict[float, _Works]]:
    """Pieces of work by what they are and by size; all under 0 where there are many sizes."""
    found: dict[str, _Works] = {}
    for op, begin, end in _works(timeline):
        found.setdefault(_what(op), []).append((getattr(op, "nbytes", 0.0), end - begin))
    return {what: _by_size(works) for what, works in found.items()}


def _by_size(works: _Works) -> dict[float, _Works]:
    sizes = {nbytes for nbytes, _ in works}
    if len(sizes) > MOST_SIZES:
        return {0.0: works}
    return {size: [work for work in works if work[0] == size] for size in sizes}


def _what(op: Op) -> str:
    match op:
        case Collective():
            return f"{family(op.over)} {op.kind}"
        case Send() | Recv():
            return f"{family(op.over)} message"
        case Compute():
            return COMPUTATION
        case Delay():
            return "delay"
    return "copy"


def _works(timeline: Timeline) -> Iterator[tuple[Op, float, float]]:
    """(op, begin, end) of each piece of work, of a communication once for all partners; empty computations left out."""
    ends: dict[tuple[int, Meeting], tuple[Op, float, float]] = {}
    for rank, records in enumerate(timeline.records):
        ops, meets = timeline.schedule.program(rank).ops, meetings(timeline.schedule, rank)
        for record in records:
            op, meeting = ops[record.op], meets[record.op]
            if meeting is not None:
                _, begin, end = ends.get((record.step, meeting), (op, record.begin, record.end))
                ends[record.step, meeting] = op, max(begin, record.begin), max(end, record.end)
            elif not isinstance(op, Collective) and getattr(op, "kernels", True):
                yield op, record.begin, record.end
    yield from ends.values()


def op_times(simulated: Timeline, measured: Timeline) -> Iterator[OpTime]:
    """Each op of each rank, in order of the programs."""
    schedule = simulated.schedule
    for rank in range(schedule.mesh.world_size):
        ours, theirs = (_seconds(timeline, rank) for timeline in (simulated, measured))
        for op, one, other in zip(schedule.program(rank).ops, ours.tolist(), theirs.tolist(), strict=True):
            yield OpTime(rank, op.name, one, other)


def _seconds(timeline: Timeline, rank: int) -> np.ndarray:
    """Seconds of each op, the mean over the steps."""
    total = np.zeros(len(timeline.schedule.program(rank).ops))
    for record in timeline.records[rank]:
        total[record.op] += record.end - record.begin
    return total / timeline.schedule.steps


def same_order(simulated: Timeline, measured: Timeline) -> bool:
    """Whether every stream of every rank did all its ops in the order in which the simulation does them."""
    ranks = range(simulated.world_size)
    return all(_by_stream(simulated, rank) == _by_stream(measured, rank) for rank in ranks)


def _by_stream(timeline: Timeline, rank: int) -> dict[str, list[tuple[int, int]]]:
    ops, found = timeline.schedule.program(rank).ops, dict[str, list[tuple[int, int]]]()
    for record in sorted(timeline.records[rank], key=lambda record: (record.ready, record.step, record.op)):
        found.setdefault(ops[record.op].stream, []).append((record.step, record.op))
    return found


def swaps(simulated: Timeline, measured: Timeline) -> list[Swap]:
    """Of each rank whose streams overtook each other, the pair of ops that stood farthest apart in the simulation."""
    pairs = (_swap(simulated, measured, rank) for rank in range(simulated.world_size))
    return [pair for pair in pairs if pair is not None]


def _swap(simulated: Timeline, measured: Timeline, rank: int) -> Swap | None:
    ours, theirs = (np.array(sorted(timeline.records[rank], key=lambda r: r[:2])) for timeline in (simulated, measured))
    op, ended = ours[:, 0].astype(np.int64), ours[:, 4]
    ops, widest = simulated.schedule.program(rank).ops, Swap(rank, "", "", 0.0)
    for second in range(len(ours)):
        apart = np.where(theirs[:, 3] >= theirs[second, 4], ours[second, 3] - ended, 0.0)
        first = int(apart.argmax())
        if apart[first] > widest.seconds:
            widest = Swap(rank, ops[op[first]].name, ops[op[second]].name, float(apart[first]))
    return widest if widest.seconds else None
