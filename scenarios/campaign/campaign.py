"""Simulation of a campaign: many samples of a whole training run.

The step of each phase is simulated once. A sample has SimPy processes of the job, its failures, and repairs of nodes.

The job trains a segment of steps, writes a checkpoint, and so on. A failure interrupts whatever the job does. The job
then notices the failure, takes a spare node, restarts, loads the latest complete checkpoint, and goes on from there. A
failure during a restart begins the restart anew. A job that lacks a node does not fail.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import field, replace
from functools import cached_property
from math import inf
from statistics import fmean
from typing import Any

import numpy as np
from simpy import Environment, Event, Interrupt

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.campaign import build
from clustersim.scenarios.campaign import job as closed_forms
from clustersim.scenarios.campaign.build import BuiltPhase
from clustersim.scenarios.campaign.job import LOST, Breakdowns, TrainingRun
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.scenarios.run import running
from clustersim.scenarios.run.running import Watch
from clustersim.scenarios.specification.campaign import Campaign
from clustersim.simulator.reading.dataclass import dataclass

Steps = Generator[Event, Any, None]
"""A SimPy process, or a part of one."""


@dataclass
class Sample:
    """What happened in one campaign: *seconds* in all and by cause of loss, and counts.

    *progress*: (time in s, steps that are trained) where the course changes; checkpoints are smoothed.
    """

    seconds: float = 0.0
    lost: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LOST, 0.0))
    interruptions: int = 0
    checkpoints: int = 0
    progress: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])


def simulate(job: TrainingRun, seed: int, sample: int = 0) -> Sample:
    """Return sample number *sample* of the campaign of *job*; equal numbers give equal samples."""
    return _Campaign(job, np.random.default_rng([seed, sample])).run()


class _Campaign:
    def __init__(self, job: TrainingRun, random: np.random.Generator) -> None:
        self.job, self.random = job, random
        self.env, self.sample = Environment(), Sample()
        self.failures = job.failures or Breakdowns()
        self.steps = self.durable = 0
        self.writing: tuple[float, int] | None = None
        """The checkpoint that is written in the background: the time when it is complete, and its steps."""
        self.training = 0.0
        """Seconds of training so far at full speed, work that was lost later included."""
        self.spares = inf if self.failures.spares is None else self.failures.spares
        self.missing = 0
        """Nodes that the job had and that have broken."""
        self.repaired = self.env.event()
        self.vulnerable = True
        self.stop = job.maintenance[0] if job.maintenance else inf

    def run(self) -> Sample:
        main = self.env.process(self._main())
        if self.job.failures:
            self.env.process(self._fail(main))
        self.env.run(main)
        sample = self.sample
        sample.seconds = self.env.now
        # without an interruption the difference is rounding
        sample.lost["rework"] = self.training - self.job.productive if sample.interruptions else 0.0
        return sample

    @property
    def short(self) -> int:
        """Nodes that the job lacks and no spare replaces."""
        return int(max(0, self.missing - self.spares))

    def _main(self) -> Steps:
        while self.steps < self.job.steps:
            try:
                yield from self._segment()
            except Interrupt:
                yield from self._recover()

    def _segment(self) -> Steps:
        """Train up to the next checkpoint, write it, and stop if maintenance is due or a node has come back."""
        policy, job = self.job.checkpoints, self.job
        yield from self._train(job.next_checkpoint(self.steps))
        if self.steps == job.steps or policy is None:
            self._mark()
            return
        yield from self._write(policy.stall, policy.write)
        if self.env.now >= self.stop:
            yield from self._maintain()
        elif self.missing and self.spares:
            yield from self._resume()

    def _train(self, end: int) -> Steps:
        """Train until step *end*."""
        speed = self.job.speed(self.missing)
        begin = self.env.now
        try:
            yield self.env.timeout(self.job.seconds(self.steps, end) / speed)
            self.steps = end
        finally:
            spent = self.env.now - begin
            self.training += spent * speed
            self.sample.lost["shrunk"] += spent * (1.0 - speed)
            if self.steps != end:
                self.steps += self.job.steps_within(self.steps, spent * speed)
                self._mark()

    def _write(self, stall: float, write: float) -> Steps:
        """Write a checkpoint, in the background where *stall* is less than *write*."""
        if self.writing and self.writing[0] > self.env.now:
            yield from self._spend("checkpoint", self.writing[0] - self.env.now)
        self._complete()
        self.writing = self.env.now + write, self.steps
        yield from self._spend("checkpoint", stall)
        self.sample.checkpoints += 1

    def _complete(self) -> None:
        """Note the checkpoint that was being written as complete if it is."""
        if self.writing and self.writing[0] <= self.env.now:
            self.durable, self.writing = self.writing[1], None

    def _maintain(self) -> Steps:
        """Stop for maintenance; nodes that do not run do not fail."""
        assert self.job.maintenance
        every, duration = self.job.maintenance
        self.vulnerable = False
        self._mark()
        yield from self._spend("maintenance", duration)
        self.vulnerable = True
        while self.stop <= self.env.now:
            self.stop += every
        yield from self._resume()

    def _recover(self) -> Steps:
        """Return to the latest complete checkpoint on a full set of nodes; again if another failure comes."""
        while True:
            try:
                self._roll_back()
                yield from self._spend("detect", self.failures.detect)
                yield from self._resume()
                return
            except Interrupt:
                continue

    def _resume(self) -> Steps:
        """Take the nodes that are missing, and start the job on them."""
        self._mark()
        if self.missing:
            yield from self._take_nodes()
        yield from self._spend("restart", self.failures.restart)
        self._mark()

    def _roll_back(self) -> None:
        """Return to the latest state that is kept."""
        self._complete()
        self.writing = None
        kept, limit = self.durable, self.failures.lost_work
        if limit < inf:
            while kept < self.steps and self.job.seconds(kept, self.steps) > limit:
                kept += max(1, self.job.steps_within(kept, self.job.seconds(kept, self.steps) - limit))
        self.steps = min(self.steps, kept)
        self._mark()

    def _take_nodes(self) -> Steps:
        """Replace missing nodes by spares; wait for repairs if there are too few, unless fewer replicas can train."""
        while self.short > 0 and not (self.failures.elastic and self.job.speed(self.short)):
            begin = self.env.now
            try:
                yield self.repaired
            finally:
                self.sample.lost["waiting"] += self.env.now - begin
        taken = int(min(self.missing, self.spares))
        self.missing -= taken
        self.spares -= taken
        if taken:
            yield from self._spend("restart", self.failures.replace)

    def _fail(self, main: Event) -> Steps:
        for gap in self._gaps():
            yield self.env.timeout(gap)
            if self._fails():
                self.sample.interruptions += 1
                if self.random.random() < self.failures.broken:
                    self.missing += 1
                    self.env.process(self._repair())
                main.interrupt()  # type: ignore[attr-defined]

    def _gaps(self) -> Iterator[float]:
        """Yield the times from one failure of the full job to the next, s."""
        if self.failures.times:
            before = (0.0, *self.failures.times[:-1])
            yield from (now - then for now, then in zip(self.failures.times, before, strict=True))
            return
        while True:
            yield self.random.exponential(self.failures.mtbf)

    def _fails(self) -> bool:
        """True if a failure of the full job hits the nodes that run now."""
        if not self.vulnerable or self.short == 0:
            return self.vulnerable
        return self.failures.elastic and self.random.random() < self.job.speed(self.short)

    def _repair(self) -> Steps:
        yield self.env.timeout(self.random.exponential(self.failures.repair))
        self.spares += 1
        self.repaired.succeed()
        self.repaired = self.env.event()

    def _spend(self, cause: str, seconds: float) -> Steps:
        """Let *seconds* pass and count them as lost by *cause*, also if a failure ends them early."""
        begin = self.env.now
        try:
            if seconds:
                yield self.env.timeout(seconds)
        finally:
            self.sample.lost[cause] += self.env.now - begin

    def _mark(self) -> None:
        self.sample.progress.append((self.env.now, self.steps))


FACTORS = (0.5, 0.71, 1.0, 1.41, 2.0, 4.0)
"""Intervals between checkpoints that are simulated, over the interval that is used."""

FEW = 10
"""Samples of each alternative: another interval, or another way to go on without a spare."""


@dataclass(frozen=True)
class Simulated:
    """A campaign of *scenario*: its *phases*, its *job* and its *samples*."""

    scenario: BuiltScenario
    phases: tuple[BuiltPhase, ...]
    job: TrainingRun
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
        found = {rule: estimate(policy.stall, mean) for rule, estimate in closed_forms.ESTIMATES.items()}
        return {rule: (tau, self.expected(tau)) for rule, tau in found.items()}

    def expected(self, tau: float) -> float:
        """Return the expected seconds for each of work with *tau* seconds between checkpoints, waiting left out."""
        assert self.job.checkpoints is not None
        assert self.mtbf is not None
        return closed_forms.cost(tau, self.job.checkpoints.stall, self.job.mean_restart, self.mtbf)

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

    def _times(self, job: TrainingRun) -> list[float]:
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


def _phases(scenario: BuiltScenario, given: Campaign, watch: Watch | None) -> Iterator[BuiltPhase]:
    for place, phase in enumerate(given.schedule):
        changes = {
            "training.global_batch_size": phase.global_batch_size,
            "model.seq_length": phase.seq_length,
        }
        changed = {key: value for key, value in changes.items() if value is not None}
        yield BuiltPhase(_step(scenario.changed(changed, f"campaign.schedule.{place}"), watch), phase.tokens)
    yield BuiltPhase(_step(scenario, watch))


def _step(scenario: BuiltScenario, watch: Watch | None) -> StepNumbers:
    result = running.run(scenario, watch)
    assert isinstance(result, StepNumbers)
    return result
