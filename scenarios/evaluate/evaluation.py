"""Evaluation runs scenarios, several at once on request, and compares predictions with measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from scenarios.evaluate.categories import categories
from scenarios.results.expectations import Outcome, held
from scenarios.scenario import Scenario
from simulator.errors import SimulatorError


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
    scenarios: Sequence[Scenario], jobs: int = 1, finished: Callable[[str], object] = lambda run: None
) -> Iterator[Evaluation]:
    """Yield the evaluation of each of *scenarios* in turn.

    *jobs* processes share the runs; *finished* is called with the name of each run after it.
    """
    # copies without the cluster that the check has built: it is too large to send between processes
    runs = [replace(run) for scenario in scenarios for run in (scenario.variants.values() or (scenario,))]
    with ProcessPoolExecutor(jobs) if jobs > 1 else nullcontext() as pool:
        results = map(_outcome, runs) if pool is None else pool.map(_outcome, runs)
        for scenario in scenarios:
            yield _evaluated(scenario, results, finished)


def _outcome(run: Scenario) -> tuple[dict[str, Any], dict[str, str]] | str:
    """Return the summary and categories of a run, or the message of its error."""
    run = replace(run)  # the copy, with all that it builds, is dropped at the end
    try:
        summary = run.run().summary()
    except SimulatorError as error:
        return str(error)
    return summary, categories(run, summary)


def _evaluated(scenario: Scenario, results: Iterator[Any], finished: Callable[[str], object]) -> Evaluation:
    """Return the evaluation of *scenario*; the next *results* are those of its runs."""
    summaries, found, failures = {}, {}, {}
    for name in scenario.variants or (scenario.name,):
        result = next(results)
        finished(name)
        if isinstance(result, str):
            failures[name] = result
        else:
            summaries[name], found[name] = result
    summary = {"name": scenario.name, "variants": summaries} if scenario.variants else summaries.get(scenario.name, {})
    outcomes = held(scenario, summary) if summaries else []
    comparisons = [
        Comparison(scenario.name, outcome, found.get(outcome.variant or scenario.name, {})) for outcome in outcomes
    ]
    return Evaluation(scenario, comparisons, summary, failures)
