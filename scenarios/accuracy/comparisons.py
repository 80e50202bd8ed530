"""Predictions beside measurements as text: rows, and error statistics by group and by source of measurements.

Errors by source of measurements: each source counts once, and is predicted by constants that have not seen it.

Four groups of sources: strangers, whose runs were written as scenarios before any prediction of them was seen; those
that were seen, but to which nothing is fitted; those that are predicted by a fit without them; and those that inform
constants chosen by hand, which no refit can leave out and which are therefore counted apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from clustersim.scenarios.accuracy.evaluation import Comparison, Evaluation, error_statistics
from clustersim.scenarios.accuracy.layers_and_products import ProductErrors
from clustersim.scenarios.accuracy.prediction_intervals import IntervalCalibration, calibration, known_runs
from clustersim.scenarios.accuracy.provenance import fitted_to, informed_by_hand, source_of, sources
from clustersim.scenarios.results.expectations import ExpectationOutcome, is_duration
from clustersim.simulator.reading.dataclass import dataclass
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


STEPS, COLLECTIVES, PRODUCTS, MEMORY = KINDS = ("steps", "collectives", "products", "memory")
"""Kinds of figures; times of single layers count as steps."""

STRANGER, SEEN, LEFT_OUT, INFORMS = SOURCE_GROUPS = ("stranger", "seen", "left out", "informs")
"""How a source is predicted: unseen; seen, nothing is fitted to it; by a fit without it; by constants it informs."""

FEWEST_SOURCES = 10
"""Sources of steps from which intervals can be made: of fewer, the worst run of one source would be a limit."""

FAR = 0.25
"""Mean error above which a source needs a cause."""


@dataclass(frozen=True)
class SourceErrors:
    """Relative *errors* of the times (above 0: predicted too slow) of one kind of figure of the source *name*.

    *shipped*: by the shipped constants, which may have seen it. *inside*: whether each step lies in its interval, by
    limits of the other sources; empty where none is printed. *refused*: figures whose scenario was refused or failed.
    """

    name: str
    kind: str
    errors: Sequence[float]
    shipped: Sequence[float]
    inside: Sequence[bool] = ()
    refused: int = 0

    @property
    def group(self) -> str:
        """One of `SOURCE_GROUPS`."""
        return group(self.name)

    @property
    def mean(self) -> float:
        """The mean absolute error."""
        return fmean(map(abs, self.errors))

    @property
    def bias(self) -> float:
        """The mean error."""
        return fmean(self.errors)

    @property
    def cause(self) -> str:
        """Why it is far off, as its own text supports; empty if that is not known."""
        return sources()[self.name].causes.get(self.kind, "") if self.name in sources() else ""


@dataclass(frozen=True)
class Headline:
    """Medians over *sources* of the mean error and of the bias; *inside*: share of the steps in their intervals."""

    sources: int
    rows: int
    mean: float
    bias: float
    inside: float | None
    far: int


def group(source: str) -> str:
    """Return how *source* is predicted, one of `SOURCE_GROUPS`; a scenario that is not published is a stranger."""
    if source in informed_by_hand():
        return INFORMS
    if source in fitted_to():
        return LEFT_OUT
    return STRANGER if source not in sources() or sources()[source].stranger else SEEN


def step_calibration(evaluations: Iterable[Evaluation]) -> IntervalCalibration:
    """Return the calibration of intervals by all steps, judged by sources that no constant was chosen by.

    Fewer than `FEWEST_SOURCES` of these judge nothing.
    """
    rows = list(known_runs(comparison for one in evaluations for comparison in one.left_out))
    judging = {row.source for row in rows if group(row.source) != INFORMS}
    return calibration(rows, judging if len(judging) >= FEWEST_SOURCES else set())


def kind_of(comparison: Comparison) -> str:
    """Return the kind of figure that *comparison* is of."""
    if "memory" in comparison.outcome.key:
        return MEMORY
    return COLLECTIVES if comparison.categories.get("what") == "collective" else STEPS


def by_source(
    evaluations: Sequence[Evaluation], products: Sequence[ProductErrors], of: IntervalCalibration
) -> dict[str, list[SourceErrors]]:
    """Return the errors of each source by kind of figure, strangers first and the largest errors first."""
    errors = _errors(comparison for one in evaluations for comparison in one.left_out)
    shipped = _errors(comparison for one in evaluations for comparison in one.comparisons)
    inside: dict[str, list[bool]] = {}
    for row, _, limits in of.inside():
        inside.setdefault(row.source, []).append(limits.contains(row.ratio))
    for one in products:
        errors.setdefault((PRODUCTS, one.source), []).extend(one.errors)
        shipped.setdefault((PRODUCTS, one.source), []).extend(one.errors)
    refused = _refused(evaluations)
    found = [
        SourceErrors(
            name,
            kind,
            own,
            shipped[kind, name],
            inside.get(name, ()) if kind == STEPS else (),
            refused.get((kind, name), 0),
        )
        for (kind, name), own in errors.items()
    ]
    return {
        kind: sorted(
            (one for one in found if one.kind == kind), key=lambda one: (SOURCE_GROUPS.index(one.group), -one.mean)
        )
        for kind in KINDS
    }


def _errors(comparisons: Iterable[Comparison]) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    for one in comparisons:
        found.setdefault((kind_of(one), source_of(one.scenario)), []).append(one.outcome.slower)
    return found


def _refused(evaluations: Iterable[Evaluation]) -> Mapping[tuple[str, str], int]:
    """Return how many runs were refused or failed, by (kind, source)."""
    counts: dict[tuple[str, str], int] = {}
    for one in evaluations:
        kind = COLLECTIVES if one.scenario.specification.collective is not None else STEPS
        key = kind, source_of(one.scenario.name)
        counts[key] = counts.get(key, 0) + len(one.refused) + len(one.failures)
    return counts


def headline(own: Sequence[SourceErrors]) -> Headline | None:
    """Return the headline of the sources *own*; None without any."""
    if not own:
        return None
    inside = [one for source in own for one in source.inside]
    return Headline(
        len(own),
        sum(len(one.errors) for one in own),
        median(one.mean for one in own),
        median(one.bias for one in own),
        fmean(inside) if inside else None,
        sum(one.mean > FAR for one in own),
    )
