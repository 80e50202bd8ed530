"""Evaluation runs scenarios, several at once if asked, and holds what they predict against what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from scenarios.evaluate.categories import regimes
from scenarios.results.expectations import Outcome, held
from scenarios.scenario import Scenario
from simulator.errors import SimulatorError


@dataclass(frozen=True)
class Comparison:
    """An *outcome* of the scenario of that name; *regimes* say in what state of affairs it was predicted."""

    scenario: str
    outcome: Outcome
    regimes: Mapping[str, str] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """The variant, or the scenario where it has none."""
        return self.outcome.variant or self.scenario


@dataclass(frozen=True)
class Evaluation:
    """The *comparisons* on one scenario, its *summary*, and for runs that could not be, by variant, why not."""

    scenario: Scenario
    comparisons: Sequence[Comparison]
    summary: Mapping[str, Any]
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether in each of its runs every GPU has the memory that it needs."""
        several = self.summary.get("variants", {"": self.summary}).values()
        return all(one["memory"]["fits"] for one in several if "memory" in one)


@dataclass(frozen=True)
class Spread:
    """The errors of some comparisons, as shares of the measured values: *mean*, *middle* and *worst*.

    *slower* is the mean error of the time, above 0 where too much time is predicted.
    """

    count: int
    mean: float
    middle: float
    worst: float
    slower: float


def spread(comparisons: Iterable[Comparison]) -> Spread | None:
    """The spread of the errors of *comparisons*; None of none."""
    outcomes = [comparison.outcome for comparison in comparisons]
    errors = [abs(outcome.error) for outcome in outcomes]
    if not errors:
        return None
    return Spread(len(errors), fmean(errors), median(errors), max(errors), fmean(one.slower for one in outcomes))


def evaluate(
    scenarios: Sequence[Scenario], jobs: int = 1, told: Callable[[str], object] = lambda run: None
) -> Iterator[Evaluation]:
    """The evaluation on each of *scenarios* in turn; *jobs* processes share the runs, *told* hears of each."""
    # as loaded, without the cluster that the check has built: it is large, and does not travel between processes
    runs = [replace(run) for scenario in scenarios for run in (scenario.variants.values() or (scenario,))]
    with ProcessPoolExecutor(jobs) if jobs > 1 else nullcontext() as pool:
        results = map(_outcome, runs) if pool is None else pool.map(_outcome, runs)
        for scenario in scenarios:
            yield _judged(scenario, results, told)


def _outcome(run: Scenario) -> tuple[dict[str, Any], dict[str, str]] | str:
    """Summary and regimes of a run, or what kept it from being."""
    run = replace(run)  # what it makes of itself goes with it
    try:
        summary = run.run().summary()
    except SimulatorError as error:
        return str(error)
    return summary, regimes(run, summary)


def _judged(scenario: Scenario, results: Iterator[Any], told: Callable[[str], object]) -> Evaluation:
    """The evaluation on *scenario*, of whose runs *results* come next."""
    summaries, states, failures = {}, {}, {}
    for name in scenario.variants or (scenario.name,):
        result = next(results)
        told(name)
        if isinstance(result, str):
            failures[name] = result
        else:
            summaries[name], states[name] = result
    summary = {"name": scenario.name, "variants": summaries} if scenario.variants else summaries.get(scenario.name, {})
    outcomes = held(scenario, summary) if summaries else []
    comparisons = [
        Comparison(scenario.name, outcome, states.get(outcome.variant or scenario.name, {})) for outcome in outcomes
    ]
    return Evaluation(scenario, comparisons, summary, failures)
