"""Evaluation runs scenarios, several at once on request, and compares predictions with measurements.

Categories of runs, such as message sizes or numbers of GPUs, for which errors are shown separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import field, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from clustersim.scenarios.accuracy.left_out import Refit
from clustersim.scenarios.results.expectations import ExpectationOutcome, held
from clustersim.scenarios.results.interval import Conditions
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.scenarios.run.execution import execute
from clustersim.scenarios.run.processes import Failure
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.dataclass import dataclass

if TYPE_CHECKING:
    from clustersim.scenarios.build.built import BuiltScenario

MIB = 2**20

SIZES = ((MIB, "below 1 MiB"), (16 * MIB, "1 to 16 MiB"), (256 * MIB, "16 to 256 MiB"), (None, "256 MiB and more"))
"""Sizes of messages: latency dominates up to 1 MiB, bandwidth from 256 MiB on."""

GPUS = ((9, "1 to 8"), (65, "9 to 64"), (513, "65 to 512"), (None, "513 and more"))

ORDER = tuple(name for _, name in (*SIZES, *GPUS))
"""The order of categories that have one; others are sorted by name."""

NOTABLE = 0.1
"""Share of the step above which exposed communication, copies or the bubble are a category."""


def categories(run: BuiltScenario, summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the category of *run*, whose result is *summary*, by kind of category."""
    accelerator = run.cluster().accelerator(run.derived.devices[0]).name
    if run.specification.collective is not None:
        return _of_a_collective(run, summary) | {"GPU": accelerator}
    return _of_a_step(run, summary) | {"GPU": accelerator, "software": run.stack}


def _of_a_collective(run: BuiltScenario, summary: Mapping[str, Any]) -> dict[str, str]:
    cluster, devices = run.cluster(), run.derived.devices
    nodes = len({cluster.node_of(device) for device in devices})
    size = summary["collective"][0]["size_bytes"]
    return {
        "what": "collective",
        "message": _within(size, SIZES),
        "nodes": "one node" if nodes == 1 else "several nodes",
        "protocol": f"{summary['collective'][0]['algorithm']}, {summary['collective'][0]['protocol']}",
    }


def _of_a_step(run: BuiltScenario, summary: Mapping[str, Any]) -> dict[str, str]:
    training, parallelism, derived = run.specification.training, run.specification.parallelism, run.derived
    assert training is not None
    node = len(
        [gpu for gpu in run.cluster().gpus if run.cluster().node_of(gpu) == run.cluster().node_of(derived.devices[0])]
    )
    width = derived.degree("tp")
    wide = "1" if width == 1 else "within a node" if width <= node else "across nodes"
    return {
        "what": "training step",
        "GPUs": _within(derived.ranks, GPUS),
        "tensor parallel": wide,
        "pipeline": parallelism.schedule if derived.degree("pp") > 1 else "none",
        "data parallel": parallelism.data.label if derived.replicas > 1 or derived.by_stage else "none",
        "recompute": training.recompute_method,
        "beside computing": _beside(summary["breakdown_s"]),
    }


def _beside(breakdown: Mapping[str, float]) -> str:
    """Return the largest part of the step other than computation, if its share is notable."""
    total = sum(breakdown.values())
    lost = {key: value for key, value in breakdown.items() if key.startswith(("exposed", "bubble", "copy"))}
    most = max(lost, key=lambda key: lost[key])
    return most.replace("_", " ") if lost[most] >= NOTABLE * total else f"nothing above {NOTABLE:.0%}"


def _within(value: float, bounds: tuple[tuple[int | None, str], ...]) -> str:
    return next(name for bound, name in bounds if bound is None or value < bound)


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
    outcome: ExpectationOutcome
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
        for run in scenario.runs
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
