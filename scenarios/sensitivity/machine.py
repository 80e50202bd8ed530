"""A machine is what a schedule runs on: cluster, software, library and variation; each parameter can be scaled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

from scenarios.build.built import BuiltScenario
from scenarios.build.conditions import conditions
from scenarios.build.network import library_of, network_of
from scenarios.running import Watch, variation
from simulator.accelerator import Accelerator, Software
from simulator.analysis.network import traffic
from simulator.cluster import Cluster, Link
from simulator.engine.repeats import step_times
from simulator.engine.simulate import Simulation
from simulator.engine.variation import Variation
from simulator.network.transport.transport import Transport
from simulator.schedule import Compute
from simulator.timeline import Timeline


@dataclass(frozen=True)
class Machine:
    """What the schedule of *scenario* runs on."""

    scenario: BuiltScenario
    cluster: Cluster
    software: Software
    transport: Transport
    variation: Variation

    def simulation(self) -> Simulation:
        """Return the simulation of the scenario's schedule on this machine."""
        scenario = self.scenario
        if self.software != scenario.software:
            scenario = scenario.with_software(self.software)
        options, devices = scenario.specification.simulation, scenario.derived.devices
        communicator = network_of(scenario.specification, self.cluster, devices, library=self.transport)
        return Simulation(
            scenario.schedule(),
            communicator,
            self.software,
            self.variation,
            fold=options.fold,
            engine=options.engine,
            conditions=conditions(scenario.specification, communicator.cluster, scenario.document),
        )

    def step_time(self, watch: Watch | None = None) -> float:
        """Return the step time, the mean of the scenario's repeats, s."""
        simulation = self.simulation()
        if watch is not None:
            watch(simulation)
        first = simulation.run().step_time
        repeats, seed = self.scenario.specification.simulation.repeats, self.variation.seed
        others = step_times(simulation, range(seed + 1, seed + repeats))
        return (first + sum(others)) / repeats

    def with_accelerators(self, change: Callable[[Accelerator], Accelerator]) -> Machine:
        """Return the machine with *change* of each type of GPU in use."""
        used = self.cluster.count(self.scenario.derived.devices)
        return replace(self, cluster=self.cluster.with_accelerators({gpu: change(gpu) for gpu in used}))

    def with_links(self, kind: str, change: Callable[[Link], Link]) -> Machine:
        """Return the machine with *change* of each link of *kind*."""
        return replace(self, cluster=self.cluster.map_links(lambda link: change(link) if link.kind == kind else link))


def machine(scenario: BuiltScenario) -> Machine:
    """Return the machine that *scenario* describes."""
    cluster = scenario.cluster()
    library = library_of(scenario.specification, cluster)
    return Machine(scenario, cluster, scenario.software, library, variation(scenario))


Scale = Callable[[Machine, float], Machine]
"""From a machine to the same with one parameter multiplied by a factor."""


def parameters(base: Machine, timeline: Timeline) -> Mapping[str, Scale]:
    """Return the parameters on which the step time of *timeline*, a run on *base*, can depend, by name."""
    return {**dict(_of_gpus(base, timeline)), **dict(_of_links(base, timeline)), **dict(_of_software(base))}


def _of_gpus(base: Machine, timeline: Timeline) -> Iterator[tuple[str, Scale]]:
    ops = (op for program in timeline.schedule.programs for op in program.distinct() if isinstance(op, Compute))
    kernels = {kernel for op in ops for kernel in op.kernels}
    gpus = list(base.cluster.count(timeline.devices))
    modelled = {kernel for kernel in kernels if kernel.seconds is None}
    if any(kernel.flops for kernel in modelled):
        yield "gpu.peak", _peak
    elif any(kernel.seconds for kernel in kernels):
        yield "gpu.speed", _speed
    if any(kernel.nbytes for kernel in modelled) and any(gpu.memory_bandwidth < inf for gpu in gpus):
        yield "gpu.memory_bandwidth", _memory_bandwidth


def _of_links(base: Machine, timeline: Timeline) -> Iterator[tuple[str, Scale]]:
    used = {kind for kind, nbytes in traffic.by_link_kind(timeline).items() if nbytes}
    for kind in sorted(used):
        yield f"{kind}.bandwidth", _bandwidth(kind)
        if any(link.kind == kind and link.latency for link in base.cluster.links.distinct):
            yield f"{kind}.latency", _latency(kind)
    if used and base.transport.launch:
        yield "network.launch", _network_launch


def _of_software(base: Machine) -> Iterator[tuple[str, Scale]]:
    for key, name in (("launch_seconds", "launch"), ("load_seconds", "load"), ("exchange_seconds", "exchange")):
        if getattr(base.software, key):
            yield f"software.{name}", _software(key)
    for key in ("jitter", "spread"):
        if getattr(base.variation, key):
            yield f"simulation.{key}", _variation(key)


def _peak(base: Machine, factor: float) -> Machine:
    def change(gpu: Accelerator) -> Accelerator:
        peak = gpu.peak_flops
        scaled = {key: value * factor for key, value in peak.items()} if isinstance(peak, Mapping) else peak * factor
        return replace(gpu, peak_flops=scaled)

    return base.with_accelerators(change)


def _memory_bandwidth(base: Machine, factor: float) -> Machine:
    return base.with_accelerators(lambda gpu: replace(gpu, memory_bandwidth=gpu.memory_bandwidth * factor))


def _speed(base: Machine, factor: float) -> Machine:
    """Scale the speed of all ranks: where durations are given, no peak and no bandwidth decides them."""
    slow = base.variation.stragglers
    ranks = range(len(base.scenario.derived.devices))
    return replace(
        base, variation=replace(base.variation, stragglers={rank: slow.get(rank, 1.0) / factor for rank in ranks})
    )


def _bandwidth(kind: str) -> Scale:
    def scale(base: Machine, factor: float) -> Machine:
        return base.with_links(kind, lambda link: replace(link, bandwidth=link.bandwidth * factor))

    return scale


def _latency(kind: str) -> Scale:
    def scale(base: Machine, factor: float) -> Machine:
        return base.with_links(kind, lambda link: replace(link, latency=link.latency * factor))

    return scale


def _network_launch(base: Machine, factor: float) -> Machine:
    return replace(base, transport=replace(base.transport, launch=base.transport.launch * factor))


def _software(key: str) -> Scale:
    def scale(base: Machine, factor: float) -> Machine:
        return replace(base, software=replace(base.software, **{key: getattr(base.software, key) * factor}))

    return scale


def _variation(key: str) -> Scale:
    def scale(base: Machine, factor: float) -> Machine:
        return replace(base, variation=replace(base.variation, **{key: getattr(base.variation, key) * factor}))

    return scale
