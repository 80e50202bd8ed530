"""Errors by source of measurements: each source counts once, and is predicted by constants that have not seen it.

Four groups of sources: strangers, whose runs were written as scenarios before any prediction of them was seen; those
that were seen, but to which nothing is fitted; those that are predicted by a fit without them; and those that inform
constants chosen by hand, which no refit can leave out and which are therefore counted apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from clustersim.scenarios.accuracy.evaluation import Comparison, Evaluation
from clustersim.scenarios.accuracy.layers_and_products import ProductErrors
from clustersim.scenarios.accuracy.prediction_intervals import IntervalCalibration, calibration, known_runs
from clustersim.scenarios.accuracy.provenance import fitted_to, informed_by_hand, source_of, sources

STEPS, COLLECTIVES, PRODUCTS, MEMORY = KINDS = ("steps", "collectives", "products", "memory")
"""Kinds of figures; times of single layers count as steps."""

STRANGER, SEEN, LEFT_OUT, INFORMS = GROUPS = ("stranger", "seen", "left out", "informs")
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
        """One of `GROUPS`."""
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
    """Return how *source* is predicted, one of `GROUPS`; a scenario that is not published is a stranger."""
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
        kind: sorted((one for one in found if one.kind == kind), key=lambda one: (GROUPS.index(one.group), -one.mean))
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
