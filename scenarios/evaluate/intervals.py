"""Calibration of the intervals of step times on published runs that nothing was fitted to, and their coverage.

The limits of a regime are conformal: of n residuals ceil((n + 1) 95 %) lie between them (Lei et al. 2018,
"Distribution-Free Predictive Inference for Regression"). Runs of one source resemble each other, so coverage is
measured on each source with the limits of all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import ceil, log
from statistics import fmean
from typing import Any

from scenarios.evaluate.evaluation import Comparison
from scenarios.results.interval import FEWEST, KINDS, LEVEL, Intervals, Limits


@dataclass(frozen=True)
class Residual:
    """The logarithm *ratio* of measured over predicted step time of a run of *source*, and its *regimes* by kind."""

    source: str
    ratio: float
    regimes: Mapping[str, str]


@dataclass(frozen=True)
class Coverage:
    """*rows* of a regime, from that many *sources*: the *share* inside their intervals, and the mean *width* of these.

    The width is that over the predicted step time.
    """

    rows: int
    sources: int
    share: float
    width: float


def residuals(comparisons: Iterable[Comparison]) -> Iterator[Residual]:
    """Yield the residual of each training step that nothing was fitted to, by its time or rate; one for each run."""
    seen = set()
    for one in comparisons:
        outcome = one.outcome
        counts = one.categories.get("what") == "training step" and not outcome.relative_to and not outcome.fitted
        if counts and "memory" not in outcome.key and outcome.slower > -1 and (one.scenario, one.run) not in seen:
            seen.add((one.scenario, one.run))
            yield Residual(one.scenario, -log(1 + outcome.slower), {kind: one.categories[kind] for kind in KINDS})


def calibrated(rows: Sequence[Residual]) -> Intervals:
    """Return the intervals by *rows*: limits of all of them, and of each regime of at least `FEWEST` rows."""
    found = {
        regime: _limits([row.ratio for row in own]) for regime, own in by_regime(rows).items() if len(own) >= FEWEST
    }
    return Intervals(_limits([row.ratio for row in rows]), found)


def by_regime(rows: Iterable[Residual]) -> dict[tuple[str, str], list[Residual]]:
    """Return the rows of each regime, (kind, name)."""
    found: dict[tuple[str, str], list[Residual]] = {}
    for row in rows:
        for regime in row.regimes.items():
            found.setdefault(regime, []).append(row)
    return dict(sorted(found.items(), key=lambda item: (KINDS.index(item[0][0]), item[0][1])))


def _limits(ratios: Sequence[float]) -> Limits:
    """Return the shortest range about 0 that holds `LEVEL` of *ratios* and of one unknown row more, if any does.

    >>> _limits([-0.5, *(n / 128 for n in range(99))])
    Limits(low=0.0, high=0.7421875)
    """
    ordered = sorted(ratios)
    count = min(len(ordered), ceil(LEVEL * (len(ordered) + 1)))
    ends = zip(ordered, ordered[count - 1 :], strict=False)
    return min((Limits(min(0.0, low), max(0.0, high)) for low, high in ends), key=lambda limits: limits.width)


def coverage(rows: Sequence[Residual]) -> dict[tuple[str, str], Coverage]:
    """Return the coverage by regime, and of all rows under ("all", ""). Each source has the intervals of the others."""
    held_out = []
    for source in dict.fromkeys(row.source for row in rows):
        others = [row for row in rows if row.source != source]
        if others:
            intervals = calibrated(others)
            held_out += [(row, intervals.limits(row.regimes)) for row in rows if row.source == source]
    whole = {("all", ""): held_out} if held_out else {}
    for row, own in held_out:
        for regime in row.regimes.items():
            whole.setdefault(regime, []).append((row, own))
    return {regime: _coverage(whole[regime]) for regime in (("all", ""), *by_regime(rows)) if regime in whole}


def _coverage(rows: Sequence[tuple[Residual, Limits]]) -> Coverage:
    inside = fmean(own.contains(row.ratio) for row, own in rows)
    return Coverage(len(rows), len({row.source for row, _ in rows}), inside, fmean(own.width for _, own in rows))


def contents(rows: Sequence[Residual], command: str, today: date) -> dict[str, Any]:
    """Return the file of intervals by *rows*, as plain data; *command* made them on *today*."""
    intervals, held_out = calibrated(rows), coverage(rows)
    regimes: dict[str, dict[str, Any]] = {}
    for kind, name in by_regime(rows):
        own = intervals.of.get((kind, name))
        regimes.setdefault(kind, {})[name] = (_written(own) if own else {}) | _measured(held_out.get((kind, name)))
    return {
        "version": 1,
        "source": f"{command}, {today:%Y-%m-%d}: published steps that nothing was fitted to",
        "all": _written(intervals.all) | _measured(held_out.get(("all", ""))),
        "regimes": regimes,
    }


def _written(own: Limits) -> dict[str, float]:
    return {"low": round(own.low, 3), "high": round(own.high, 3)}


def _measured(of: Coverage | None) -> dict[str, float]:
    if of is None:
        return {}
    return {"rows": of.rows, "sources": of.sources, "coverage": round(of.share, 3), "width": round(of.width, 3)}
