"""Simulation: find the classes of equal ranks, run them on an engine, and make the timeline of all ranks; or run them
under several seeds for the step times alone.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from functools import cached_property
from math import inf
from threading import Event
from typing import TYPE_CHECKING

import numpy as np

from clustersim.simulator.analysis.timeline import FlowLinks, LinkUse, Timeline
from clustersim.simulator.engine.folding.folding import Folding
from clustersim.simulator.engine.outcome import Outcome, deadlock
from clustersim.simulator.engine.pricing import Pricing, Variation
from clustersim.simulator.engine.setup import NetworkConditions, RankClasses, Setup, Unfolded
from clustersim.simulator.engine_choice import choose, numba_fault, numba_found
from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import distinct, representatives_of
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.library.ideal import ideal
from clustersim.simulator.network.plan import Flow
from clustersim.simulator.network.transport import Transport
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ClusterError
from clustersim.simulator.schedule.gc_paused import gc_paused
from clustersim.simulator.schedule.mesh import family
from clustersim.simulator.schedule.ops import Collective, Recv, Send
from clustersim.simulator.schedule.schedule import Schedule

if TYPE_CHECKING:
    from clustersim.simulator.engine.compiled.lowering import Lowering

MOST_SPANS = 30_000_000
"""The most spans that are kept, at 40 bytes each. If all ranks differ, a larger run keeps the spans of a few ranks, and
totals of all."""

MOST_RATES = 1_000_000
"""Rates of flows that ``auto`` solves in SimPy before it takes the compiled engine: some 10 s."""

MOST_BYTES = 2**32
"""The most memory for the durations of concurrent runs; a run of 12,288 ranks needs 0.5 GB."""


def simulate(
    schedule: Schedule,
    cluster: Cluster,
    *,
    transport: Transport | None = None,
    fidelity: str = "flow",
    algorithms: Mapping[str, str] | None = None,
    software: Software | None = None,
    placement: Sequence[str] | None = None,
    variation: Variation | None = None,
    fold: bool = True,
    engine: str = "auto",
    conditions: NetworkConditions | None = None,
) -> Timeline:
    """Run *schedule* on *cluster*.

    - *transport*: the communication library; default `ideal`.
    - *fidelity*: ``alpha_beta``, ``flow`` or ``chunk``.
    - *algorithms*: the algorithm by collective (``all_reduce``) or by axis and collective (``dp.all_reduce``).
    - *software*: the stack that issues the kernels; by default launches cost nothing.
    - *placement*: the device of each rank; default `packed`.
    - *variation*: stragglers, spread and jitter.
    - *fold*: simulate equal ranks once, which is exact (`simulator.engine.folding`).
    - *engine*: ``auto``, ``simpy`` or ``compiled``.
    - *conditions*: changes of the network from outside.

    Raises `DeadlockError` with the streams that wait for each other.
    """
    devices = tuple(placement or packed(schedule, cluster))
    communicator = Communicator(cluster, devices, transport or ideal(), fidelity, algorithms or {})
    return SimulationRun(
        schedule,
        communicator,
        software,
        variation or Variation(),
        fold=fold,
        engine=engine,
        conditions=conditions or NetworkConditions(),
    ).run()


def packed(schedule: Schedule, cluster: Cluster) -> tuple[str, ...]:
    """The device of each rank: GPUs in order, host ranks spread evenly over the hosts.

    Raises `ClusterError` if there are fewer GPUs than ranks that need one.
    """
    on_host = [program.on == "host" for program in schedule.programs]
    hosts = [rank for rank, program in enumerate(schedule.program_of) if on_host[program]]
    gpus = schedule.mesh.world_size - len(hosts)
    if gpus > len(cluster.gpus):
        raise ClusterError(f"the schedule has {gpus} GPU ranks, but {cluster.name} has {len(cluster.gpus)} GPUs")
    if hosts and not cluster.hosts:
        raise ClusterError(f"the schedule has {len(hosts)} host ranks, but {cluster.name} has no host")
    gpu, host = iter(cluster.gpus), iter(range(len(hosts)))
    return tuple(
        cluster.hosts[next(host) * len(cluster.hosts) // len(hosts)] if on_host[program] else next(gpu)
        for program in schedule.program_of
    )


@dataclass
class SimulationRun:
    """One run of *schedule* on the cluster and the devices of *communicator*.

    *ranks*: the ranks that keep their spans if not all can. *pricing*: in place of that by *software* and *variation*.
    `fraction`: the fraction of ops that have ended so far.
    """

    schedule: Schedule
    communicator: Communicator
    software: Software | None = None
    variation: Variation = field(default_factory=Variation)
    fold: bool = True
    engine: str = "auto"
    conditions: NetworkConditions = field(default_factory=NetworkConditions)
    ranks: Collection[int] = ()
    pricing: Pricing | None = None
    fraction: float = 0.0

    def run(self) -> Timeline:
        """Run until all ops have ended. Raises `DeadlockError` if they cannot."""
        with gc_paused():
            setup = self.setup
            outcome = self._execute(setup)
            error = deadlock(self.schedule, setup.classes.representative, outcome.waiting)
            if error is not None:
                raise error
            return self._timeline(outcome)

    def with_seed(self, seed: int) -> SimulationRun:
        """The same simulation with variation drawn from *seed*. What does not depend on the seed is shared."""
        other = replace(self, variation=replace(self.variation, seed=seed), fraction=0.0)
        other._pricing = self._pricing.with_variation(other.variation)
        # classes do not depend on the seed: with spread or jitter every rank is a class of its own
        other.classes, other.setup = self.classes, replace(self.setup, pricing=other._pricing)
        return other

    @cached_property
    def classes(self) -> RankClasses:
        """The classes of equal ranks."""
        if not self.fold or self.schedule.mesh.world_size == 1:
            return Unfolded(self.schedule, self.communicator)
        distinct = self.conditions.links(self.communicator.cluster)
        return Folding(self.schedule, self.communicator, self.variation, self._pricing.hosts, distinct)

    @cached_property
    def setup(self) -> Setup:
        """The input of the engine."""
        cluster = self.communicator.cluster
        return Setup(
            self.schedule,
            self.classes,
            self._pricing,
            self.conditions.capacity_changes(cluster, self.classes),
            self.conditions.background(cluster, self.classes),
        )

    @cached_property
    def _pricing(self) -> Pricing:
        if self.pricing is not None:
            return self.pricing
        cluster, devices = self.communicator.cluster, self.communicator.devices
        return Pricing(self.schedule, cluster, devices, self.software, self.variation)

    @cached_property
    def ops(self) -> int:
        """The number of simulated ops, all steps."""
        lengths = np.array([len(program.ops) for program in self.schedule.programs])
        simulated = representatives_of(self.classes.representative)
        return int(lengths[self.schedule.program_numbers[simulated]].sum()) * self.schedule.steps

    @cached_property
    def chosen_engine(self) -> str:
        """The name of the engine that runs the simulation."""
        return choose(self.engine, self.ops)

    def _execute(self, setup: Setup) -> Outcome:
        def watch(fraction: float) -> None:
            self.fraction = fraction

        if self.chosen_engine == "simpy":
            from clustersim.simulator.engine.reference.simulation import TooManyRatesError
            from clustersim.simulator.engine.reference.simulation import run as run_reference

            # few ops may have many flows, which only shows while they run
            bounded = self.engine == "auto" and numba_found()
            try:
                return run_reference(setup, watch, MOST_RATES if bounded else inf)
            except TooManyRatesError:
                if numba_fault():
                    return run_reference(setup, watch)
                self.__dict__["chosen_engine"] = "compiled"
        from clustersim.simulator.engine.compiled.execution import run

        return run(setup, watch, self.kept)

    @cached_property
    def kept(self) -> Collection[int] | None:
        """The representatives that keep their spans; None: all.

        In a run that is too large to keep all spans: `ranks`, and the first rank of each program.
        """
        unfolded = len(representatives_of(self.classes.representative)) == self.schedule.mesh.world_size
        if self.ops <= MOST_SPANS or not unfolded or self.schedule.measured_by_span:
            return None
        firsts = {program: rank for rank, program in reversed(list(enumerate(self.schedule.program_of)))}
        return {*self.ranks, *firsts.values()}

    def _timeline(self, outcome: Outcome) -> Timeline:
        classes = self.classes
        flows = _links_of(outcome.flows)
        used = distinct(flows.links)
        crossed = flows.crossings * np.repeat(outcome.flow_bytes, np.diff(flows.starts))
        link_bytes = np.bincount(np.searchsorted(used, flows.links), crossed, len(used))
        axis_bytes: dict[str, float] = {}
        algorithms: dict[tuple[str, str, float], tuple[str, str]] = {}
        for name, op, times in outcome.communications:
            if isinstance(op, Collective | Send | Recv):
                plan, axis = classes.plan(name, op), family(op.over)
                sent = times * plan.sent_bytes * classes.multiplicity(name)
                axis_bytes[axis] = axis_bytes.get(axis, 0.0) + sent
                if isinstance(op, Collective):
                    algorithms[axis, op.kind, op.nbytes] = plan.algorithm, plan.protocol
        return Timeline(
            schedule=self.schedule,
            cluster=self.communicator.cluster,
            columns=outcome.columns,
            representative=np.asarray(classes.representative),
            devices=self.communicator.devices,
            axis_bytes=axis_bytes,
            link_bytes=dict(zip(used.tolist(), link_bytes.tolist(), strict=True)),
            link_use=LinkUse(outcome.intervals, flows),
            algorithms=algorithms,
            multiplicity=classes.link_multiplicity,
            engine=self.chosen_engine,
            totals=outcome.totals,
            links_shared=self.communicator.fidelity != "alpha_beta",
        )


def _links_of(flows: Sequence[Flow]) -> FlowLinks:
    sizes = [len(flow.links) for flow in flows]
    links = np.concatenate([np.zeros(0, np.int64), *(flow.links for flow in flows)])
    crossings = np.concatenate([np.zeros(0), *(flow.crossings for flow in flows)])
    return FlowLinks(np.cumsum([0, *sizes]), links, crossings)


def step_times(simulation: SimulationRun, seeds: Sequence[int]) -> list[float]:
    """The step time (s) of *simulation* under each of *seeds*. Raises `DeadlockError`."""
    if not seeds:
        return []
    if simulation.chosen_engine != "compiled" or simulation.schedule.measured_by_span:
        return [simulation.with_seed(seed).run().step_time for seed in seeds]
    with gc_paused():
        return _Repeats(simulation, seeds).run()


class _Repeats:
    """Runs of *simulation* on the compiled engine, one for each of *seeds*."""

    def __init__(self, simulation: SimulationRun, seeds: Sequence[int]) -> None:
        from clustersim.simulator.engine.compiled.lowering import lower

        self.simulation, self.seeds = simulation, seeds
        first = simulation.with_seed(seeds[0])
        self.lowering = lower(first.setup, kept=(), totals=False, record=False)
        self.fractions = dict.fromkeys(seeds, 0.0)
        self.stopped = Event()

    def run(self) -> list[float]:
        """The step times, in the order of the seeds."""
        at_a_time = min(len(self.seeds), processors(), MOST_BYTES // max(1, self.lowering.arrays.durations.nbytes))
        with ThreadPoolExecutor(max(1, at_a_time)) as pool:
            try:
                return list(pool.map(self._step_time, self.seeds))
            except BaseException:
                # such as an interrupt: the other runs end when they next report their progress
                self.stopped.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _step_time(self, seed: int) -> float:
        from clustersim.simulator.engine.compiled.execution import CompiledExecution

        def watch(fraction: float) -> None:
            if self.stopped.is_set():
                raise InterruptedError
            self.fractions[seed] = fraction
            self.simulation.fraction = sum(self.fractions.values()) / len(self.fractions)

        execution = CompiledExecution(self._lowered(seed), watch)
        outcome = execution.run()
        schedule = self.simulation.schedule
        error = deadlock(schedule, self.simulation.classes.representative, outcome.waiting)
        if error is not None:
            raise error
        watch(1.0)
        begin, _ = execution.first_step
        return (float(execution.state.clock[0]) - begin) / (schedule.batches * max(1, schedule.steps - 1))

    def _lowered(self, seed: int) -> Lowering:
        if seed == self.seeds[0]:
            return self.lowering
        variation = replace(self.simulation.variation, seed=seed)
        return self.lowering.with_pricing(self.lowering.setup.pricing.with_variation(variation))


def processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
