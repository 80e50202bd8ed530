"""What `run --check` and `accuracy` share: judge scenarios and print what came of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from scenarios.command import BAD_INPUT

if TYPE_CHECKING:
    from scenarios.judgement import Judgement
    from scenarios.scenario import Scenario

MISSED, DOES_NOT_FIT = 1, 3


def judged(scenarios: Sequence[Scenario], jobs: int) -> Iterator[Judgement]:
    """The judgement on each of *scenarios* in turn, told on stderr while it goes on."""
    from scenarios.judgement import judge

    total = sum(len(scenario.variants) or 1 for scenario in scenarios)
    done = 0

    def told(run: str) -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            print(f"\r\033[K{done}/{total} {run}", end="\r\033[K" if done == total else "", file=sys.stderr, flush=True)

    return judge(scenarios, jobs, told)


def print_judgements(scenarios: Sequence[Scenario], jobs: int, as_json: bool, strict_memory: bool) -> int:
    """Judge *scenarios*, print what came of it, and return the exit status."""
    from scenarios import verdicts

    judgements = list(judged(scenarios, jobs))
    if as_json:
        summaries = [{**one.summary, "expected": list(map(verdicts.as_json, one.verdicts))} for one in judgements]
        print(json.dumps(summaries[0] if len(summaries) == 1 else summaries, indent=2))
    else:
        print(verdicts.text(judgements))
    return status(judgements, strict_memory)


def status(judgements: Sequence[Judgement], strict_memory: bool = False) -> int:
    """The exit status of *judgements*; runs that could not be are told on stderr."""
    if tell_failures(judgements):
        return BAD_INPUT
    if strict_memory and not all(one.fits for one in judgements):
        return DOES_NOT_FIT
    return MISSED if any(not verdict.outcome.met for one in judgements for verdict in one.verdicts) else 0


def tell_failures(judgements: Sequence[Judgement]) -> int:
    """Tell on stderr what runs could not be, and why; the exit status."""
    failures = {f"{one.scenario.name} ({run})": why for one in judgements for run, why in one.failures.items()}
    for run, why in failures.items():
        print(f"{run}: {why}", file=sys.stderr)
    return BAD_INPUT if failures else 0
