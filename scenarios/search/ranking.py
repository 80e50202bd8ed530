"""Ranking of given candidates: the estimate and the simulation of each, in order of the simulated step time.

>>> from clustersim.scenarios.scenario import Scenario
>>> hello = Scenario.load("hello")
>>> ranked = rank(hello, [{"training.micro_batch_size": 4}, {"training.micro_batch_size": 8}])
>>> [one.settings["training.micro_batch_size"] for one in ranked]
[8, 4]
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any

from clustersim.scenarios.run.execution import execute
from clustersim.scenarios.run.processes import Failure
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.search import candidate_evaluation
from clustersim.scenarios.search.estimator import Estimator
from clustersim.simulator.reading.errors import ScenarioError, SimulatorError
from clustersim.simulator.schedule.gc_paused import gc_paused

Settings = Mapping[str, Any]
"""Values by dotted key of a scenario."""


@dataclass(frozen=True)
class Ranked:
    """A candidate by its *settings*: the *estimate* (s), the memory that it *needs* (bytes) and whether that *fits*.

    *result*: of its simulation, None if it was not simulated. *error*: why it cannot run; empty if it can.
    """

    settings: Settings
    estimate: float = inf
    needs: float = 0.0
    fits: bool = False
    result: Mapping[str, Any] | None = None
    error: str = ""

    @property
    def seconds(self) -> float:
        """The simulated step time (s), else the estimate; infinite if it cannot run."""
        return float(self.result["step_time_s"]) if self.result else self.estimate


def rank(
    scenario: Scenario,
    candidates: Sequence[Settings],
    *,
    simulate: int | None = None,
    only_fitting: bool = False,
    processes: int = 1,
    on: str = "",
) -> list[Ranked]:
    """Return *candidates*, each a change of *scenario*, in order: simulated ones first, then by step time.

    *simulate*: how many of the best by estimate are simulated; None: all that can run. *only_fitting*: those that need
    more memory than there is are not simulated. A candidate that cannot run comes last, with its error.
    """
    source = candidate_evaluation.packed(scenario)
    jobs = [(_estimated, (source, dict(settings))) for settings in candidates]
    estimated = _outcomes(jobs, processes, on)
    ranked = [
        Ranked(settings, error=one) if isinstance(one, str) else Ranked(settings, *one)
        for settings, one in zip(candidates, estimated, strict=True)
    ]
    order = sorted(range(len(ranked)), key=lambda number: ranked[number].estimate)
    runs = [number for number in order if not ranked[number].error and (ranked[number].fits or not only_fitting)]
    chosen = runs if simulate is None else runs[:simulate]
    results = _outcomes([(_simulated, (source, dict(candidates[number]))) for number in chosen], processes, on)
    for number, result in zip(chosen, results, strict=True):
        one = ranked[number]
        failed = isinstance(result, str)
        ranked[number] = Ranked(
            one.settings, one.estimate, one.needs, one.fits, None if failed else result, result if failed else ""
        )
    return sorted(ranked, key=lambda one: (one.result is None, one.seconds))


def _outcomes(jobs: Sequence[Any], processes: int, on: str) -> list[Any]:
    """Return the results of *jobs* in their order; of a failed one the message."""
    found: list[Any] = [""] * len(jobs)
    with closing(execute(jobs, min(processes, len(jobs)), on)) as outcomes:
        for index, outcome in outcomes:
            found[index] = outcome.message if isinstance(outcome, Failure) else outcome
    return found


def _estimated(task: tuple[bytes, dict[str, Any]]) -> tuple[float, float, bool]:
    """Return (estimate in s, bytes, fits)."""
    scenario = _changed(*task)
    with gc_paused():
        one = _estimator(_shared(scenario)).estimate(scenario)
    assert one.seconds is not None
    return one.seconds, one.need.nbytes, one.need.fits


def _simulated(task: tuple[bytes, dict[str, Any]]) -> dict[str, Any]:
    return candidate_evaluation.simulated(_changed(*task))


def _changed(source: bytes, settings: dict[str, Any]) -> Scenario:
    scenario = candidate_evaluation.unpacked(source).changed(settings, json.dumps(settings))
    if scenario.variants:
        raise ScenarioError(f"{scenario.name} has variants; rank takes one scenario")
    if scenario.specification.training is None:
        raise SimulatorError(f"{scenario.name} {scenario.aim}; there is no training to rank")
    return scenario


def _shared(scenario: Scenario) -> bytes:
    """Return the scenario without the keys that an `Estimator` may vary, as bytes."""
    data = {key: value for key, value in scenario.source.data.items() if key in SHARED}
    training = {key: value for key, value in scenario.source.data["training"].items() if key in FIXED}
    one = {"training": {"global_batch_size": 1, **training}, "parallelism": {"dp": 1}}
    return candidate_evaluation.pickled({**data, **one})


SHARED = ("version", "cluster", "model", "network", "software")
"""The sections that an `Estimator` reads from its scenario."""

FIXED = ("precision",)
"""Keys of the training section that change the prices of layers; the others are read for each candidate."""


@lru_cache(maxsize=8)
def _estimator(shared: bytes) -> Estimator:
    return Estimator(candidate_evaluation.unpacked(shared))
