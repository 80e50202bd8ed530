"""The seconds of a step of one rank by part: computation, exposed communication, waits, and idle time by cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isnan

import numpy as np

from clustersim.scenarios.explain.pieces_of_work import COPY, HOST, LOADING, PHASES, WAITING, Piece
from clustersim.scenarios.explain.rank_trace import RankTrace
from clustersim.simulator.analysis.intervals import partition
from clustersim.simulator.analysis.timeline import Floats

LAUNCH_GAP = 30e-6
"""Seconds. A shorter gap between kernels whose launches came in time is the delay of the launch itself:
HolisticTraceAnalysis's ``consecutive_kernel_delay``."""

GAPS, DEPENDENCY = "launch gaps", "dependency"
"""Idle time between kernels one after the other; idle time in which launched kernels wait for other streams."""

IDLE = (LOADING, HOST, GAPS, DEPENDENCY)
"""The causes of idle time."""


def breakdown(trace: RankTrace) -> dict[str, float]:
    """Return the seconds of a step of *trace* by part; they sum to its step time. Each moment counts once.

    A phase: a kernel of it runs (of several the first of `PHASES`). A kind of communication: it is exposed, no kernel
    computes. ``waiting``: only communications that wait for their partners are there. The `IDLE` parts: nothing runs.
    """
    parts: dict[str, float] = {}
    for step in trace.steps:
        window = step.begin, step.end
        inside = [piece for piece in trace.pieces if piece.end > step.begin and piece.begin < step.end]
        for part, seconds in _of_window(trace, inside, window).items():
            parts[part] = parts.get(part, 0.0) + seconds / len(trace.steps)
    return parts


def _of_window(trace: RankTrace, pieces: Sequence[Piece], window: tuple[float, float]) -> dict[str, float]:
    rows = list(_rows(pieces))
    order = parts_in_order({part for part, _, _ in rows})
    place = {part: number for number, part in enumerate(order)}
    kinds = np.array([place[part] for part, _, _ in rows], np.int64)
    begins, ends = (np.array([row[column] for row in rows], np.float64) for column in (1, 2))
    seconds = partition(begins, ends, kinds, len(order), window)
    parts = dict(zip(order, seconds.tolist()[:-1], strict=True))
    for begin, end in _gaps(begins, ends, window):
        for cause, idle in _causes(trace, pieces, begin, end):
            parts[cause] = parts.get(cause, 0.0) + idle
    return parts


def parts_in_order(parts: Iterable[str]) -> list[str]:
    """Return *parts* in the order in which a moment of several of them counts: computation first, the host last."""
    last = (COPY, WAITING, LOADING, HOST)
    given = set(parts)
    between = sorted(given.difference(PHASES, last))
    return [part for part in (*PHASES, *between, *last) if part in given]


def _rows(pieces: Iterable[Piece]) -> Iterable[tuple[str, float, float]]:
    for piece in pieces:
        if piece.wait > 0:
            yield WAITING, piece.begin, piece.begin + piece.wait
        yield piece.part, piece.begin + piece.wait, piece.end


def _gaps(begins: Floats, ends: Floats, window: tuple[float, float]) -> list[tuple[float, float]]:
    """Return the intervals of *window* outside all intervals from *begins* to *ends*."""
    order = np.argsort(begins, kind="stable")
    reached = np.maximum.accumulate(np.concatenate(([window[0]], ends[order])))
    following = np.concatenate((begins[order], [window[1]]))
    following = np.minimum(following, window[1])
    idle = np.flatnonzero(following > reached)
    return list(zip(reached[idle].tolist(), following[idle].tolist(), strict=True))


def _causes(trace: RankTrace, pieces: Sequence[Piece], begin: float, end: float) -> list[tuple[str, float]]:
    """Return the causes of the idle time from *begin* to *end*, with their seconds.

    Until the kernel that ends it is launched, the host is late.
    """
    if not trace.on_gpu:
        return [(HOST, end - begin)]
    launches = [piece.launched for piece in pieces if piece.begin == end and not isnan(piece.launched)]
    if not launches:
        # nothing follows in this window: the host ends the step, or other ranks do
        own = min(max(trace.own_end - begin, 0.0), end - begin) if end >= trace.steps[-1].end else 0.0
        return [(HOST, own), (DEPENDENCY, end - begin - own)]
    late = min(max(min(launches) - begin, 0.0), end - begin)
    rest = end - begin - late
    return [(HOST, late), (GAPS if rest < LAUNCH_GAP else DEPENDENCY, rest)]


def stretches(trace: RankTrace) -> list[tuple[float, Piece]]:
    """Return the times (s) in which the GPU of *trace* waits for its host, each with the kernel that ends it."""
    found = []
    for step in trace.steps:
        inside = [piece for piece in trace.pieces if piece.end > step.begin and piece.begin < step.end]
        begins, ends = (np.array([getattr(piece, name) for piece in inside]) for name in ("begin", "end"))
        after = {piece.begin: piece for piece in inside}
        for begin, end in _gaps(begins, ends, (step.begin, step.end)):
            late = dict(_causes(trace, inside, begin, end)).get(HOST, 0.0)
            if late > 0 and end in after:
                found.append((late, after[end]))
    return sorted(found, key=lambda one: -one[0])


def mean(several: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of *several* breakdowns, by part."""
    names = dict.fromkeys(name for one in several for name in one)
    return {name: sum(one.get(name, 0.0) for one in several) / len(several) for name in names}


def busy(parts: Mapping[str, float]) -> float:
    """Return the seconds of a step in which the rank computes."""
    return sum(parts.get(phase, 0.0) for phase in PHASES)
