"""What a schedule runs on, with parameters scaled, or drawn by the uncertainty of the calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import exp, inf
from typing import Any

import numpy as np

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.derived import at_clock_of_longest_stage
from clustersim.scenarios.build.network import conditions, library_of, network_of
from clustersim.scenarios.results.uncertainty import FITS, Shipped, shipped
from clustersim.scenarios.run.running import Watch, variation
from clustersim.simulator.analysis import network_traffic
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.engine.pricing import Pricing, Variation
from clustersim.simulator.hardware.accelerator import Accelerator, Software
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.links import Link
from clustersim.simulator.network.library.nccl import FITTED
from clustersim.simulator.network.library.transport_parameters import PLACES
from clustersim.simulator.network.transport import Transport
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.quantities import keys_of
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.simulator.schedule.ops import Compute
from clustersim.simulator.simulate import SimulationRun, step_times
from clustersim.topologies.catalogue import GPUS


@dataclass(frozen=True)
class VariedMachine:
    """What the schedule of *scenario* runs on."""

    scenario: BuiltScenario
    cluster: Cluster
    software: Software
    transport: Transport
    variation: Variation

    def simulation(self) -> SimulationRun:
        """Return the simulation of the scenario's schedule on this machine."""
        scenario = self.scenario
        if self.software != scenario.software:
            scenario = scenario.with_software(self.software)
        options, devices = scenario.specification.simulation, scenario.derived.devices
        communicator = network_of(scenario.specification, self.cluster, devices, library=self.transport)
        schedule = scenario.schedule()
        clocked = at_clock_of_longest_stage(schedule, communicator.cluster, devices, self.software)
        return SimulationRun(
            schedule,
            communicator,
            self.software,
            self.variation,
            pricing=Pricing(schedule, clocked, devices, self.software, self.variation),
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

    def with_accelerators(self, change: Callable[[Accelerator], Accelerator]) -> VariedMachine:
        """Return the machine with *change* of each type of GPU in use."""
        used = self.cluster.count(self.scenario.derived.devices)
        return replace(self, cluster=self.cluster.with_accelerators({gpu: change(gpu) for gpu in used}))

    def with_links(self, kind: str, change: Callable[[Link], Link]) -> VariedMachine:
        """Return the machine with *change* of each link of *kind*."""
        return replace(self, cluster=self.cluster.map_links(lambda link: change(link) if link.kind == kind else link))


def machine(scenario: BuiltScenario) -> VariedMachine:
    """Return the machine that *scenario* describes."""
    cluster = scenario.cluster()
    library = library_of(scenario.specification, cluster)
    return VariedMachine(scenario, cluster, scenario.software, library, variation(scenario))


Scale = Callable[[VariedMachine, float], VariedMachine]
"""From a machine to the same with one parameter multiplied by a factor."""


def parameters(base: VariedMachine, timeline: Timeline) -> Mapping[str, Scale]:
    """Return the parameters on which the step time of *timeline*, a run on *base*, can depend, by name."""
    return {**dict(_of_gpus(base, timeline)), **dict(_of_links(base, timeline)), **dict(_of_software(base))}


def _of_gpus(base: VariedMachine, timeline: Timeline) -> Iterator[tuple[str, Scale]]:
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


def _of_links(base: VariedMachine, timeline: Timeline) -> Iterator[tuple[str, Scale]]:
    used = {kind for kind, nbytes in network_traffic.by_link_kind(timeline).items() if nbytes}
    for kind in sorted(used):
        yield f"{kind}.bandwidth", _bandwidth(kind)
        if any(link.kind == kind and link.latency for link in base.cluster.links.distinct):
            yield f"{kind}.latency", _latency(kind)
    if used and base.transport.launch:
        yield "network.launch", _network_launch


def _of_software(base: VariedMachine) -> Iterator[tuple[str, Scale]]:
    for key in ("launch", "load", "exchange"):
        if getattr(base.software, keys_of(Software)[key]):
            yield f"software.{key}", _software(keys_of(Software)[key])
    for key in ("jitter", "spread"):
        if getattr(base.variation, key):
            yield f"simulation.{key}", _variation(key)


def _peak(base: VariedMachine, factor: float) -> VariedMachine:
    def change(gpu: Accelerator) -> Accelerator:
        peak = gpu.peak_flops
        scaled = {key: value * factor for key, value in peak.items()} if isinstance(peak, Mapping) else peak * factor
        return replace(gpu, peak_flops=scaled)

    return base.with_accelerators(change)


def _memory_bandwidth(base: VariedMachine, factor: float) -> VariedMachine:
    return base.with_accelerators(lambda gpu: replace(gpu, memory_bandwidth=gpu.memory_bandwidth * factor))


def _speed(base: VariedMachine, factor: float) -> VariedMachine:
    """Scale the speed of all ranks: where durations are given, no peak and no bandwidth decides them."""
    slow = base.variation.stragglers
    ranks = range(len(base.scenario.derived.devices))
    return replace(
        base, variation=replace(base.variation, stragglers={rank: slow.get(rank, 1.0) / factor for rank in ranks})
    )


def _bandwidth(kind: str) -> Scale:
    def scale(base: VariedMachine, factor: float) -> VariedMachine:
        return base.with_links(kind, lambda link: replace(link, bandwidth=link.bandwidth * factor))

    return scale


def _latency(kind: str) -> Scale:
    def scale(base: VariedMachine, factor: float) -> VariedMachine:
        return base.with_links(kind, lambda link: replace(link, latency=link.latency * factor))

    return scale


def _network_launch(base: VariedMachine, factor: float) -> VariedMachine:
    return replace(base, transport=replace(base.transport, launch=base.transport.launch * factor))


def _software(key: str) -> Scale:
    def scale(base: VariedMachine, factor: float) -> VariedMachine:
        return replace(base, software=replace(base.software, **{key: getattr(base.software, key) * factor}))

    return scale


def _variation(key: str) -> Scale:
    def scale(base: VariedMachine, factor: float) -> VariedMachine:
        return replace(base, variation=replace(base.variation, **{key: getattr(base.variation, key) * factor}))

    return scale


SOFTWARE = {key: keys_of(Software)[key] for key in ("launch", "load", "exchange", "slice")}
"""Keys of a software stack's file that are drawn, and the attributes that hold them."""


def sampled(base: VariedMachine, samples: int, seed: int, watch: Watch | None = None) -> list[float]:
    """Return the step times of *samples* machines with fitted parameters drawn anew; none if nothing is fitted.

    Logarithms of the parameters are normal, with the covariance of the fit. Those of NCCL are independent.
    """
    fits = [fit for fit in map(shipped, FITS) if _used(base, fit)]
    by_nccl = base.scenario.specification.network.transport == "nccl"
    if not fits:
        return []
    random = np.random.default_rng(seed)
    return [drawn(base, fits, by_nccl, random).step_time(watch) for _ in range(samples)]


def _used(base: VariedMachine, fit: Shipped) -> bool:
    return any(fit.keys(f"{GPUS}.{gpu.name}") for gpu in base.cluster.count(base.scenario.derived.devices))


def drawn(base: VariedMachine, fits: list[Shipped], by_nccl: bool, random: np.random.Generator) -> VariedMachine:
    """Return *base* with its fitted parameters multiplied by draws from *random*."""
    for fit in fits:
        normal = random.multivariate_normal(np.zeros(len(fit.lands)), fit.covariance, method="eigh")
        factors = {name: exp(value) for name, value in zip(fit.lands, normal.tolist(), strict=True)}
        base = with_factors(base, fit, factors)
    if not by_nccl:
        return base
    deviations: Mapping[str, float] = read(FITTED).data["uncertainty"]
    factors = {name: exp(random.normal(0.0, deviation)) for name, deviation in deviations.items()}
    return replace(base, transport=with_nccl(base.transport, factors))


def with_factors(base: VariedMachine, fit: Shipped, factors: Mapping[str, float]) -> VariedMachine:
    """Return *base* with the parameters of *fit* multiplied by *factors*, by name."""

    def change(gpu: Accelerator) -> Accelerator:
        keys = fit.keys(f"{GPUS}.{gpu.name}")
        return replace(gpu, **{key: getattr(gpu, key) * factors[name] for key, name in keys.items()})

    keys = fit.keys(f"clustersim.workloads.software.{base.scenario.stack}")
    changed = {
        SOFTWARE[key]: getattr(base.software, SOFTWARE[key]) * factors[name]
        for key, name in keys.items()
        if key in SOFTWARE
    }
    return replace(base.with_accelerators(change), software=replace(base.software, **changed))


def with_nccl(library: Transport, factors: Mapping[str, float]) -> Transport:
    """Return *library* with values multiplied by *factors*, by dotted key of a calibration file."""
    keys = dict.fromkeys(name.partition(".")[0] for name in factors)
    changed: dict[str, Any] = {key: _scaled(getattr(library, key), dict(_below(key, factors))) for key in keys}
    return replace(library, **changed)


def _below(key: str, factors: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for name, factor in factors.items():
        head, _, rest = name.partition(".")
        if head == key:
            yield rest, factor


def _scaled(value: object, factors: Mapping[str, float]) -> object:
    """Return a number, or a table of numbers, with each entry multiplied by the factor of its dotted key."""
    if isinstance(value, Mapping):
        return {key: number * factors.get(_dotted(key), 1.0) for key, number in value.items()}
    return value * factors[""] if isinstance(value, float) else value


def _dotted(key: object) -> str:
    """Return the key of a table of a transport as a calibration file writes it.

    >>> _dotted(("ring", "LL128", False))
    'ring.LL128.inside'
    """
    if not isinstance(key, tuple):
        return str(key)
    names = {inside: name for name, inside in PLACES.items()}
    return ".".join(names[part] if isinstance(part, bool) else str(part) for part in key)
