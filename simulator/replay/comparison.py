"""The comparison of a measured timeline with the simulated one: kinds of work, ops, and the order of ops."""

from __future__ import annotations

from collections.abc import Iterator
from math import nan
from typing import NamedTuple

import numpy as np

from clustersim.simulator.analysis.timeline import NO_COMMUNICATION, Floats, Integers, Timeline, op_names, op_streams
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.replay.rendezvous import communications
from clustersim.simulator.schedule.mesh import family
from clustersim.simulator.schedule.ops import Collective, Compute, Delay, Op, Recv, Send

COMPUTATION = "computation"

MOST_SIZES = 8
"""Sizes of one kind of communication with rows of their own. With more sizes only the mean is reported."""


@dataclass(frozen=True, slots=True)
class KindRow:
    """Work of the kind *what*: *count* pieces, with mean bytes and mean seconds of one piece."""

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
    """Seconds of *op* of *rank*, the mean over the steps."""

    rank: int
    op: str
    simulated: float
    measured: float


class Swap(NamedTuple):
    """Two ops of *rank*.

    In the simulation *first* ended *seconds* before *second* began; measured, it began after its end.
    """

    rank: int
    first: str
    second: str
    seconds: float


def relative_error(simulated: float, measured: float) -> float:
    """Return the share by which the simulated time is too long; nan if nothing was measured.

    >>> relative_error(1.1, 1.0)
    0.10000000000000009
    """
    return simulated / measured - 1 if measured else nan


def by_kind(simulated: Timeline, measured: Timeline) -> list[KindRow]:
    """Return rows for communication by axis and kind, then for computation. A communication ends with its last partner.

    A kind with few sizes has a row for each size, the smallest first.
    """
    ours, theirs = _work_by_kind(simulated), _work_by_kind(measured)
    return [
        KindRow(
            what,
            len(ours[what][size].what),
            float(ours[what][size].nbytes.mean()),
            float(ours[what][size].seconds.mean()),
            float(theirs[what][size].seconds.mean()),
        )
        for what in sorted(ours, key=lambda what: what == COMPUTATION)
        for size in sorted(ours[what])
    ]


class _Work(NamedTuple):
    """Pieces of work as arrays: the number of their kind (*what*), *nbytes*, and *seconds*."""

    what: Integers
    nbytes: Floats
    seconds: Floats


def _work_by_kind(timeline: Timeline) -> dict[str, dict[float, _Work]]:
    """Pieces of work by kind and by size. All sizes are under 0 if there are many."""
    names: dict[str, int] = {}
    works = _work(timeline, names)
    numbers, firsts = np.unique(works.what, return_index=True)
    named = list(names)
    return {
        named[number]: _by_size(_Work(*(column[works.what == number] for column in works)))
        for number in numbers[np.argsort(firsts)].tolist()
    }


def _by_size(works: _Work) -> dict[float, _Work]:
    sizes = np.unique(works.nbytes).tolist()
    if len(sizes) > MOST_SIZES:
        return {0.0: works}
    return {size: _Work(*(column[works.nbytes == size] for column in works)) for size in sizes}


def _kind(op: Op) -> str:
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


def _work(timeline: Timeline, names: dict[str, int]) -> _Work:
    """All pieces of work, a communication once for all partners. Computations and copies come first.

    Empty computations and collectives of one rank are left out. *names* gets a number for each kind of work.
    """
    schedule = timeline.schedule
    parts = []
    for rank, communication in enumerate(communications(schedule)):
        program, own = schedule.program(rank), timeline.of(rank)
        what = program.column(lambda op: names.setdefault(_kind(op), len(names)), np.int64)[own.op]
        nbytes = program.column(lambda op: getattr(op, "nbytes", 0.0))[own.op]
        works = program.column(_is_solitary_work, np.bool_)[own.op]
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
    return _Work(what[pieces], nbytes[pieces], seconds)


def _is_solitary_work(op: Op) -> bool:
    """Whether *op* is work without partners. Collectives of one rank and empty computations are not."""
    return not isinstance(op, Collective) and bool(getattr(op, "kernels", True))


def op_times(simulated: Timeline, measured: Timeline) -> Iterator[OpTime]:
    """Yield each op of each rank, in order of the programs."""
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
    """Whether every stream of every rank executed all its ops in the simulated order."""
    ranks = range(simulated.world_size)
    return all(_by_stream(simulated, rank) == _by_stream(measured, rank) for rank in ranks)


def _by_stream(timeline: Timeline, rank: int) -> dict[str, list[tuple[int, int]]]:
    """(step, op) of the spans of each stream, in the order in which they became ready."""
    own = timeline.of(rank)
    streams = op_streams(timeline.schedule.program(rank))[own.op]
    order = np.lexsort((own.op, own.step, own.ready))
    found: dict[str, list[tuple[int, int]]] = {}
    columns = (streams[order].tolist(), own.step[order].tolist(), own.op[order].tolist())
    for stream, step, op in zip(*columns, strict=True):
        found.setdefault(stream, []).append((step, op))
    return found


def swaps(simulated: Timeline, measured: Timeline) -> list[Swap]:
    """For each rank whose streams overtook each other, return the pair of ops with the largest simulated gap."""
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
