"""Verdicts as text: what was predicted beside what was measured, row by row and group by group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scenarios.evaluate.evaluation import Comparison, Evaluation, spread
from scenarios.results.expectations import Outcome, is_duration
from simulator.analysis.text import table
from simulator.units import show

ROWS = ("scenario", "run", "figure", "predicted", "measured", "error", "")
GROUPS = ("group", "figures", "mean", "median", "worst", "time")

LONGEST = 44
"""Letters of a run's name in a table."""


def rows(comparisons: Iterable[Comparison], longest: int = LONGEST) -> list[list[str]]:
    """A row of `ROWS` for each of *comparisons*, names of runs cut after *longest* letters."""
    return [
        [
            comparison.scenario,
            _shortened(comparison.run, longest),
            figure(comparison.outcome, longest),
            shown(comparison.outcome, comparison.outcome.value),
            shown(comparison.outcome, comparison.outcome.expected),
            f"{comparison.outcome.error:+.1%}",
            _told(comparison.outcome),
        ]
        for comparison in comparisons
    ]


def _told(outcome: Outcome) -> str:
    met = "ok" if outcome.met else f"MISSED (within {outcome.tolerance:.0%})"
    return f"{met}, fitted" if outcome.fitted else met


def group_rows(groups: dict[str, Sequence[Comparison]]) -> list[list[str]]:
    """A row of `GROUPS` for each of *groups* that has comparisons."""
    found = {name: spread(comparisons) for name, comparisons in groups.items()}
    return [
        [name, str(one.count), f"{one.mean:.1%}", f"{one.middle:.1%}", f"{one.worst:.1%}", f"{one.slower:+.1%}"]
        for name, one in found.items()
        if one
    ]


def by_scenario(evaluations: Iterable[Evaluation]) -> dict[str, Sequence[Comparison]]:
    """The comparisons of each scenario, and of all."""
    groups: dict[str, Sequence[Comparison]] = {one.scenario.name: one.comparisons for one in evaluations}
    return groups | {"all": [comparison for comparisons in groups.values() for comparison in comparisons]}


def text(evaluations: Sequence[Evaluation]) -> str:
    """All rows, and the mean, median and worst error by scenario."""
    comparisons = [comparison for one in evaluations for comparison in one.comparisons]
    if not comparisons:
        return "nothing is expected"
    return f"{table(rows(comparisons), ROWS, 'lllrrrl')}\n\n{groups_text(evaluations)}"


def groups_text(evaluations: Sequence[Evaluation]) -> str:
    """The mean, median and worst error by scenario, and how many figures are within their tolerance."""
    groups = by_scenario(evaluations)
    met = sum(comparison.outcome.met for comparison in groups["all"])
    spreads = table(group_rows(groups), GROUPS, "lrrrrr")
    return f"{spreads}\n\n{met} of {len(groups['all'])} figures within their tolerance"


def times(evaluations: Iterable[Evaluation]) -> dict[str, list[tuple[float, float]]]:
    """(measured, predicted) seconds of what figures of time and of throughput tell of, by scenario.

    Of a throughput the time is that of the step, in which it was predicted.
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
    """(GPUs, measured, predicted) TFLOP/s a GPU of the variants called ``SERIES on N GPUs``, by series of several."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    for comparison in evaluation.comparisons:
        series, _, rest = comparison.outcome.variant.partition(" on ")
        if rest and comparison.outcome.key == "hardware_tflops_per_gpu":
            gpus = evaluation.summary["variants"][comparison.outcome.variant]["simulation"]["ranks"]
            found.setdefault(series, []).append((gpus, comparison.outcome.expected, comparison.outcome.value))
    return {series: points for series, points in found.items() if len(points) > 1}


def _seconds(outcome: Outcome, summary: Mapping[str, Any]) -> tuple[float, float] | None:
    if outcome.relative_to or "memory" in outcome.key:
        return None
    if is_duration(outcome.key):
        return outcome.expected, outcome.value
    step = summary.get("step_time_s")
    return (step / (1 + outcome.slower), step) if step else None


def as_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison as `run --check --json` prints it."""
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


def figure(outcome: Outcome, longest: int = LONGEST) -> str:
    """What the figure is of, as a table names it."""
    return f"{outcome.key} / {_shortened(outcome.relative_to, longest)}" if outcome.relative_to else outcome.key


def shown(outcome: Outcome, value: float) -> str:
    """*value* in the unit of the key of *outcome*."""
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
