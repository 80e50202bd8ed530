"""Evaluation runs scenarios, several at once on request, and compares predictions with measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from scenarios.evaluate.categories import categories
from scenarios.execution import Failure, execute
from scenarios.results.expectations import Outcome, held
from scenarios.scenario import Scenario

Measured = tuple[dict[str, Any], dict[str, str]]
"""The summary of a run, and its categories by kind."""


@dataclass(frozen=True)
class Comparison:
    """An *outcome* of the scenario of that name, and the *categories* of its run by kind."""

    scenario: str
    outcome: Outcome
    categories: Mapping[str, str] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """The variant's name, or the scenario's if there are no variants."""
        return self.outcome.variant or self.scenario


@dataclass(frozen=True)
class Evaluation:
    """The *comparisons* of one scenario, its *summary*, and the reasons of *failures* by variant."""

    scenario: Scenario
    comparisons: Sequence[Comparison]
    summary: Mapping[str, Any]
    failures: Mapping[str, str] = field(default_factory=dict)

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
    scenarios: Sequence[Scenario], jobs: int = 1, finished: Callable[[], object] = lambda: None
) -> Iterator[Evaluation]:
    """Yield the evaluation of each of *scenarios* in turn.

    *jobs* processes share the runs; *finished* is called after each run.
    """
    # copies without the cluster that the check has built: it is too large to send between processes
    runs = [replace(run) for scenario in scenarios for run in (scenario.variants.values() or (scenario,))]
    outcomes: dict[int, Measured | Failure] = {}
    with closing(execute([(_measured, run) for run in runs], jobs)) as ended:
        begin = 0
        for scenario in scenarios:
            own = range(begin, begin + (len(scenario.variants) or 1))
            while not all(index in outcomes for index in own):
                index, outcome = next(ended)
                outcomes[index] = outcome
                finished()
            yield _evaluated(scenario, [outcomes.pop(index) for index in own])
            begin = own.stop


def _measured(run: Scenario) -> Measured:
    """Return the summary and the categories of a run."""
    run = replace(run)  # the copy, with all that it builds, is dropped at the end
    summary = run.run().summary()
    return summary, categories(run, summary)


def _evaluated(scenario: Scenario, results: Sequence[Measured | Failure]) -> Evaluation:
    """Return the evaluation of *scenario* from the *results* of its runs."""
    summaries, found, failures = {}, {}, {}
    for name, ended in zip(scenario.variants or (scenario.name,), results, strict=True):
        if isinstance(ended, Failure):
            failures[name] = ended.message
        else:
            summaries[name], found[name] = ended
    summary = {"name": scenario.name, "variants": summaries} if scenario.variants else summaries.get(scenario.name, {})
    outcomes = held(scenario, summary) if summaries else []
    comparisons = [
        Comparison(scenario.name, outcome, found.get(outcome.variant or scenario.name, {})) for outcome in outcomes
    ]
    return Evaluation(scenario, comparisons, summary, failures)
