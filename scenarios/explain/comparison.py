"""A real run beside the simulation of a scenario."""

from __future__ import annotations

from scenarios.build.explanation import check_trains
from scenarios.explain.gap import Gap, gap
from scenarios.explain.run import Run
from scenarios.explain.simulated import simulated
from scenarios.running import simulated as simulate
from scenarios.scenario import Scenario
from simulator.errors import TraceError
from simulator.timeline import Timeline


def compared(run: Run, scenario: Scenario) -> tuple[Timeline, Gap]:
    """Simulate *scenario*; return its timeline, and the gap of *run* to it.

    Raises `ScenarioError` for a scenario without a training step, `TraceError` if the run has other ranks.
    """
    if scenario.variants:
        names = ", ".join(list(scenario.variants)[:8])
        raise TraceError(f"{scenario.name} has variants ({names}); compare the run with a scenario that has none")
    check_trains(scenario, "explain")
    timeline = simulate(scenario, scenario.schedule())
    ranks = len(timeline.gpu_ranks)
    if run.world_size != ranks:
        raise TraceError(
            f"{run.traces[0].path}: is of a run with {run.world_size} ranks, but {scenario.name} has {ranks}; "
            "set the nodes of its cluster to those of the run"
        )
    gpu = scenario.cluster().accelerator(scenario.derived.devices[0])
    return timeline, gap(run, simulated(timeline, [trace.rank for trace in run.traces]), gpu)
