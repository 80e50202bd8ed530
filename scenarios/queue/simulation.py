"""The queue as SimPy processes: jobs arrive, the scheduler starts them, first in, first out or with EASY backfilling,
and neighbours change the step time of a job.

A process submits the jobs, one is the scheduler, which acts after all that happens at a moment, and each running job is
one. A job whose neighbours change is interrupted: what it has done counts, and the rest goes on with the new step time.

A policy yields the jobs that start now with their nodes. Each is started before the next one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from simpy import Environment, Event, Interrupt

from clustersim.scenarios.build.submissions import Submission
from clustersim.scenarios.queue.fabric import FreeNodes, Uplinks
from clustersim.scenarios.queue.jobs import JobRecord, RunningJob, joined
from clustersim.scenarios.specification.queue import Policy
from clustersim.simulator.reading.dataclass import dataclass

Steps = Generator[Event, Any, None]


class StepTimes(Protocol):
    """How long jobs take: what the simulation of their steps says."""

    def gpus(self, job: Submission) -> int:
        """Return the GPUs that *job* uses."""

    def compact(self, job: Submission) -> float:
        """Return the seconds of a unit of work of *job* alone, on as few leaves of an empty cluster as possible."""

    def alone(self, job: Submission, nodes: Sequence[int]) -> float:
        """Return the seconds of a unit of work of *job* alone on *nodes*."""

    def uplinks(self, job: Submission, nodes: Sequence[int]) -> Uplinks:
        """Return the links that *job* may share if it runs on *nodes*."""

    def added(self, job: RunningJob, other: RunningJob) -> tuple[float, float]:
        """Return what either of two jobs that share links adds to the slowdown of the other: that of *job* first."""

    def slowdown(self, job: RunningJob) -> float:
        """Return the factor on the time of *job* beside its neighbours."""


@dataclass(frozen=True)
class QueueState:
    """The cluster from *time* (s) on: how many jobs wait and run, and how many nodes are held.

    *head*: the nodes that the first waiting job needs; 0 if none waits. *free_leaves*: leaves with free nodes.
    """

    time: float
    waiting: int
    running: int
    held: int
    head: int
    free_leaves: int


@dataclass
class QueueRun:
    """What happened: a record of each job in order of arrival, and the moments at which something changed.

    *end*: when the last job ended, or the horizon (s).
    """

    records: list[JobRecord]
    moments: list[QueueState]
    end: float


@dataclass
class QueueSimulation:
    """The jobs *submissions* on *free* nodes under *policy*; *estimate*: the time limit over the time alone."""

    submissions: Sequence[Submission]
    free: FreeNodes
    times: StepTimes
    policy: Policy = "fifo"
    estimate: float = 1.0
    horizon: float | None = None
    running: dict[RunningJob, None] = field(default_factory=dict, init=False)

    def run(self) -> QueueRun:
        """Simulate until all jobs have ended, or until the horizon."""
        self.env = Environment()
        self.ended: dict[int, JobRecord] = {}
        self.moments: list[QueueState] = []
        self.state = SchedulerState(self.free, self._limit, running=self.running.keys())
        self._note()
        self.changed = self.env.event()
        self.env.process(self._submit())
        self.env.process(self._schedule())
        self.env.run(self.horizon)
        end = self.horizon
        if end is None:
            end = max((record.end for record in self.ended.values() if record.end is not None), default=0.0)
        running = {job.submission.number: self._record(job, None) for job in self.running}
        found = {**self.ended, **running}
        records = [found.get(job.number, JobRecord(job)) for job in self.submissions if job.arrival <= end]
        return QueueRun(records, self.moments, end)

    def _limit(self, job: Submission) -> float:
        return job.limit if job.limit is not None else self.estimate * job.work * self.times.compact(job)

    def _submit(self) -> Steps:
        for job in self.submissions:
            if job.arrival > self.env.now:
                yield self.env.timeout(job.arrival - self.env.now)
            self.state.waiting.append(job)
            self._change()

    def _change(self) -> None:
        if not self.changed.triggered:
            self.changed.succeed()

    def _schedule(self) -> Steps:
        start = POLICIES[self.policy]
        while True:
            yield self.changed
            self.changed = self.env.event()
            # after all other events of this moment
            yield self.env.timeout(0)
            for job, nodes in start(self.state, self.env.now):
                self.state.waiting.remove(job)
                self._start(job, nodes)
            self._note()

    def _start(self, submission: Submission, nodes: tuple[int, ...]) -> None:
        self.free.take(nodes)
        alone, uplinks = self.times.alone(submission, nodes), self.times.uplinks(submission, nodes)
        limit = self._limit(submission)
        job = RunningJob(submission, nodes, self.env.now, self.env.now, submission.work, alone, limit, uplinks)
        for other in self.running:
            if uplinks & other.uplinks:
                job.neighbours[other], other.neighbours[job] = self.times.added(job, other)
        self.running[job] = None
        job.slowdown = self.times.slowdown(job)
        job.process = self.env.process(self._execute(job))
        self._change_step_times(job.neighbours)

    def _execute(self, job: RunningJob) -> Steps:
        while job.left > 0:
            job.since, step_time = self.env.now, job.step_time
            try:
                yield self.env.timeout(job.left * step_time)
                job.left = 0.0
            except Interrupt:
                job.left = _left(job, step_time, self.env.now)
        del self.running[job]
        self.free.give_back(job.nodes)
        self.ended[job.submission.number] = self._record(job, self.env.now)
        for other in job.neighbours:
            del other.neighbours[job]
        self._change_step_times(job.neighbours)
        self._change()

    def _change_step_times(self, jobs: Iterable[RunningJob]) -> None:
        """Give *jobs*, and those that share links with them, the step time that they have beside their neighbours."""
        for job in joined(jobs):
            slowdown = self.times.slowdown(job)
            if slowdown != job.slowdown and job.process is not None and job.process is not self.env.active_process:
                job.process.interrupt()
                job.slowdown = slowdown

    def _record(self, job: RunningJob, end: float | None) -> JobRecord:
        """Return the record of *job*, which ended at *end*, or which runs."""
        submission, fabric = job.submission, self.free.fabric
        left = job.left if end is not None else _left(job, job.step_time, self.env.now)
        count = len(job.nodes)
        held = sum(fabric.gpus[node] for node in job.nodes)
        return JobRecord(
            submission,
            job.start,
            end,
            job.nodes,
            self.times.gpus(submission) or held,
            held,
            1.0 - left / submission.work,
            submission.work * self.times.compact(submission),
            submission.work * job.alone,
            len({fabric.groups[0][node] for node in job.nodes}),
            self.free.least_leaves(count),
            self.state.reserved.get(submission.number),
        )

    def _note(self) -> None:
        waiting, counts = self.state.waiting, self.free.counts()
        moment = QueueState(
            self.env.now,
            len(waiting),
            len(self.running),
            len(self.free.fabric.nodes) - sum(counts),
            waiting[0].nodes if waiting else 0,
            sum(map(bool, counts)),
        )
        if self.moments and self.moments[-1].time == moment.time:
            self.moments.pop()
        self.moments.append(moment)


def _left(job: RunningJob, step_time: float, now: float) -> float:
    """Return the work of *job* that is left, if a step took *step_time*, s, since it began or was interrupted."""
    return max(0.0, job.left - (now - job.since) / step_time) if step_time else 0.0


Start = tuple[Submission, tuple[int, ...]]
"""A job and the nodes on which it starts."""


@dataclass
class SchedulerState:
    """What a scheduler knows: the *waiting* jobs in order of arrival, the *free* nodes, and the *running* jobs.

    *limit*: the time limit of a job (s). *reserved*: the start that was promised to a job when it first was the head,
    by its number.
    """

    free: FreeNodes
    limit: Callable[[Submission], float]
    waiting: list[Submission] = field(default_factory=list)
    running: Collection[RunningJob] = ()
    reserved: dict[int, float] = field(default_factory=dict)


def fifo(state: SchedulerState, now: float) -> Iterator[Start]:
    """Yield the first jobs, as many as fit; one that does not fit holds up those behind it."""
    while state.waiting and (nodes := state.free.place(state.waiting[0].nodes)) is not None:
        yield state.waiting[0], nodes


def backfill(state: SchedulerState, now: float) -> Iterator[Start]:
    """Yield the first jobs as `fifo` does, then others that do not delay the first one that waits.

    EASY: the head gets a reservation at the time when, by the time limits of the running jobs, enough nodes are free.
    A job behind it starts if its limit ends before that time, or if the nodes that are free then suffice for both.
    Lifka, "The ANL/IBM SP Scheduling System" (JSSPP 1995); Mu'alem and Feitelson, IEEE TPDS 12 (2001).
    """
    yield from fifo(state, now)
    if not state.waiting:
        return
    head = state.waiting[0]
    shadow, counts = _reservation(state, head, now)
    state.reserved.setdefault(head.number, shadow)
    for job in state.waiting[1:]:
        nodes = state.free.place(job.nodes)
        if nodes is None:
            continue
        if now + state.limit(job) > shadow:
            rest = [there - own for there, own in zip(counts, state.free.count(nodes), strict=True)]
            if not state.free.holds(head.nodes, rest):
                continue
            counts = rest
        yield job, nodes


def _reservation(state: SchedulerState, head: Submission, now: float) -> tuple[float, Sequence[int]]:
    """Return when *head* can start by the limits of the running jobs, and the nodes free below each leaf then."""
    counts, shadow = state.free.counts(), now
    for job in sorted(state.running, key=lambda job: job.expected_end(now)):
        end = job.expected_end(now)
        if end > shadow and state.free.holds(head.nodes, counts):
            break
        shadow = end
        counts = [there + own for there, own in zip(counts, state.free.count(job.nodes), strict=True)]
    return shadow, counts


POLICIES: Mapping[str, Callable[[SchedulerState, float], Iterator[Start]]] = {"fifo": fifo, "backfill": backfill}
"""The policies by name."""
