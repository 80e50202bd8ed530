"""Comparisons as text: predicted beside measured values by row, and error statistics by group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clustersim.scenarios.accuracy.evaluation import Comparison, Evaluation, error_statistics
from clustersim.scenarios.results.expectations import ExpectationOutcome, is_duration
from clustersim.simulator.reading.plain_text import table
from clustersim.simulator.reading.units import show

ROWS = ("scenario", "run", "figure", "predicted", "measured", "error", "")
GROUPS = ("group", "figures", "mean", "median", "worst", "time")

LONGEST = 44
"""Characters of a run's name in a table, at most."""


def rows(comparisons: Iterable[Comparison], longest: int = LONGEST) -> list[list[str]]:
    """Return a row of `ROWS` for each of *comparisons*; names of runs are cut after *longest* characters."""
    return [
        [
            comparison.scenario,
            _shortened(comparison.run, longest),
            figure(comparison.outcome, longest),
            shown(comparison.outcome, comparison.outcome.value),
            shown(comparison.outcome, comparison.outcome.expected),
            f"{comparison.outcome.error:+.1%}",
            _met(comparison.outcome),
        ]
        for comparison in comparisons
    ]


def _met(outcome: ExpectationOutcome) -> str:
    met = "ok" if outcome.met else f"MISSED (within {outcome.tolerance:.0%})"
    return f"{met}, fitted" if outcome.fitted else met


def group_rows(groups: dict[str, Sequence[Comparison]]) -> list[list[str]]:
    """Return a row of `GROUPS` for each of *groups* that has comparisons."""
    found = {name: error_statistics(comparisons) for name, comparisons in groups.items()}
    return [
        [name, str(one.count), f"{one.mean:.1%}", f"{one.middle:.1%}", f"{one.worst:.1%}", f"{one.slower:+.1%}"]
        for name, one in found.items()
        if one
    ]


def by_scenario(evaluations: Iterable[Evaluation]) -> dict[str, Sequence[Comparison]]:
    """Return the comparisons of each scenario by name, and all of them as ``all``."""
    groups: dict[str, Sequence[Comparison]] = {one.scenario.name: one.comparisons for one in evaluations}
    return groups | {"all": [comparison for comparisons in groups.values() for comparison in comparisons]}


def text(evaluations: Sequence[Evaluation]) -> str:
    """Return all rows, and the mean, median and worst error by scenario."""
    comparisons = [comparison for one in evaluations for comparison in one.comparisons]
    if not comparisons:
        return "nothing is expected"
    return f"{table(rows(comparisons), ROWS, 'lllrrrl')}\n\n{groups_text(evaluations)}"


def groups_text(evaluations: Sequence[Evaluation]) -> str:
    """Return the mean, median and worst error by scenario, and how many figures are within their tolerance."""
    groups = by_scenario(evaluations)
    met = sum(comparison.outcome.met for comparison in groups["all"])
    statistics = table(group_rows(groups), GROUPS, "lrrrrr")
    return f"{statistics}\n\n{met} of {len(groups['all'])} figures within their tolerance"


def times(evaluations: Iterable[Evaluation]) -> dict[str, list[tuple[float, float]]]:
    """Return (measured, predicted) seconds of figures of time and of throughput, by scenario.

    The time of a throughput is the step time.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for one in evaluations:
        summaries = one.summary.get("variants", {"": one.summary})
        for comparison in one.comparisons:
            pair = _seconds(comparison.outcome, summaries.get(comparison.outcome.variant, {}))
            if pair is not None:
                found.setdefault(one.scenario.name, []).append(pair)
    return found


def scaling(evaluation: Evaluation) -> dict[str, list[tuple[int, float, float]]]:
    """Return (GPUs, measured, predicted) TFLOP/s per GPU of variants called ``SERIES on N GPUs``, by series.

    Series of one point are left out.
    """
    found: dict[str, list[tuple[int, float, float]]] = {}
    for comparison in evaluation.comparisons:
        series, _, rest = comparison.outcome.variant.partition(" on ")
        if rest and comparison.outcome.key == "hardware_tflops_per_gpu":
            gpus = evaluation.summary["variants"][comparison.outcome.variant]["simulation"]["ranks"]
            found.setdefault(series, []).append((gpus, comparison.outcome.expected, comparison.outcome.value))
    return {series: points for series, points in found.items() if len(points) > 1}


def _seconds(outcome: ExpectationOutcome, summary: Mapping[str, Any]) -> tuple[float, float] | None:
    if outcome.relative_to or "memory" in outcome.key:
        return None
    if is_duration(outcome.key):
        return outcome.expected, outcome.value
    step = summary.get("step_time_s")
    return (step / (1 + outcome.slower), step) if step else None


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as `run --check --json` prints it."""
    outcome = comparison.outcome
    return {
        "variant": outcome.variant or None,
        "key": outcome.key,
        "relative_to": outcome.relative_to or None,
        "predicted": outcome.value,
        "expected": outcome.expected,
        "error": outcome.error,
        "tolerance": outcome.tolerance,
        "met": outcome.met,
        "fitted": outcome.fitted,
        "source": outcome.source,
    }


def figure(outcome: ExpectationOutcome, longest: int = LONGEST) -> str:
    """Return the name of the figure in a table."""
    return f"{outcome.key} / {_shortened(outcome.relative_to, longest)}" if outcome.relative_to else outcome.key


def shown(outcome: ExpectationOutcome, value: float) -> str:
    """Return *value* as text with the unit of the key of *outcome*."""
    last = outcome.key.split(".")[-1]
    if outcome.relative_to:
        return f"{value:.3g}"
    if "bytes" in outcome.key:
        return show(value, "size")
    if is_duration(outcome.key):
        return show(value, "time")
    if last in ("busbw", "algbw"):
        return show(value, "bandwidth")
    if last in ("mfu", "hfu", "bubble_fraction"):
        return f"{value:.1%}"
    return f"{value:.4g} TFLOP/s" if "tflops" in last else f"{value:.4g}"


def _shortened(name: str, longest: int) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
