"""The slowest rank of a step: it works longest by itself, and the others spend that time in communication with it.

The noise of a machine is estimated from the run itself. Other work only lengthens an operator. So the shortest of an
operator's repetitions, in all layers and steps of a rank, is nearest to its undisturbed duration; what the others take
more comes and goes. A fault of the program is in every step. Without a GPU ranks share processors: if a rank takes
longer in all operators alike, its processor is slower or busier, whatever the program does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from clustersim.scenarios.explain.breakdown import DEPENDENCY, GAPS, breakdown, mean
from clustersim.scenarios.explain.pieces_of_work import COPY, HOST, LOADING, PHASES, WAITING, Piece
from clustersim.scenarios.explain.rank_trace import RankTrace

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
        return {trace.rank: _operators(trace) + _gaps(trace) for trace in self.traces}

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


def _operators(trace: RankTrace) -> float:
    """Return the seconds of a step by which operators exceed their shortest repetition."""
    undisturbed = sum(least * count for least, count in _shortest(trace).values())
    return (sum(one.seconds for one in trace.measured() if one.call is None) - undisturbed) / len(trace.steps)


def _gaps(trace: RankTrace) -> float:
    """Return the seconds of a step by which the work of the host alone exceeds that of its shortest step."""
    own = [breakdown(_with_step(trace, number)).get(HOST, 0.0) for number in range(len(trace.steps))]
    return sum(own) / len(own) - min(own)


def _with_step(trace: RankTrace, number: int) -> RankTrace:
    return replace(trace, steps=(trace.steps[number],))
