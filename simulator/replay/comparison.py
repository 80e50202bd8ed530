"""A comparison holds a measured timeline against the simulated one: kinds of work, ops, and the order of ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan
from typing import NamedTuple

import numpy as np

from simulator.replay.meetings import communications
from simulator.schedule import Collective, Compute, Delay, Op, Recv, Send
from simulator.schedule.mesh import family
from simulator.timeline import NO_COMMUNICATION, Floats, Integers, Timeline, op_names, op_streams

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
            len(ours[what][size].what),
            float(ours[what][size].nbytes.mean()),
            float(ours[what][size].seconds.mean()),
            float(theirs[what][size].seconds.mean()),
        )
        for what in sorted(ours, key=lambda what: what == COMPUTATION)
        for size in sorted(ours[what])
    ]


class _Works(NamedTuple):
    """Pieces of work as arrays: *what* they are by its number, *nbytes*, and *seconds* of work."""

    what: Integers
    nbytes: Floats
    seconds: Floats


def _by_kind(timeline: Timeline) -> dict[str, dict[float, _Works]]:
    """Pieces of work by what they are and by size; all under 0 where there are many sizes."""
    names: dict[str, int] = {}
    works = _works(timeline, names)
    numbers, firsts = np.unique(works.what, return_index=True)
    named = list(names)
    return {
        named[number]: _by_size(_Works(*(column[works.what == number] for column in works)))
        for number in numbers[np.argsort(firsts)].tolist()
    }


def _by_size(works: _Works) -> dict[float, _Works]:
    sizes = np.unique(works.nbytes).tolist()
    if len(sizes) > MOST_SIZES:
        return {0.0: works}
    return {size: _Works(*(column[works.nbytes == size] for column in works)) for size in sizes}


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


def _works(timeline: Timeline, names: dict[str, int]) -> _Works:
    """All pieces of work, a communication once for all partners; computations and copies come first.

    Empty computations and collectives of one rank are left out. *names* gets a number for each kind of work.
    """
    schedule = timeline.schedule
    parts = []
    for rank, communication in enumerate(communications(schedule)):
        program, own = schedule.program(rank), timeline.of(rank)
        what = program.column(lambda op: names.setdefault(_what(op), len(names)), np.int64)[own.op]
        nbytes = program.column(lambda op: getattr(op, "nbytes", 0.0))[own.op]
        works = program.column(_works_alone, np.bool_)[own.op]
        number = communication[own.op]
        kept = works | (number != NO_COMMUNICATION)
        columns = (what, nbytes, own.begin, own.end, number, own.step)
        parts.append([column[kept] for column in columns])
    what, nbytes, begin, end, number, step = (np.concatenate(column) for column in zip(*parts, strict=True))
    alone = np.flatnonzero(number == NO_COMMUNICATION)
    met = np.flatnonzero(number != NO_COMMUNICATION)
    one, first, inverse = np.unique(number[met] * schedule.steps + step[met], return_index=True, return_inverse=True)
    last = np.full((2, len(one)), -np.inf)
    for moments, whole in zip((begin, end), last, strict=True):
        np.maximum.at(whole, inverse, moments[met])
    order = np.argsort(first)
    pieces = np.concatenate((alone, met[first[order]]))
    seconds = np.concatenate((end[alone] - begin[alone], (last[1] - last[0])[order]))
    return _Works(what[pieces], nbytes[pieces], seconds)


def _works_alone(op: Op) -> bool:
    """Whether *op* is work although it meets no partner: no collective of one rank, no empty computation."""
    return not isinstance(op, Collective) and bool(getattr(op, "kernels", True))


def op_times(simulated: Timeline, measured: Timeline) -> Iterator[OpTime]:
    """Each op of each rank, in order of the programs."""
    schedule = simulated.schedule
    for rank in range(schedule.mesh.world_size):
        ours, theirs = (_seconds(timeline, rank) for timeline in (simulated, measured))
        for name, one, other in zip(op_names(schedule.program(rank)), ours.tolist(), theirs.tolist(), strict=True):
            yield OpTime(rank, name, one, other)


def _seconds(timeline: Timeline, rank: int) -> Floats:
    """Seconds of each op, the mean over the steps."""
    own = timeline.of(rank)
    ops = len(timeline.schedule.program(rank).ops)
    return np.bincount(own.op, own.end - own.begin, ops) / timeline.schedule.steps


def same_order(simulated: Timeline, measured: Timeline) -> bool:
    """Whether every stream of every rank did all its ops in the order in which the simulation does them."""
    ranks = range(simulated.world_size)
    return all(_by_stream(simulated, rank) == _by_stream(measured, rank) for rank in ranks)


def _by_stream(timeline: Timeline, rank: int) -> dict[str, list[tuple[int, int]]]:
    """By stream (step, op) of its spans, in the order in which they became ready."""
    own = timeline.of(rank)
    streams = op_streams(timeline.schedule.program(rank))[own.op]
    order = np.lexsort((own.op, own.step, own.ready))
    found: dict[str, list[tuple[int, int]]] = {}
    columns = (streams[order].tolist(), own.step[order].tolist(), own.op[order].tolist())
    for stream, step, op in zip(*columns, strict=True):
        found.setdefault(stream, []).append((step, op))
    return found


def swaps(simulated: Timeline, measured: Timeline) -> list[Swap]:
    """Of each rank whose streams overtook each other, the pair of ops that stood farthest apart in the simulation."""
    pairs = (_swap(simulated, measured, rank) for rank in range(simulated.world_size))
    return [pair for pair in pairs if pair is not None]


def _swap(simulated: Timeline, measured: Timeline, rank: int) -> Swap | None:
    (op, ours_begin, ours_end), (_, begin, end) = (_in_order(timeline, rank) for timeline in (simulated, measured))
    widest = Swap(rank, "", "", 0.0)
    names = op_names(simulated.schedule.program(rank))
    for second in range(len(op)):
        apart = np.where(begin >= end[second], ours_begin[second] - ours_end, 0.0)
        first = int(apart.argmax())
        if apart[first] > widest.seconds:
            widest = Swap(rank, names[op[first]], names[op[second]], float(apart[first]))
    return widest if widest.seconds else None


def _in_order(timeline: Timeline, rank: int) -> tuple[Integers, Floats, Floats]:
    """Op, begin and end of the spans of *rank*, by op, then step."""
    own = timeline.of(rank)
    order = np.lexsort((own.step, own.op))
    return own.op[order], own.begin[order], own.end[order]
