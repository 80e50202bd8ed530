"""Limits of the intervals of step times by distance from what is known, and their coverage on sources left out.

Every run is predicted without its own source, and its distance is that from the runs of all other sources. The limits
of a distance hold a share of these runs in which each source weighs as much as any other. Runs of one source resemble
each other, so coverage is measured on each source with limits and distances that the others give, and the share is
raised until `LEVEL` of the runs of a distance lie inside: limits that hold 95 % of the known hold less of a new source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date
from functools import cached_property
from math import log, log2
from statistics import fmean
from typing import Any

from clustersim.scenarios.accuracy.evaluation import Comparison
from clustersim.scenarios.accuracy.provenance import source_of
from clustersim.scenarios.results.interval import CLASSES, LEVEL, NEAR, SEVERAL, Known, Limits
from clustersim.simulator.reading.dataclass import dataclass

SHARES = tuple(LEVEL + step * (1 - LEVEL) / 10 for step in range(11))
"""Shares of known runs that limits may hold: from `LEVEL` to all, in ten steps."""

EXACT = 1e-9
"""Weights of rows add up to a share within this."""


@dataclass(frozen=True)
class Coverage:
    """*rows* of a distance, of that many *sources*: the *share* inside their intervals, and the mean *width* of these.

    The width is relative to the predicted step time.
    """

    rows: int
    sources: int
    share: float
    width: float


def known_runs(comparisons: Iterable[Comparison]) -> Iterator[Known]:
    """Yield each training step of *comparisons*, by its time or rate; one for each run. They are predicted without
    their sources."""
    seen = set()
    for one in comparisons:
        outcome = one.outcome
        counts = one.conditions is not None and not outcome.relative_to and "memory" not in outcome.key
        if counts and outcome.slower > -1 and (one.scenario, one.run) not in seen:
            assert one.conditions is not None
            seen.add((one.scenario, one.run))
            yield Known(source_of(one.scenario), -log(1 + outcome.slower), one.conditions)


@dataclass(frozen=True)
class IntervalCalibration:
    """*rows*, the sources of the rows that are like each (*near*), and those sources whose rows *judge*."""

    rows: Sequence[Known]
    near: Sequence[AbstractSet[str]]
    judging: AbstractSet[str]

    def distance(self, place: int, without: str = "") -> str:
        """Return the class of row *place* by the rows of other sources, *without* one of them."""
        found = len(self.near[place] - {self.rows[place].source, without})
        return CLASSES[0 if found >= SEVERAL else 1 if found else 2]

    @cached_property
    def shares(self) -> dict[str, float]:
        """The share of known runs by class whose limits hold `LEVEL` of the rows of sources left out; at most all."""
        found: dict[str, float] = {}
        for name in CLASSES:
            found[name] = next((share for share in SHARES if self._holds({**found, name: share})), 1.0)
        return found

    def _holds(self, shares: Mapping[str, float]) -> bool:
        """Return whether limits of *shares* hold `LEVEL` of the rows of the last class of them, each by other sources.

        True of a class without rows.
        """
        name = [*shares][-1]
        own = [
            row for place, row in enumerate(self.rows) if row.source in self.judging and self.distance(place) == name
        ]
        limits = {source: self._limits(shares, source)[name] for source in {row.source for row in own}}
        return not own or fmean(limits[row.source].contains(row.ratio) for row in own) >= LEVEL

    def limits(self, without: str = "") -> dict[str, Limits]:
        """Return the limits by class, of the judging rows *without* a source; those farther are at least as wide.

        A class without rows has the limits of all.
        """
        return self._limits(self.shares, without)

    def _limits(self, shares: Mapping[str, float], without: str) -> dict[str, Limits]:
        """Return the limits of the classes that hold *shares* of their rows.

        Both limits of a farther class are as many times those of the nearest: on which side runs err that are like
        none that is known, the few that are cannot tell.
        """
        judged = self._judged[without]
        found: dict[str, Limits] = {}
        widest = Limits(0.0, 0.0)
        for name, share in shares.items():
            own = [row for distance, row in judged if distance == name] or [row for _, row in judged]
            one = shortest(own, share) if own else widest
            widest = Limits(min(widest.low, one.low), max(widest.high, one.high))
            nearest = found.setdefault(CLASSES[0], widest)
            widest = found[name] = _grown(nearest, widest)
        return found

    @cached_property
    def _judged(self) -> dict[str, list[tuple[str, tuple[str, float]]]]:
        """The class, source and ratio of the judging rows, by the source that is left out; none under an empty text."""
        return {
            without: [
                (self.distance(place, without), (row.source, row.ratio))
                for place, row in enumerate(self.rows)
                if row.source in self.judging - {without}
            ]
            for without in ("", *dict.fromkeys(row.source for row in self.rows))
        }

    def inside(self) -> list[tuple[Known, str, Limits]]:
        """Return each judging row with its class and limits, as given by all other sources."""
        limits = {source: self.limits(source) for source in sorted(self.judging)}
        return [
            (row, self.distance(place), limits[row.source][self.distance(place)])
            for place, row in enumerate(self.rows)
            if row.source in self.judging
        ]


def calibration(rows: Sequence[Known], judging: AbstractSet[str] | None = None) -> IntervalCalibration:
    """Return the calibration by *rows*. *judging*: the sources that no constant was chosen by; by default all."""
    near = [{other.source for other in rows if row.conditions.distance(other.conditions) < NEAR} for row in rows]
    return IntervalCalibration(rows, near, {row.source for row in rows} if judging is None else judging)


def shortest(rows: Sequence[tuple[str, float]], share: float = LEVEL) -> Limits:
    """Return the shortest range about 0 that holds a *share* of *rows*, (source, ratio); each source weighs the same.

    >>> shortest([("a", n / 64) for n in range(20)])
    Limits(low=0.0, high=0.28125)
    """
    weights = {source: 1 / number for source, number in Counter(source for source, _ in rows).items()}
    needed = share * len(weights) - EXACT
    ordered = sorted((ratio, weights[source]) for source, ratio in rows)
    best, end, held = None, 0, 0.0
    for ratio, weight in ordered:
        while held < needed and end < len(ordered):
            held += ordered[end][1]
            end += 1
        if held < needed:
            break
        one = Limits(min(0.0, ratio), max(0.0, ordered[end - 1][0]))
        best = one if best is None or one.high - one.low < best.high - best.low else best
        held -= weight
    assert best is not None
    return best


def _grown(nearest: Limits, limits: Limits) -> Limits:
    """Return *limits* with the side that grew less since *nearest* as far as the other one.

    >>> _grown(Limits(-0.2, 0.4), Limits(-0.2, 0.8))
    Limits(low=-0.4, high=0.8)
    """
    times = max(far / near if near else 1.0 for far, near in zip(_sides(limits), _sides(nearest), strict=True))
    return Limits(min(limits.low, nearest.low * times), max(limits.high, nearest.high * times))


def _sides(limits: Limits) -> tuple[float, float]:
    return limits.low, limits.high


def coverage(of: IntervalCalibration) -> dict[str, Coverage]:
    """Return the coverage by class of distance, and of all rows under ``all``."""
    inside = of.inside()
    groups = {"all": inside} | {name: [one for one in inside if one[1] == name] for name in CLASSES}
    return {name: _coverage(rows) for name, rows in groups.items() if rows}


def _coverage(rows: Sequence[tuple[Known, str, Limits]]) -> Coverage:
    share = fmean(own.contains(row.ratio) for row, _, own in rows)
    return Coverage(len(rows), len({row.source for row, *_ in rows}), share, fmean(own.width for *_, own in rows))


def contents(of: IntervalCalibration, command: str, today: date) -> dict[str, Any]:
    """Return the file of intervals by *of*, as plain data; *command* made it on *today*."""
    found, limits = coverage(of), of.limits()
    return {
        "version": 1,
        "source": f"{command}, {today:%Y-%m-%d}: published steps, each predicted without its source",
        "limits": {name: _written(limits[name], found.get(name)) for name in CLASSES},
        "all": _measured(found.get("all")),
        "known": _compact(of.rows),
    }


def _written(own: Limits, of: Coverage | None) -> dict[str, float]:
    return {"low": round(own.low, 3), "high": round(own.high, 3)} | _measured(of)


def _measured(of: Coverage | None) -> dict[str, float]:
    if of is None:
        return {}
    return {"rows": of.rows, "sources": of.sources, "coverage": round(of.share, 3), "width": round(of.width, 3)}


def _compact(rows: Iterable[Known]) -> dict[str, list[str]]:
    """Return the conditions of *rows* by source, with their number, as text; ranks and kernels to powers of two."""
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        one = row.conditions
        ranks, kernel = 2 ** round(log2(one.ranks)), f"{2.0 ** round(log2(one.kernel)):.3g}"
        key = row.source, f"{one.framework}, {one.model}, {one.generation}, {ranks}, {kernel}"
        counts[key] = counts.get(key, 0) + 1
    found: dict[str, list[str]] = {}
    for (source, text), number in sorted(counts.items()):
        found.setdefault(source, []).append(f"{text}, {number}")
    return found
