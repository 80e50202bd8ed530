"""What `run --check` and `accuracy` have in common: evaluate scenarios and print the comparisons."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clustersim.scenarios.commands.application import BAD_INPUT

if TYPE_CHECKING:
    from clustersim.scenarios.evaluate.evaluation import Evaluation
    from clustersim.scenarios.fitting.left_out import Refit
    from clustersim.scenarios.results.result import Result
    from clustersim.scenarios.scenario import Scenario

MISSED, DOES_NOT_FIT = 1, 3


def evaluated(
    scenarios: Sequence[Scenario], jobs: int, refits: Mapping[str, Refit] | None = None
) -> Iterator[Evaluation]:
    """Yield the evaluation of each of *scenarios* in turn, also by *refits*, with a progress bar on stderr."""
    from clustersim.scenarios.commands.terminal import progress
    from clustersim.scenarios.evaluate.evaluation import evaluate

    twice = refits or {}
    runs = sum((len(one.variants) or 1) * (2 if one.name in twice else 1) for one in scenarios)
    with progress(f"simulating {runs} runs", parts=runs) as shown:
        yield from evaluate(scenarios, jobs, shown.advance, refits)


def print_evaluations(scenarios: Sequence[Scenario], jobs: int, as_json: bool, strict_memory: bool) -> int:
    """Evaluate *scenarios*, print the comparisons, and return the exit status."""
    from clustersim.scenarios.evaluate import comparisons

    evaluations = list(evaluated(scenarios, jobs))
    if as_json:
        summaries = [
            {**one.summary, "expected": list(map(comparisons.as_json, one.comparisons))} for one in evaluations
        ]
        print(json.dumps(summaries[0] if len(summaries) == 1 else summaries, indent=2))
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


def print_warnings(folder: str, result: Result) -> None:
    """Print on stderr where *result* differs from the one that `run` wrote into *folder*, if it is a folder."""
    from clustersim.scenarios.results.result_files import warnings

    for warning in warnings(Path(folder), result):
        print(f"warning: {warning}", file=sys.stderr)


def print_failures(evaluations: Sequence[Evaluation]) -> int:
    """Print failed runs and their errors on stderr; return the exit status."""
    failures = {f"{one.scenario.name} ({run})": why for one in evaluations for run, why in one.failures.items()}
    for run, why in failures.items():
        print(f"{run}: {why}", file=sys.stderr)
    return BAD_INPUT if failures else 0
