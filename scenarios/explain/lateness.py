"""The slowest rank of a step: it works longest by itself, and the others spend that time in communication with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scenarios.explain.breakdown import DEPENDENCY, GAPS, mean
from scenarios.explain.piece import COPY, HOST, LOADING, PHASES, WAITING

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
