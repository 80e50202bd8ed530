"""The queue of a scenario: how long jobs take on their nodes and beside others, by simulation of their steps.

Jobs on nodes that lie alike take the same time, so equal situations are simulated once. Which leaf of a job holds its
first ranks is not told apart, nor are the paths that ECMP happens to choose. Unequal situations of one class, such as
jobs of a kind spread over leaves to about the same degree, are sampled (`Situations`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from clustersim.scenarios.build.memory_need import MemoryNeed
from clustersim.scenarios.build.submissions import Submission
from clustersim.scenarios.queue.fabric import FreeNodes, Uplinks, fabric_of
from clustersim.scenarios.queue.jobs import RunningJob, joined
from clustersim.scenarios.queue.simulation import QueueSimulation
from clustersim.scenarios.results.jobs_result import QueueResult
from clustersim.scenarios.results.queue_numbers import Effort
from clustersim.scenarios.run.several_jobs import Jobs, Watch, bytes_by_link
from clustersim.scenarios.specification.queue import Contention
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import SimulationRun

if TYPE_CHECKING:
    from clustersim.scenarios.build.built import BuiltScenario

NEGLIGIBLE = 0.02
"""A job that uses less than this share of every link that it may share neither delays another nor is delayed by more,
on one link: it runs as alone."""

FEW, MOST, AGREE = 2, 6, 0.01
"""Situations of a class that are simulated at least, and at most; further ones take their mean. That of the first ones
does if all of them are within so much of it."""


def run(scenario: BuiltScenario, watch: Watch | None = None) -> QueueResult:
    """Simulate the queue of *scenario*; *watch* is called with each simulation of steps."""
    begin = perf_counter()
    queue = scenario.specification.queue
    assert queue is not None
    times = SimulatedStepTimes(scenario, queue.contention, watch)
    free = FreeNodes(times.fabric, queue.placement)
    arrived = scenario.submissions[0]
    simulation = QueueSimulation(arrived, free, times, queue.policy, queue.estimate, queue.horizon)
    found = simulation.run()
    effort = Effort(times.simulations, times.situations, perf_counter() - begin)
    return QueueResult(scenario, found, times.fabric.gpus, times.fabric.groups[0], times.memory(), effort)


@dataclass
class Situations:
    """The numbers of each situation, by its key. Situations of a class are sampled: at least `FEW`, at most `MOST`."""

    numbers: dict[Hashable, tuple[float, ...]] = field(default_factory=dict)
    samples: dict[Hashable, list[tuple[float, ...]]] = field(default_factory=dict)

    def of(self, key: Hashable, of_class: Hashable, simulate: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
        """Return the numbers of the situation *key*, which *simulate* returns if they do not follow from others."""
        if key not in self.numbers:
            own = self.samples.setdefault(of_class, [])
            mean = np.mean(own, axis=0) if own else np.zeros(0)
            if len(own) < MOST and (len(own) < FEW or not np.allclose(own, mean, rtol=AGREE, atol=0.0)):
                own.append(simulate())
                self.numbers[key] = own[-1]
            else:
                self.numbers[key] = tuple(mean.tolist())
        return self.numbers[key]


class SimulatedStepTimes:
    """The step times of the kinds of jobs of *scenario*; see `scenarios.queue.simulation.StepTimes`."""

    def __init__(self, scenario: BuiltScenario, contention: Contention, watch: Watch | None = None) -> None:
        self.scenario, self.contention, self.watch = scenario, contention, watch
        self.cluster = scenario.cluster()
        self.fabric = fabric_of(self.cluster)
        self.simulations = 0
        self._schedules: dict[str, Schedule] = {}
        self._alone, self._together = Situations(), Situations()
        self._compact: dict[str, float] = {}
        self._use: dict[Hashable, float] = {}
        self._numbers = {node: number for number, node in enumerate(self.fabric.nodes)}

    @property
    def situations(self) -> int:
        """The number of situations of jobs, alone and beside others, whose times were asked for."""
        return len(self._alone.numbers) + len(self._together.numbers)

    def memory(self) -> dict[str, MemoryNeed]:
        """Return what the fullest GPU of each kind of job that arrived needs at most; none of collectives."""
        needs = {kind: self._jobs({kind: (kind, self._nodes(kind))}).memory(kind) for kind in self._compact}
        return {kind: need for kind, need in needs.items() if need is not None}

    def gpus(self, job: Submission) -> int:
        """Return the GPUs that *job* uses; 0: all of its nodes."""
        return self.scenario.jobs[job.kind].derived.ranks if job.kind else job.gpus

    def compact(self, job: Submission) -> float:
        """Return the seconds of a step of *job* on nodes of the empty cluster; 1 for a plain duration."""
        if job.kind and job.kind not in self._compact:
            self._compact[job.kind] = self.alone(job, self._nodes(job.kind))
        return self._compact[job.kind] if job.kind else 1.0

    def alone(self, job: Submission, nodes: Sequence[int]) -> float:
        """Return the seconds of a step of *job* alone on *nodes*; 1 for a plain duration."""
        return self._times_alone(job.kind, nodes)[0] if job.kind else 1.0

    def uplinks(self, job: Submission, nodes: Sequence[int]) -> Uplinks:
        """Return the groups of nodes of which *job* shares the links upwards; none if it hardly uses them."""
        if not job.kind or self.contention == "none":
            return frozenset()
        used = self._use[job.kind, self.fabric.spread(nodes)] >= NEGLIGIBLE
        return self.fabric.uplinks(nodes) if used else frozenset()

    def added(self, job: RunningJob, other: RunningJob) -> tuple[float, float]:
        """Return what *other* adds to the slowdown of *job*, and *job* to that of *other*, simulated with both."""
        if self.contention != "pairs":
            return 0.0, 0.0
        first, second = self._slowdowns([job, other])
        return first - 1.0, second - 1.0

    def slowdown(self, job: RunningJob) -> float:
        """Return the factor on the time of *job* beside its neighbours."""
        if self.contention == "together" and job.neighbours:
            return self._slowdowns(list(joined([job])))[0]
        return 1.0 + sum(job.neighbours.values())

    def _nodes(self, kind: str) -> tuple[int, ...]:
        """The nodes of a job of *kind* on the empty cluster."""
        cluster = self.scenario.jobs[kind].cluster()
        return tuple(dict.fromkeys(self._numbers[cluster.node_of(gpu)] for gpu in cluster.gpus))

    def _times_alone(self, kind: str, nodes: Sequence[int]) -> tuple[float, ...]:
        """Return the seconds of a step and of a repetition of a job of *kind* alone on *nodes*."""
        of_class = kind, self.fabric.spread(nodes)

        def simulate() -> tuple[float, float]:
            ran = self._jobs({kind: (kind, nodes)}).simulated([kind], {kind: 2})
            seconds, use = ran.repetition(kind), self._use.get(of_class, 0.0)
            for link, nbytes in bytes_by_link(ran).items():
                if seconds and self._may_be_shared(link):
                    use = max(use, nbytes / self.cluster.links[link].bandwidth / seconds)
            self._use[of_class] = use
            return ran.seconds[kind], seconds

        return self._alone.of((kind, self.fabric.form(nodes)), of_class, simulate)

    def _may_be_shared(self, link: int) -> bool:
        """True if *link* joins two nodes or two switches: the links of a node to its leaf are those of one job."""
        source, target = self.cluster.ends[link]
        inside = [end in self.cluster.devices or self.cluster.node_of(end) != end for end in (source, target)]
        return inside[0] == inside[1] and self.cluster.node_of(source) != self.cluster.node_of(target)

    def _slowdowns(self, jobs: Sequence[RunningJob]) -> list[float]:
        """Return the factor on the time of each of *jobs* if all run together."""
        kinds, spreads = [job.submission.kind for job in jobs], [self.fabric.spread(job.nodes) for job in jobs]
        order = sorted(range(len(jobs)), key=lambda place: (kinds[place], spreads[place], self._form(jobs[place])))
        ordered = [jobs[place] for place in order]
        of_class = tuple((kinds[place], spreads[place]) for place in order)
        key = tuple(kinds[place] for place in order), self.fabric.form(*(job.nodes for job in ordered))
        factors = self._together.of(key, of_class, lambda: self._simulated(ordered))
        found = dict(zip(order, factors, strict=True))
        return [found[place] for place in range(len(jobs))]

    def _form(self, job: RunningJob) -> int:
        return self.fabric.form(job.nodes)

    def _simulated(self, together: Sequence[RunningJob]) -> tuple[float, ...]:
        """Return the slowdown of each of the jobs *together*, simulated until all are steady."""
        each = [(job.submission.kind, job.nodes) for job in together]
        several = {f"{place} {kind}": (kind, nodes) for place, (kind, nodes) in enumerate(each)}
        alone = {name: self._times_alone(kind, nodes) for name, (kind, nodes) in several.items()}
        repetitions = {name: repetition for name, (_, repetition) in alone.items()}
        steps = self._jobs(several).steady(list(several), alone=repetitions).seconds
        return tuple(max(1.0, steps[name] / alone[name][0]) if alone[name][0] else 1.0 for name in several)

    def _jobs(self, jobs: Mapping[str, tuple[str, Sequence[int]]]) -> Jobs:
        """Return *jobs* on their nodes, ready to be simulated: a kind and the numbers of its nodes by name."""
        nodes = {name: (kind, [self.fabric.nodes[one] for one in own]) for name, (kind, own) in jobs.items()}
        return Jobs(self.scenario.beside(nodes), self._watched, self._schedules)

    def _watched(self, simulation: SimulationRun) -> None:
        self.simulations += 1
        if self.watch is not None:
            self.watch(simulation)
