"""Evaluation runs scenarios, several at once on request, and compares predictions with measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from scenarios.evaluate.categories import categories
from scenarios.execution import Failure, execute
from scenarios.fitting.left_out import Refit
from scenarios.results.expectations import Outcome, held
from scenarios.results.interval import Conditions
from scenarios.results.step_numbers import StepNumbers
from scenarios.scenario import Scenario


@dataclass(frozen=True)
class Measured:
    """The *summary* of a run, its *categories* by kind, and its *conditions* if it is a step that has an interval."""

    summary: dict[str, Any]
    categories: dict[str, str]
    conditions: Conditions | None = None


@dataclass(frozen=True)
class Comparison:
    """An *outcome* of the scenario of that name, the *categories* of its run by kind, and its *conditions*."""

    scenario: str
    outcome: Outcome
    categories: Mapping[str, str] = field(default_factory=dict)
    conditions: Conditions | None = None

    @property
    def run(self) -> str:
        """The variant's name, or the scenario's if there are no variants."""
        return self.outcome.variant or self.scenario


@dataclass(frozen=True)
class Evaluation:
    """The *comparisons* of one scenario, its *summary*, and the reasons of *failures* by variant.

    *refused*: the faults of variants that cannot be loaded. *left_out*: the comparisons as predicted by fits that have
    not seen the source of the scenario; the same as *comparisons* if nothing is fitted to it.
    """

    scenario: Scenario
    comparisons: Sequence[Comparison]
    summary: Mapping[str, Any]
    failures: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    left_out: Sequence[Comparison] = ()

    @property
    def fits(self) -> bool:
        """True if every GPU of every run has the memory that it needs."""
        several = self.summary.get("variants", {"": self.summary}).values()
        return all(one["memory"]["fits"] for one in several if "memory" in one)


@dataclass(frozen=True)
class ErrorStatistics:
    """Absolute errors of *count* comparisons relative to the measured values: *mean*, median (*middle*), *worst*.

    *slower* is the mean signed error of the time, above 0 if the predicted times are too long.
    """

    count: int
    mean: float
    middle: float
    worst: float
    slower: float


def error_statistics(comparisons: Iterable[Comparison]) -> ErrorStatistics | None:
    """Return the statistics of the errors of *comparisons*; None if there are none."""
    outcomes = [comparison.outcome for comparison in comparisons]
    errors = [abs(outcome.error) for outcome in outcomes]
    if not errors:
        return None
    return ErrorStatistics(
        len(errors), fmean(errors), median(errors), max(errors), fmean(one.slower for one in outcomes)
    )


def evaluate(
    scenarios: Sequence[Scenario],
    jobs: int = 1,
    finished: Callable[[], object] = lambda: None,
    refits: Mapping[str, Refit] | None = None,
) -> Iterator[Evaluation]:
    """Yield the evaluation of each of *scenarios* in turn.

    *jobs* processes share the runs; *finished* is called after each run. *refits*: the fits without its own source, by
    scenario; runs of these are predicted twice.
    """
    # copies without the cluster that the check has built: it is too large to send between processes
    runs = [
        (number, (_measured, (replace(run), refit)))
        for number, scenario in enumerate(scenarios)
        for refit in (None, *filter(None, [(refits or {}).get(scenario.name)]))
        for run in (scenario.variants.values() or (scenario,))
    ]
    outcomes: dict[int, Measured | Failure] = {}
    with closing(execute([run for _, run in runs], jobs)) as ended:
        for number, scenario in enumerate(scenarios):
            own = [index for index, (of, _) in enumerate(runs) if of == number]
            while not all(index in outcomes for index in own):
                index, outcome = next(ended)
                outcomes[index] = outcome
                finished()
            results = [outcomes.pop(index) for index in own]
            each = len(scenario.variants) or 1
            evaluation = _evaluated(scenario, results[:each])
            again = _evaluated(scenario, results[each:]) if len(results) > each else evaluation
            yield replace(evaluation, left_out=again.comparisons, failures={**again.failures, **evaluation.failures})


def _measured(job: tuple[Scenario, Refit | None]) -> Measured:
    """Return what a run gives, by the fits without its source if there are any in *job*."""
    run, refit = replace(job[0]), job[1]  # the copy, with all that it builds, is dropped at the end
    result = (refit.applied(run) if refit else run).run()
    summary = result.summary()
    # without an interval the step is a bound, or its durations are given
    conditions = None
    if isinstance(result, StepNumbers) and result.uncertainty.interval is not None:
        conditions = result.uncertainty.conditions
    return Measured(summary, categories(run, summary), conditions)


def _evaluated(scenario: Scenario, results: Sequence[Measured | Failure]) -> Evaluation:
    """Return the evaluation of *scenario* from the *results* of its runs."""
    ended: dict[str, Measured] = {}
    failures = {}
    for name, result in zip(scenario.variants or (scenario.name,), results, strict=True):
        if isinstance(result, Failure):
            failures[name] = result.message
        else:
            ended[name] = result
    summaries = {name: one.summary for name, one in ended.items()}
    summary = {"name": scenario.name, "variants": summaries} if scenario.variants else summaries.get(scenario.name, {})
    comparisons = []
    for outcome in held(scenario, summary) if summaries else []:
        of = ended.get(outcome.variant or scenario.name, Measured({}, {}))
        comparisons.append(Comparison(scenario.name, outcome, of.categories, of.conditions))
    return Evaluation(scenario, comparisons, summary, failures)
