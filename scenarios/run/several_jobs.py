"""Several jobs on one cluster: each is simulated alone and all together, until every job has reached a steady state;
then with wider links where jobs share some, and with other placements.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import ceil
from time import perf_counter
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from clustersim.scenarios.build.derived import at_clock_of_longest_stage, at_slowest_clock
from clustersim.scenarios.build.memory_need import MemoryNeed, memory_need
from clustersim.scenarios.build.network import check_algorithms, conditions, library_of
from clustersim.scenarios.build.node_placement import NodePlacement
from clustersim.scenarios.results.jobs_numbers import Cable, JobTimes, Placed, Tier
from clustersim.scenarios.results.jobs_result import JobsResult
from clustersim.simulator.analysis.timeline import Floats, Timeline
from clustersim.simulator.engine.folding.folding import Folding
from clustersim.simulator.engine.pricing import PricingByJob
from clustersim.simulator.engine.setup import NetworkConditions
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.links import STORES
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.schedule import Part, Schedule, SideBySide, side_by_side
from clustersim.simulator.simulate import SimulationRun

if TYPE_CHECKING:
    from clustersim.scenarios.build.built import BuiltScenario

LEAST_STEPS, MOST_STEPS = 4, 32
"""Steps of the slowest job that are measured, at least; and at most, if they do not repeat before."""

STEADY = 0.01
"""The halves of the measured steps of a steady job differ in their mean by no more, relative to it."""

MOST_REPEATS = 5_000
"""Steps of a job in one simulation; if one takes longer than so many of another, they have no common steady state."""

ROUNDING = 1e-9
"""Ends of steps at one time differ by a smaller fraction of it."""

Watch = Callable[[SimulationRun], Any]


def run(scenario: BuiltScenario, watch: Watch | None = None) -> JobsResult:
    """Simulate the jobs of *scenario* alone, together, with wider shared links, and in other placements."""
    begin = perf_counter()
    jobs = Jobs(scenario, watch)
    together = jobs.steady(list(scenario.jobs))
    alone = {name: jobs.alone[name].seconds[name] for name in scenario.jobs}
    times = {
        name: JobTimes(
            jobs.nodes(name),
            scenario.jobs[name].derived.ranks,
            scenario.specification.jobs[name].start,
            alone[name],
            together.seconds[name],
            together.steps(name),
            together.is_steady(name),
            together.joint.first_rank[place],
            jobs.memory(name),
        )
        for place, name in enumerate(scenario.jobs)
    }
    tiers = tuple(_tiers(jobs, together))
    others = tuple(_others(scenario, jobs, watch))
    return JobsResult(scenario, together.timeline, times, tiers, others, together.window, perf_counter() - begin)


@dataclass(frozen=True)
class Ran:
    """One simulation of the jobs *names* side by side; *ends*: when each step of each job ended on all of its ranks."""

    names: Sequence[str]
    joint: SideBySide
    simulation: SimulationRun
    timeline: Timeline
    ends: Mapping[str, Floats]

    @cached_property
    def window(self) -> tuple[float, float]:
        """From when all jobs have ended their first step until the first job ends its last one."""
        return max(float(own[0]) for own in self.ends.values()), min(float(own[-1]) for own in self.ends.values())

    def _inside(self, name: str) -> Floats:
        ends, (begin, end) = self.ends[name], self.window
        return np.asarray(ends[(ends >= begin * (1 - ROUNDING)) & (ends <= end * (1 + ROUNDING))])

    def steps(self, name: str) -> int:
        """The number of repetitions of the job *name* within the window."""
        return max(0, len(self._inside(name)) - 1)

    def repetition(self, name: str) -> float:
        """Seconds of one repetition of the schedule of *name*, the mean over the window; of all, if it has none."""
        inside = self._inside(name) if self.steps(name) else self.ends[name]
        return float(inside[-1] - inside[0]) / max(1, len(inside) - 1)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of a step by job."""
        batches = [part.schedule.batches for part in self.joint.parts]
        return {name: self.repetition(name) / each for name, each in zip(self.names, batches, strict=True)}

    def is_steady(self, name: str) -> bool:
        """Whether both halves of the steps within the window took the same."""
        gaps = np.diff(self._inside(name))
        if len(gaps) < 2:
            return False
        half = len(gaps) // 2
        return bool(abs(gaps[:half].mean() - gaps[-half:].mean()) <= STEADY * gaps.mean())


class Jobs:
    """The jobs of *scenario*, ready to be simulated side by side; *watch* is called with each simulation.

    *schedules*: those of equal jobs that were made before, to which new ones are added.
    """

    def __init__(
        self, scenario: BuiltScenario, watch: Watch | None = None, schedules: dict[str, Schedule] | None = None
    ) -> None:
        self.scenario, self.watch, self.cluster = scenario, watch, scenario.cluster()
        self._schedules: dict[str, Schedule] = {} if schedules is None else schedules

    @cached_property
    def alone(self) -> dict[str, Ran]:
        """Each job alone, by name."""
        return {name: self.simulated([name], {name: LEAST_STEPS + 1}) for name in self.scenario.jobs}

    @cached_property
    def loads(self) -> dict[str, dict[int, float]]:
        """The bytes of one repetition of each job on each link, by name and number of the link."""
        if not self.scenario.specification.network.background:
            return {name: bytes_by_link(ran) for name, ran in self.alone.items()}
        # traffic from outside is not the job's
        return {name: bytes_by_link(self.simulated([name], {name: 1}, quiet=True)) for name in self.scenario.jobs}

    def nodes(self, name: str) -> tuple[str, ...]:
        """The nodes of the job *name*."""
        devices = self.scenario.jobs[name].cluster().gpus
        return tuple(dict.fromkeys(str(self.cluster.node_of(device)) for device in devices))

    def memory(self, name: str) -> MemoryNeed | None:
        """What the fullest GPU of the job *name* needs at most; None for a collective."""
        job = self.scenario.jobs[name]
        return memory_need(job, self._schedule(name)) if job.model is not None else None

    def _key(self, name: str) -> str:
        """A text that is equal for jobs that run the same programs on equal GPUs."""
        job = self.scenario.jobs[name]
        training = job.specification.training
        own = name if training is not None and training.plans_activations else ""
        gpus = self.cluster.count(job.derived.devices)
        return json.dumps([own, job.document.data, sorted(map(str, gpus.items()))], sort_keys=True, default=str)

    def _schedule(self, name: str) -> Schedule:
        key, job = self._key(name), self.scenario.jobs[name]
        if key not in self._schedules:
            schedule = job.schedule()
            check(schedule)
            self._schedules[key] = schedule
        return self._schedules[key]

    def _clocked(self, name: str, cluster: Cluster) -> Cluster:
        """*cluster* with GPUs as slow as those that a step of the job *name* waits for."""
        job = self.scenario.jobs[name]
        devices = job.derived.devices
        return at_clock_of_longest_stage(
            self._schedule(name), at_slowest_clock(cluster, devices), devices, job.software
        )

    def simulated(
        self,
        names: Sequence[str],
        times: Mapping[str, int],
        cluster: Cluster | None = None,
        *,
        start: bool = False,
        quiet: bool = False,
    ) -> Ran:
        """Simulate the jobs *names* side by side on *cluster*, each repeated *times*.

        *start*: each waits until its start. *quiet*: without traffic from outside.
        """
        scenario, cluster = self.scenario, cluster or self.cluster
        sections, specification = scenario.specification.jobs, scenario.specification
        parts = [
            Part(self._schedule(name), times[name], sections[name].start if start else 0.0, self._key(name))
            for name in names
        ]
        try:
            joint = side_by_side(parts)
        except ScheduleError as error:
            raise scenario.document.error(("jobs",), str(error), at_key=True) from None
        jobs = [scenario.jobs[name] for name in names]
        devices = [device for job in jobs for device in job.derived.devices]
        network = Communicator(
            cluster,
            devices,
            library_of(specification, cluster),
            specification.network.fidelity,
            specification.network.algorithms,
        )
        check_algorithms(joint.schedule, network, scenario.document)
        machines = [(self._clocked(name, cluster), scenario.jobs[name].software) for name in names]
        simulation = SimulationRun(
            joint.schedule,
            network,
            fold=specification.simulation.fold,
            engine=specification.simulation.engine,
            conditions=NetworkConditions() if quiet else conditions(specification, cluster, scenario.document),
            ranks=joint.first_rank[:-1],
            pricing=PricingByJob(joint.schedule, cluster, devices, machines, joint.first_rank),
        )
        if self.watch is not None:
            self.watch(simulation)
        timeline = simulation.run()
        ends = {name: _step_ends(joint, place, timeline) for place, name in enumerate(names)}
        return Ran(names, joint, simulation, timeline, ends)

    def steady(
        self, names: Sequence[str], cluster: Cluster | None = None, alone: Mapping[str, float] | None = None
    ) -> Ran:
        """Simulate the jobs *names* side by side until every one has reached a steady state, or for `MOST_STEPS`.

        *alone*: seconds of one repetition of each job alone, where they are known.
        """
        seconds = alone or {name: self.alone[name].repetition(name) for name in names}
        begins = {name: self.scenario.specification.jobs[name].start for name in names}
        wanted, times = LEAST_STEPS, dict.fromkeys(names, 0)
        while True:
            begin = max(begins[name] + seconds[name] for name in names)
            end = begin + wanted * max(seconds.values())
            for name in names:
                needed = ceil((end - begins[name]) / seconds[name] - ROUNDING) if seconds[name] else 1
                times[name] = max(times[name], needed, LEAST_STEPS + 1)
                self._check_repeats(name, times[name], seconds)
            ran = self.simulated(names, times, cluster, start=True)
            if any(ran.steps(name) < wanted for name in names):
                seconds = {name: ran.repetition(name) for name in names}
                shortest = min(names, key=lambda name: float(ran.ends[name][-1]))
                times[shortest] += max(1, times[shortest] // LEAST_STEPS)
            elif all(map(ran.is_steady, names)) or wanted >= MOST_STEPS:
                return ran
            else:
                wanted *= 2

    def _check_repeats(self, name: str, times: int, seconds: Mapping[str, float]) -> None:
        if times > MOST_REPEATS:
            slow = max(seconds, key=lambda one: seconds[one])
            raise self.scenario.document.error(
                ("jobs", name),
                f"takes {times:,} steps in the time that {slow} needs to be measured, more than {MOST_REPEATS:,}; "
                "give it longer steps or an earlier start of the last job",
                at_key=True,
            )


def _step_ends(joint: SideBySide, place: int, timeline: Timeline) -> Floats:
    """Return when each repetition of the part number *place* ended on all of its ranks, s."""
    ranks = joint.ranks(place)
    _, first = np.unique(timeline.representative[ranks.start : ranks.stop], return_index=True)
    ends = np.zeros(joint.parts[place].times)
    for rank in (ranks[one] for one in first.tolist()):
        if int(timeline.representative[rank]) not in timeline.columns:
            continue
        own = timeline.of(rank)
        step = joint.step_of(place, rank, own.op)
        np.maximum.at(ends, step[step >= 0], own.end[step >= 0])
    return ends


def bytes_by_link(ran: Ran) -> dict[int, float]:
    """Return the bytes of one repetition of a job alone on each link, by its number."""
    classes, found = ran.simulation.classes, {}
    equal: Mapping[int, Sequence[int]] = classes.equal_links if isinstance(classes, Folding) else {}
    for link, nbytes in ran.timeline.link_bytes.items():
        for one in equal.get(link, (link,)):
            found[one] = nbytes / ran.joint.parts[0].times
    return found


def _tiers(jobs: Jobs, together: Ran) -> Iterator[Tier]:
    """Yield the links that several jobs share, by kind and by jobs, and simulate each with more bandwidth."""
    cluster, loads = jobs.cluster, jobs.loads
    found: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for link in sorted({link for own in loads.values() for link in own}):
        sharing = tuple(name for name, own in loads.items() if own.get(link, 0.0) > 0.0)
        if len(sharing) > 1 and cluster.links[link].kind not in STORES:
            found.setdefault((_kind(cluster, link), sharing), []).append(link)
    for (kind, sharing), links in found.items():
        cables = []
        for link in links:
            seconds = {name: loads[name][link] / cluster.links[link].bandwidth for name in sharing}
            alone = {name: own / jobs.alone[name].repetition(name) for name, own in seconds.items()}
            beside = {name: own / together.repetition(name) for name, own in seconds.items()}
            cables.append(Cable(*cluster.ends[link], alone, beside))
        cables.sort(key=lambda one: -sum(one.alone.values()))
        factor = len(sharing)
        ends = {frozenset((one.source, one.target)): (one.source, one.target, float(factor)) for one in cables}
        wider = jobs.steady(together.names, cluster.degraded(ends.values()))
        yield Tier(kind, tuple(cables), factor, wider.seconds)


def _kind(cluster: Cluster, link: int) -> str:
    """Return the kinds of the vertices at the ends of *link*, in either direction, and its own."""
    kinds, kind = cluster.vertices.kinds, cluster.vertices.kind
    ends = sorted(kinds[kind[vertices[link]]] for vertices in (cluster.topology.source, cluster.topology.target))
    return f"{' - '.join(ends)}, {cluster.links[link].kind}"


def _others(scenario: BuiltScenario, jobs: Jobs, watch: Watch | None) -> Iterator[Placed]:
    """Yield each other placement of the jobs that do not list their nodes, simulated."""
    counted = [name for name, job in scenario.specification.jobs.items() if not isinstance(job.nodes, list)]
    seen = [{name: jobs.nodes(name) for name in scenario.jobs}]
    for placement in get_args(NodePlacement) if counted else ():
        changes = {f"jobs.{name}.placement": placement for name in counted}
        moved = Jobs(scenario.changed(changes, f"placement {placement}"), watch)
        nodes = {name: moved.nodes(name) for name in scenario.jobs}
        if nodes in seen:
            continue
        seen.append(nodes)
        together = moved.steady(list(scenario.jobs))
        alone = {name: moved.alone[name].seconds[name] for name in scenario.jobs}
        yield Placed(placement, nodes, alone, together.seconds)
