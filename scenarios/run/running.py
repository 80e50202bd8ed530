"""Simulation of a scenario, its variants, the broadcast before the first step, and other software stacks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.network import check_algorithms, network_of
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.algorithm_files.algorithm_file import is_file
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.reading import plain_text
from clustersim.simulator.reading.errors import ClusterError, SimulatorError
from clustersim.simulator.reading.units import show
from clustersim.simulator.schedule.gc_paused import gc_paused
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.default_software_stack import AUTO, OTHERS
from clustersim.workloads.software_stack import specification

if TYPE_CHECKING:
    from clustersim.scenarios.build.built import BuiltScenario
    from clustersim.scenarios.results.result import Result
    from clustersim.scenarios.results.result_kinds import StepResult
    from clustersim.simulator.analysis.timeline import Timeline
    from clustersim.simulator.engine.pricing import Variation
    from clustersim.simulator.simulate import SimulationRun


log = logging.getLogger(__name__)

MANY_OPS = 200_000_000
"""A simulation of more ops says how long it takes before it begins: half a minute or more."""

OPS_PER_SECOND = 6e6
"""Of the compiled engine on one processor without contention, the fastest case."""

Watch = Callable[["SimulationRun"], Any]
"""A function that is called with each simulation before it starts; `Simulation.fraction` is then its progress."""


def run(scenario: BuiltScenario, watch: Watch | None = None, network: Communicator | None = None) -> Result:
    """Return the result of *scenario*, or of each of its variants if it has any.

    *network*: its `communicator`, if there is one already.
    """
    if scenario.variants:
        from clustersim.scenarios.results.result_kinds import VariantsResult

        return VariantsResult(scenario, {name: run(one, watch) for name, one in scenario.variants.items()})
    if scenario.specification.queue is not None:
        from clustersim.scenarios.run import queue

        with gc_paused(), _cluster_faults(scenario):
            return queue.run(scenario, watch)
    if scenario.jobs:
        from clustersim.scenarios.run import several_jobs

        with gc_paused(), _cluster_faults(scenario):
            return several_jobs.run(scenario, watch)
    with gc_paused():
        return _run(scenario, watch, network or communicator(scenario))


def run_step(scenario: BuiltScenario, network: Communicator) -> StepResult:
    """Return the numbers of one training step of *scenario* on *network*, without repeats and without what precedes it.

    The initial broadcast is 0 in it. The rules of schedules are not checked: `run` does for a plan that is executed.
    """
    from clustersim.scenarios.results.result_kinds import StepResult

    with gc_paused(), _cluster_faults(scenario):
        schedule = scenario.schedule()
        check_algorithms(schedule, network, scenario.document)
        result = StepResult(scenario, _simulation(scenario, schedule, None, network).run(), 0.0)
        return replace(result, whole_step=_whole_step(result, network))


def simulations(scenario: BuiltScenario) -> int:
    """Return how many simulations `run` makes, as *watch* counts them: repeats are parts of one."""
    if scenario.variants:
        return sum(map(simulations, scenario.variants.values()))
    if scenario.several:
        return len(scenario.jobs) + 1
    return 2 if scenario.specification.collective is None and scenario.broadcasts else 1


def _run(scenario: BuiltScenario, watch: Watch | None, network: Communicator) -> Result:
    from clustersim.scenarios.results.result_kinds import StepResult

    begin = perf_counter()
    with _cluster_faults(scenario):
        check_algorithms(scenario.schedule(), network, scenario.document)
        simulation = _checked_simulation(scenario, scenario.schedule(), watch, network)
        timeline = simulation.run()
        if scenario.replay is not None:
            from clustersim.scenarios.results.trace_result import TraceResult

            return TraceResult(scenario, timeline, perf_counter() - begin)
        if scenario.specification.collective is not None:
            from clustersim.scenarios.results.result_kinds import CollectiveResult

            host_seconds, library = _host_seconds(scenario, network), None
            if any(map(is_file, network.algorithms.values())):
                other = Communicator(network.cluster, network.devices, network.transport, network.fidelity)
                theirs = _checked_simulation(scenario, scenario.schedule(), watch, other).run()
                library = CollectiveResult(scenario, theirs, 0.0, host_seconds)
            return CollectiveResult(scenario, timeline, perf_counter() - begin, host_seconds, library)
        options = scenario.specification.simulation
        others: Sequence[float] = ()
        if options.repeats > 1:
            from clustersim.simulator.simulate import step_times

            others = step_times(simulation, range(options.seed + 1, options.seed + options.repeats))
        blame = _blamed(simulation, timeline, options.repeats)
    first = scenario.initial()
    broadcast = simulated(scenario, first, watch, network).makespan if first is not None else 0.0
    times = (timeline.step_time, *others)
    result = StepResult(scenario, timeline, perf_counter() - begin, broadcast, times, blame)
    return replace(result, whole_step=_whole_step(result, network))


def _whole_step(result: StepResult, network: Communicator) -> float:
    """Seconds of a step that sends whole gradients; 0 if training has none, or if its length is not known."""
    if not result.compression or not result.compression.warm_up or not result.steps:
        return 0.0
    plain = result.scenario.changed({"parallelism.data.compression": None}, "no compression in the first steps")
    plain = plain.with_software(result.scenario.software)
    return simulated(plain, plain.schedule(), network=network).step_time


MOST_BLAMED, MOST_BLAMED_OPS = 10, 100_000
"""Repeats of which the critical path is found, and the size of a simulation up to which it is."""


def _blamed(simulation: SimulationRun, first: Timeline, repeats: int) -> dict[int, int]:
    """Return the ranks that the others wait for in the first repeats; none without repeats, and of large runs."""
    if repeats == 1 or simulation.ops > MOST_BLAMED_OPS:
        return {}
    from clustersim.simulator.analysis.critical_path import blamed

    seed = simulation.variation.seed
    seeds = range(seed + 1, seed + min(repeats, MOST_BLAMED))
    return blamed([first, *(simulation.with_seed(one).run() for one in seeds)])


def simulated(
    scenario: BuiltScenario,
    schedule: Schedule,
    watch: Watch | None = None,
    network: Communicator | None = None,
) -> Timeline:
    """Simulate *schedule* on the cluster of *scenario*, with its software and variation.

    *network* replaces the scenario's own if given.
    """
    with _cluster_faults(scenario):
        return _checked_simulation(scenario, schedule, watch, network or communicator(scenario)).run()


def _checked_simulation(
    scenario: BuiltScenario, schedule: Schedule, watch: Watch | None, network: Communicator
) -> SimulationRun:
    from clustersim.simulator.schedule.check import check

    check(schedule)
    return _simulation(scenario, schedule, watch, network)


def _simulation(
    scenario: BuiltScenario, schedule: Schedule, watch: Watch | None, network: Communicator
) -> SimulationRun:
    from clustersim.scenarios.build.derived import at_clock_of_longest_stage
    from clustersim.scenarios.build.network import conditions
    from clustersim.simulator.engine.pricing import Pricing
    from clustersim.simulator.simulate import SimulationRun

    options, varied = scenario.specification.simulation, variation(scenario)
    clocked = at_clock_of_longest_stage(schedule, network.cluster, network.devices, scenario.software)
    simulation = SimulationRun(
        schedule,
        network,
        scenario.software,
        varied,
        pricing=Pricing(schedule, clocked, network.devices, scenario.software, varied),
        fold=options.fold,
        engine=options.engine,
        conditions=conditions(scenario.specification, network.cluster, scenario.document),
    )
    if simulation.ops > MANY_OPS:
        seconds = simulation.ops / OPS_PER_SECOND
        log.warning("%s ops are simulated one by one: %.0f s or more", f"{simulation.ops:,}", seconds)
    if watch is not None:
        watch(simulation)
    return simulation


@contextmanager
def _cluster_faults(scenario: BuiltScenario) -> Iterator[None]:
    try:
        yield
    except ClusterError as error:
        raise scenario.document.error(("cluster",), str(error)) from None


def communicator(scenario: BuiltScenario, cluster: Cluster | None = None) -> Communicator:
    """Return the network of *scenario* on its cluster, or on *cluster* (`network_of`)."""
    with _cluster_faults(scenario):
        on = cluster or scenario.cluster()
        if scenario.replay is not None:
            # durations of a trace include what collectives beside them take
            on = on.with_accelerators({gpu: replace(gpu, sms=0) for gpu in on.count(scenario.derived.devices)})
        return network_of(scenario.specification, on, scenario.derived.devices)


def _host_seconds(scenario: BuiltScenario, network: Communicator) -> dict[float, float]:
    """By size of the vector, the time in which one process launches the collective on the GPUs of its server; empty if
    each GPU has a process."""
    benchmark = scenario.specification.collective
    if benchmark is None or benchmark.driver != "one_process":
        return {}
    ranks, sms = tuple(range(scenario.derived.ranks)), network.cluster.accelerator(network.devices[0]).sms
    plans = {size: network.collective(benchmark.kind, "all", ranks, size, benchmark.root) for size in benchmark.size}
    driven = max(map(len, network.topology(ranks).group.servers))
    return {size: network.transport.host_seconds(driven, plan.sms * sms) for size, plan in plans.items()}


def variation(scenario: BuiltScenario) -> Variation:
    """Return how computing times of *scenario* vary."""
    from clustersim.simulator.engine.pricing import Distribution, Pauses, Spells, Variation

    options = scenario.specification.simulation
    stragglers = {straggler.rank: straggler.slowdown for straggler in options.slow_ranks}
    section = options.variation
    if section is None:
        return Variation(options.seed, options.jitter, stragglers, options.spread)
    spells, pauses = section.spells, section.pauses
    return Variation(
        options.seed,
        section.op.build() if section.op else 0.0,
        stragglers,
        section.gpu.build() if section.gpu else 0.0,
        section.step.build() if section.step else Distribution(),
        Spells(spells.probability, spells.steps, spells.slowdown) if spells else None,
        Pauses(pauses.probability, pauses.duration) if pauses else None,
    )


DIFFERS = 0.10
"""Share of the step time from which on another stack is said to differ."""


def stacks(scenario: BuiltScenario) -> tuple[str, ...]:
    """Return the stack of *scenario*, that of ``software: auto``, and others with which such a scenario is trained."""
    automatic = scenario.changed({"software": AUTO}, "software: auto").stack_choice
    found = (scenario.stack, automatic.stack, *OTHERS.get(scenario.stack, ()), *automatic.others)
    return tuple(dict.fromkeys(found))


def comparison_of_stacks(scenario: BuiltScenario, watch: Watch | None = None) -> str:
    """Return a table of the `stacks` of *scenario*, simulated with each. Raises `ScenarioError` for a collective."""
    # `clustersim check` makes a network with this module and reads no result
    from clustersim.scenarios.results.step_numbers import StepNumbers

    scenario.check_trains("software stack")
    rows, far = [], []
    first = 0.0
    for name in stacks(scenario):
        try:
            own = name == scenario.stack
            # keys beside the preset of the given stack stay
            result = run(scenario if own else scenario.changed({"software": name}, f"software: {name}"), watch)
        except SimulatorError as error:
            rows.append([name, "-", "", "", str(error).partition("\n")[0]])
            continue
        assert isinstance(result, StepNumbers)
        seconds = result.timeline.step_time
        first = first or seconds
        more = seconds / first - 1.0 if first else 0.0
        if abs(more) > DIFFERS:
            far.append(name)
        rows.append(
            [
                name,
                show(seconds, "time"),
                "" if own else f"{more:+.1%}",
                result.need.amount,
                specification(name).description,
            ]
        )
    stack, reason, _ = scenario.stack_choice
    lines = [
        f"{stack}: {reason or 'as given'}",
        "",
        plain_text.table(rows, ["", "step", "", "memory", ""], "lrrrl"),
        "",
    ]
    if len(rows) == 1:
        return "\n".join(
            [*lines, "no other stack is usual here; clustersim list software has all, software: NAME takes one."]
        )
    told = f"more than {DIFFERS:.0%} from {stack}: {', '.join(far)}" if far else f"none is {DIFFERS:.0%} from {stack}"
    return "\n".join([*lines, f"{told}. software: NAME takes one."])
