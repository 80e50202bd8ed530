"""Running simulates a scenario, its variants, and the broadcast that precedes the first step."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from scenarios.result import CollectiveResult, Result, VariantsResult
from scenarios.step_result import StepResult
from simulator.engine.simulate import Simulation
from simulator.engine.variation import Variation
from simulator.errors import ClusterError
from simulator.schedule import Schedule
from simulator.timeline import Timeline
from simulator.transport.calibration import transport
from simulator.transport.communicator import Communicator

if TYPE_CHECKING:
    from scenarios.scenario import Scenario


def run(scenario: Scenario, watch: Callable[[Simulation], Any] | None = None) -> Result:
    """The result of *scenario*, of each of its variants where it has any."""
    if scenario.variants:
        return VariantsResult(scenario, {name: run(one, watch) for name, one in scenario.variants.items()})
    begin = perf_counter()
    timeline = simulated(scenario, scenario.schedule(), watch)
    if scenario.specification.collective is not None:
        return CollectiveResult(scenario, timeline, perf_counter() - begin)
    first = scenario.initial()
    broadcast = simulated(scenario, first, watch).makespan if first is not None else 0.0
    return StepResult(scenario, timeline, perf_counter() - begin, broadcast)


def simulated(scenario: Scenario, schedule: Schedule, watch: Callable[[Simulation], Any] | None = None) -> Timeline:
    """*schedule* on the cluster of *scenario*, with its network, software and variation."""
    specification, cluster, devices = scenario.specification, scenario.cluster(), scenario.derived.devices
    network, options = specification.network, specification.simulation
    schedule.check()
    try:
        communicator = Communicator(
            cluster, devices, transport(network.transport), network.fidelity, network.algorithms
        )
        simulation = Simulation(
            schedule, cluster, devices, communicator, scenario.software, variation(scenario), fold=options.fold
        )
        if watch is not None:
            watch(simulation)
        return simulation.run()
    except ClusterError as error:
        raise scenario.document.error(("cluster",), str(error)) from None


def variation(scenario: Scenario) -> Variation:
    """The stragglers and the jitter of *scenario*."""
    options = scenario.specification.simulation
    stragglers = {straggler.rank: straggler.slowdown for straggler in options.stragglers}
    return Variation(options.seed, options.jitter, stragglers)
