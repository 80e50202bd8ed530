"""The frame of commands: run what a scenario file holds, then print reports and draw charts, or print JSON alone.

`run --check` and `accuracy` evaluate scenarios instead: they print comparisons with what is expected.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from clustersim.scenarios.commands.application import BAD_INPUT, InterruptedRunError, load
from clustersim.scenarios.commands.terminal import progress, say
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.files import file_stems

if TYPE_CHECKING:
    from clustersim.scenarios.accuracy.evaluation import Evaluation
    from clustersim.scenarios.accuracy.left_out import Refit
    from clustersim.scenarios.results.result import Result
    from clustersim.scenarios.scenario import Scenario

MISSED, DOES_NOT_FIT = 1, 3


CHART_SUFFIXES = (".png", ".svg", ".pdf")
"""Formats of a chart."""

T = TypeVar("T")


class Answer(Protocol):
    """The answer of a command: numbers, and the report on them."""

    def summary(self) -> dict[str, Any]:
        """Return the numbers, which ``--json`` prints."""

    def report(self) -> str:
        """Return the report."""


def variant_of(scenario: Scenario, name: str) -> Scenario:
    """Return the variant *name* of *scenario*. Raises `ScenarioError`."""
    from clustersim.simulator.reading.errors import ScenarioError
    from clustersim.simulator.reading.validation import listed, near

    there = list(scenario.variants)
    if not there:
        raise ScenarioError(f"--variant {name[:60]}: {scenario.name} has no variants")
    if name not in there:
        hint = near(name, there)
        raise ScenarioError(f"--variant {name[:60]}: must be {listed(there[:40])}" + (f"; {hint}" if hint else ""))
    return scenario.variants[name]


def print_json(value: Any) -> None:
    """Print *value* as JSON."""
    print(json.dumps(value, indent=2))


def print_one_or_list(values: Sequence[Any]) -> None:
    """Print *values* as JSON: a list, or the only one."""
    print_json(values[0] if len(values) == 1 else values)


def print_of_runs(scenario: Scenario, numbers: Sequence[dict[str, Any]]) -> None:
    """Print the *numbers* of each run of *scenario* as JSON: those of variants by their names, or the only ones."""
    several = {"name": scenario.name, "variants": {one["name"]: one for one in numbers}}
    print_json(several if scenario.variants else numbers[0])


def print_answer(answer: Answer, as_json: bool) -> None:
    """Print the report of *answer*, or its numbers as JSON."""
    if as_json:
        print_json(answer.summary())
    else:
        say(answer.report())


@dataclass(frozen=True)
class Made:
    """What a command makes of one run: the numbers, the report, and a function that draws the chart to a path."""

    numbers: dict[str, Any]
    report: str
    draw: Callable[[Path], None]


def run_each(
    scenario: Scenario, make: Callable[[Scenario], Made], chart: str, output: Path | None, as_json: bool
) -> None:
    """Call *make* for each run of *scenario*; print the reports and draw the charts, or print all numbers as JSON.

    A chart goes to *output*, or else to NAME_*chart*.png. The charts of variants have their names added.
    """

    runs, numbers = scenario.runs, []
    stems = file_stems([one.name for one in runs])
    for one in runs:
        made = make(one)
        numbers.append(made.numbers)
        if as_json:
            continue
        say(("\n" if len(numbers) > 1 else "") + made.report)
        stem = stems[one.name]
        path = output or Path(f"{stem}_{chart}.png")
        path = path if len(runs) == 1 else path.with_name(f"{path.stem}_{stem}{path.suffix}")
        made.draw(path)
        print(f"wrote {path}")
    if as_json:
        print_of_runs(scenario, numbers)


@contextmanager
def interruptible(missing: str) -> Iterator[None]:
    """Raise `InterruptedRunError`, which says what is *missing*, if the user interrupts what is done inside."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedRunError(missing) from None


def numbered(several: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return *several* by their names; equal names are numbered.

    >>> numbered([("a", 1), ("b", 2), ("a", 3)])
    {'a': 1, 'b': 2, 'a #2': 3}
    """
    found: dict[str, T] = {}
    for name, one in several:
        number = sum(other.partition(" #")[0] == name for other in found) + 1
        found[name if number == 1 else f"{name} #{number}"] = one
    return found


def simulated_by_name(scenarios: list[str], settings: list[str] | None, jobs: int) -> dict[str, Result]:
    """Return the results by name, one for each variant; equal names are numbered."""
    from clustersim.scenarios.results.result_kinds import VariantsResult

    loaded = [load(name, settings) for name in scenarios]
    runs = [run for scenario in loaded for run in scenario.runs]
    ended = iter(_simulated(runs, jobs))
    results: list[tuple[str, Result]] = []
    for given, scenario in zip(scenarios, loaded, strict=True):
        several = {name: next(ended) for name in scenario.variants or [scenario.name]}
        if not settings:
            whole = VariantsResult(scenario, several) if scenario.variants else several[scenario.name]
            print_warnings(given, whole)
        results += several.items()
    return numbered(results)


def _simulated(runs: Sequence[Scenario], jobs: int) -> list[Result]:
    """Return the result of each of *runs*. Raises the error of the first that fails."""
    from contextlib import closing

    from clustersim.scenarios.run.execution import execute
    from clustersim.scenarios.run.processes import Failure
    from clustersim.scenarios.scenario import Scenario

    results: dict[int, Result] = {}
    with progress(f"simulating {len(runs)} runs", parts=len(runs)) as shown:
        # another process cannot tell how far its simulation is
        function = Scenario.run if jobs > 1 else partial(Scenario.run, watch=shown)
        with closing(execute([(function, run) for run in runs], jobs)) as ended:
            for index, outcome in ended:
                if isinstance(outcome, Failure):
                    raise outcome.error()
                results[index] = outcome
                shown.advance()
    return [results[index] for index in range(len(runs))]


def print_warnings(folder: str, result: Result) -> None:
    """Print on stderr where *result* differs from the one that `run` wrote into *folder*, if it is a folder."""
    from clustersim.scenarios.results.result_files import warnings

    for warning in warnings(Path(folder), result):
        print(f"warning: {warning}", file=sys.stderr)


def evaluated(
    scenarios: Sequence[Scenario], jobs: int, refits: Mapping[str, Refit] | None = None
) -> Iterator[Evaluation]:
    """Yield the evaluation of each of *scenarios* in turn, also by *refits*, with a progress bar on stderr."""
    from clustersim.scenarios.accuracy.evaluation import evaluate

    twice = refits or {}
    runs = sum((len(one.variants) or 1) * (2 if one.name in twice else 1) for one in scenarios)
    with progress(f"simulating {runs} runs", parts=runs) as shown:
        yield from evaluate(scenarios, jobs, shown.advance, refits)


def print_evaluations(scenarios: Sequence[Scenario], jobs: int, as_json: bool, strict_memory: bool) -> int:
    """Evaluate *scenarios*, print the comparisons, and return the exit status."""
    from clustersim.scenarios.accuracy import comparisons

    evaluations = list(evaluated(scenarios, jobs))
    if as_json:
        summaries = [
            {**one.summary, "expected": list(map(comparisons.as_json, one.comparisons))} for one in evaluations
        ]
        print_one_or_list(summaries)
    else:
        print(comparisons.text(evaluations))
    return status(evaluations, strict_memory)


def status(evaluations: Sequence[Evaluation], strict_memory: bool = False) -> int:
    """Return the exit status of *evaluations*; failed runs are printed on stderr."""
    if print_failures(evaluations):
        return BAD_INPUT
    if strict_memory and not all(one.fits for one in evaluations):
        return DOES_NOT_FIT
    return MISSED if any(not comparison.outcome.met for one in evaluations for comparison in one.comparisons) else 0


def print_failures(evaluations: Sequence[Evaluation]) -> int:
    """Print failed runs and their errors on stderr; return the exit status."""
    failures = {f"{one.scenario.name} ({run})": why for one in evaluations for run, why in one.failures.items()}
    for run, why in failures.items():
        print(f"{run}: {why}", file=sys.stderr)
    return BAD_INPUT if failures else 0
