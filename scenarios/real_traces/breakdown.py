"""Where the time of a step goes: the parts of a rank, and the rank for which the others wait.

The parts of a rank are computation, exposed communication, waits, and idle time by cause. The slowest rank works
longest by itself, and the others spend that time in communication with it.

The noise of a machine is estimated from the run itself. Other work only lengthens an operator. So the shortest of an
operator's repetitions, in all layers and steps of a rank, is nearest to its undisturbed duration; the rest of the
others comes and goes. A fault of the program is in every step. Without a GPU ranks share processors: if a rank takes
longer in all operators alike, its processor is slower or busier, whatever the program does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import isnan

import numpy as np

from clustersim.scenarios.real_traces.pieces_of_work import COPY, HOST, LOADING, PHASES, WAITING, Piece
from clustersim.scenarios.real_traces.rank_trace import RankTrace
from clustersim.simulator.analysis.intervals import partition
from clustersim.simulator.analysis.timeline import Floats
from clustersim.simulator.reading.dataclass import dataclass

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


WAITS = (WAITING, DEPENDENCY)
"""Parts of a step in which a rank waits for others. A simulated kernel begins when its partners have come, and the
stream idles before; a real one begins before and waits."""

OWN = (*PHASES, COPY, LOADING, HOST, GAPS)
"""Parts of a step that a rank decides by itself. All others are communication and waits: the step ends on all ranks
together, so a rank with more of its own has less of them."""

Parts = Mapping[str, float]


@dataclass(frozen=True)
class Late:
    """*rank* is later than the others by *seconds* of a step; *because*: the seconds by part in which it has more."""

    rank: int
    seconds: float
    because: Mapping[str, float]


def latest(real: Mapping[int, Parts], expected: Mapping[int, Parts] | None = None) -> Late | None:
    """Return the latest rank of the breakdowns *real*, by rank; None for fewer than two ranks.

    *expected*: breakdowns of the same ranks in which differences are on purpose, such as those of pipeline stages.
    """
    if len(real) < 2:
        return None
    later = {rank: _ahead(real, rank) - (_ahead(expected, rank) if expected else 0.0) for rank in real}
    rank = max(later, key=lambda one: later[one])
    more = _more(real, rank)
    if expected:
        usual = _more(expected, rank)
        more = {part: more.get(part, 0.0) - usual.get(part, 0.0) for part in {**more, **usual}}
    more = {part: seconds for part, seconds in more.items() if part in OWN and seconds > 0}
    total = sum(more.values())
    share = min(1.0, max(later[rank], 0.0) / total) if total else 0.0
    because = {part: seconds * share for part, seconds in sorted(more.items(), key=lambda one: -one[1])}
    return Late(rank, sum(because.values()), because)


def _with_others(parts: Parts) -> float:
    return sum(seconds for part, seconds in parts.items() if part not in OWN)


def _others(several: Mapping[int, Parts], rank: int) -> Sequence[Parts]:
    return [parts for other, parts in several.items() if other != rank]


def _ahead(several: Mapping[int, Parts], rank: int) -> float:
    """Return how much longer the other ranks, the mean, communicate and wait than *rank*, s."""
    return _with_others(mean(_others(several, rank))) - _with_others(several[rank])


def _more(several: Mapping[int, Parts], rank: int) -> dict[str, float]:
    """Return by how much each part of *rank* exceeds the mean of the others, s."""
    usual = mean(_others(several, rank))
    return {part: several[rank].get(part, 0.0) - usual.get(part, 0.0) for part in {**usual, **several[rank]}}


@dataclass(frozen=True)
class Noise:
    """The noise of the run with these *traces*, by rank."""

    traces: Sequence[RankTrace]

    @cached_property
    def varying(self) -> Mapping[int, float]:
        """Seconds of a step of each rank that come and go: operators and gaps beyond their shortest repetition."""
        return {trace.rank: _slow_operators(trace) + _late_host(trace) for trace in self.traces}

    @property
    def most(self) -> float:
        """That of the rank with the most, s."""
        return max(self.varying.values(), default=0.0)

    def processor(self, rank: int) -> float:
        """Return the seconds by which the processor of *rank* lengthens a step: all operators alike.

        The factor is the median over the operators that other ranks have as well, weighted by their time, so a few
        slow operators do not count. 0 with a GPU, which belongs to its rank.
        """
        shortest = {trace.rank: _shortest(trace) for trace in self.traces if not trace.on_gpu}
        if rank not in shortest or len(shortest) < 2:
            return 0.0
        factors, seconds = [], []
        for key, (own, count) in shortest[rank].items():
            others = [one[key][0] for other, one in shortest.items() if other != rank and key in one]
            if others and min(others) > 0:
                factors.append(own * len(others) / sum(others))
                seconds.append(own * count)
        if not factors:
            return 0.0
        order = np.argsort(factors)
        reached = np.cumsum(np.array(seconds)[order])
        factor = float(np.array(factors)[order][np.searchsorted(reached, reached[-1] / 2)])
        steps = next(len(trace.steps) for trace in self.traces if trace.rank == rank)
        return max(0.0, 1.0 - 1.0 / factor) * float(reached[-1]) / steps

    def steady(self, late: Late) -> float:
        """Return the seconds of *late* that are in every step, and not of the processor."""
        others = [seconds for rank, seconds in self.varying.items() if rank != late.rank]
        beyond = self.varying[late.rank] - sum(others) / len(others) if others else 0.0
        return late.seconds - max(0.0, beyond) - self.processor(late.rank)

    def hides(self, late: Late, least: float) -> bool:
        """Return whether *late* may be noise: what is in every step is below *least* (s), or below what varies."""
        return self.steady(late) < max(least, self.most)


def _key(piece: Piece) -> Hashable:
    return piece.part, piece.name, piece.shape, piece.nbytes


def _shortest(trace: RankTrace) -> dict[Hashable, tuple[float, int]]:
    """Return for each operator of *trace*, communication left out, its shortest duration (s) and its repetitions."""
    found: dict[Hashable, list[float]] = defaultdict(list)
    for piece in trace.measured():
        if piece.call is None:
            found[_key(piece)].append(piece.seconds)
    return {key: (min(several), len(several)) for key, several in found.items()}


def _slow_operators(trace: RankTrace) -> float:
    """Return the seconds of a step by which operators exceed their shortest repetition."""
    undisturbed = sum(least * count for least, count in _shortest(trace).values())
    return (sum(one.seconds for one in trace.measured() if one.call is None) - undisturbed) / len(trace.steps)


def _late_host(trace: RankTrace) -> float:
    """Return the seconds of a step by which the work of the host alone exceeds that of its shortest step."""
    own = [breakdown(_with_step(trace, number)).get(HOST, 0.0) for number in range(len(trace.steps))]
    return sum(own) / len(own) - min(own)


def _with_step(trace: RankTrace, number: int) -> RankTrace:
    return replace(trace, steps=(trace.steps[number],))
