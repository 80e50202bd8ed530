"""Simulation of a campaign: the steps of its phases once each, then many samples of the whole run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from scenarios import running
from scenarios.build.built import BuiltScenario
from scenarios.campaign import build, intervals
from scenarios.campaign.build import Phase
from scenarios.campaign.job import Job
from scenarios.campaign.process import Sample, simulate
from scenarios.results.step_numbers import StepNumbers
from scenarios.running import Watch
from scenarios.specification.campaign import Campaign

FACTORS = (0.5, 0.71, 1.0, 1.41, 2.0, 4.0)
"""Intervals between checkpoints that are simulated, over the interval that is used."""

FEW = 10
"""Samples of each alternative: another interval, or another way to go on without a spare."""


@dataclass(frozen=True)
class Simulated:
    """A campaign of *scenario*: its *phases*, its *job* and its *samples*."""

    scenario: BuiltScenario
    phases: tuple[Phase, ...]
    job: Job
    samples: tuple[Sample, ...]

    @property
    def section(self) -> Campaign:
        """The section of the scenario."""
        return build.section(self.scenario)

    @property
    def seed(self) -> int:
        """The seed of the first sample."""
        return self.scenario.specification.simulation.seed

    @property
    def mtbf(self) -> float | None:
        """Mean time between failures of the job, s; None without failures, and for a trace."""
        failures = self.job.failures
        return None if failures is None or failures.times else failures.mtbf

    @cached_property
    def estimates(self) -> dict[str, tuple[float, float]]:
        """By rule the interval (s) and its expected cost, seconds for each of work; empty if there is no mean time."""
        policy, mean = self.job.checkpoints, self.mtbf
        if policy is None or mean is None or not policy.stall:
            return {}
        found = {rule: estimate(policy.stall, mean) for rule, estimate in intervals.ESTIMATES.items()}
        return {rule: (tau, self.expected(tau)) for rule, tau in found.items()}

    def expected(self, tau: float) -> float:
        """Return the expected seconds for each of work with *tau* seconds between checkpoints, waiting left out."""
        assert self.job.checkpoints is not None
        assert self.mtbf is not None
        return intervals.cost(tau, self.job.checkpoints.stall, self.job.mean_restart, self.mtbf)

    @cached_property
    def tried(self) -> list[tuple[float, list[float]]]:
        """Other intervals (s) and the times (s) of `FEW` samples with each; empty without estimates."""
        policy = self.job.checkpoints
        if not self.estimates or policy is None:
            return []
        least = policy.write if policy.write > policy.stall else 0.0
        jobs = {one.interval: one for one in (self.job.every(factor * policy.interval) for factor in FACTORS)}
        return [(tau, self._times(one)) for tau, one in jobs.items() if tau >= least and self._quick(tau)]

    def _quick(self, tau: float) -> bool:
        """True if a campaign with this interval ends soon enough to be worth a comparison."""
        return (
            self.expected(tau) < 4 * self.expected(self.job.interval)
            and self.job.productive / tau < build.MOST_EVENTS / FEW
        )

    @cached_property
    def without_spare(self) -> dict[str, float]:
        """Mean time (s) if the job waits for a spare, and if it shrinks; empty if it never lacks one."""
        failures = self.job.failures
        lacking = any(sample.lost["waiting"] or sample.lost["shrunk"] for sample in self.samples)
        if failures is None or self.job.replicas == 1 or not lacking:
            return {}
        ways = {"wait": False, "shrink": True}
        jobs = {way: replace(self.job, failures=replace(failures, elastic=elastic)) for way, elastic in ways.items()}
        return {way: fmean(self._times(one)) for way, one in jobs.items()}

    def _times(self, job: Job) -> list[float]:
        return [simulate(job, self.seed, number).seconds for number in range(FEW)]


def run(
    scenario: BuiltScenario,
    repeats: int | None = None,
    watch: Watch | None = None,
    sampled: Callable[[], Any] = lambda: None,
) -> Simulated:
    """Simulate the steps of *scenario* and *repeats* samples of its campaign (by default those of its section).

    *watch* is called with each simulation of a step, *sampled* after each sample. Raises `ScenarioError` for a
    scenario without a campaign, or with one that would hardly ever end.
    """
    given = build.section(scenario)
    build.amount(scenario)
    phases = tuple(_phases(scenario, given, watch))
    job = build.job(scenario, phases)
    seed, samples = scenario.specification.simulation.seed, []
    for number in range(repeats or given.repeats):
        samples.append(simulate(job, seed, number))
        sampled()
    return Simulated(scenario, phases, job, tuple(samples))


def _phases(scenario: BuiltScenario, given: Campaign, watch: Watch | None) -> Iterator[Phase]:
    for place, phase in enumerate(given.schedule):
        changes = {
            "training.global_batch_size": phase.global_batch_size,
            "model.seq_length": phase.seq_length,
        }
        changed = {key: value for key, value in changes.items() if value is not None}
        yield Phase(_step(scenario.changed(changed, f"campaign.schedule.{place}"), watch), phase.tokens)
    yield Phase(_step(scenario, watch))


def _step(scenario: BuiltScenario, watch: Watch | None) -> StepNumbers:
    result = running.run(scenario, watch)
    assert isinstance(result, StepNumbers)
    return result
