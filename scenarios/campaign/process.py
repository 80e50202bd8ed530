"""One sample of a campaign as SimPy processes: the job, its failures, and the repair of each node.

The job trains a segment of steps, writes a checkpoint, and so on. A failure interrupts whatever the job does. The job
then notices the failure, takes a spare node, restarts, loads the latest complete checkpoint, and goes on from there. A
failure during a restart begins the restart anew. A job that lacks a node does not fail.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
from simpy import Environment, Event, Interrupt

from scenarios.campaign.job import LOST, Breakdowns, Job

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


def simulate(job: Job, seed: int, sample: int = 0) -> Sample:
    """Return sample number *sample* of the campaign of *job*; equal numbers give equal samples."""
    return _Campaign(job, np.random.default_rng([seed, sample])).run()


class _Campaign:
    def __init__(self, job: Job, random: np.random.Generator) -> None:
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
