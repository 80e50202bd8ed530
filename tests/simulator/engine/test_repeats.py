"""Repeats have the step times of separate runs, though they share what does not depend on the seed."""

from dataclasses import replace

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.run.running import communicator, variation
from clustersim.simulator import simulate
from clustersim.simulator.engine.pricing import Variation
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.library.ideal import ideal
from clustersim.simulator.reading.errors import DeadlockError
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Recv, Send
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import SimulationRun, packed
from clustersim.topologies.uniform_and_tree import uniform

JITTER, SPREAD = {"simulation.jitter": 0.1}, {"simulation.spread": 0.1}
CASES = {
    "one step": ("hello", JITTER),
    "spread": ("hello", SPREAD),
    "both, a straggler": (
        "hello",
        {**JITTER, **SPREAD, "simulation.stragglers": [{"rank": 1, "slowdown": 1.5}]},
    ),
    "several steps": ("hello", {**JITTER, "training.steps": 3}),
    "several steps, spread": ("hello", {**SPREAD, "training.steps": 3}),
    "a host": ("hello", {**JITTER, "parallelism.data": {"method": "parameter_server"}}),
    "asynchronous": ("hello", {**JITTER, "parallelism.pp": 4, "parallelism.schedule": "pipedream"}),
    "unfolded": ("hello", {**JITTER, "simulation.fold": False}),
}


def simulation(name, changes, engine):
    scenario = Scenario.load(name, changes)
    options = scenario.specification.simulation
    return SimulationRun(
        scenario.schedule(),
        communicator(scenario),
        scenario.software,
        variation(scenario),
        fold=options.fold,
        engine=engine,
    )


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize("case", CASES)
def test_a_repeat_has_the_step_time_of_a_separate_run_with_its_seed(case, engine):
    shared, seeds = simulation(*CASES[case], engine), [3, 1, 4, 0]
    alone = [replace(shared, variation=replace(shared.variation, seed=seed)).run().step_time for seed in seeds]
    assert len(set(alone)) == len(seeds)
    assert simulate.step_times(shared, seeds) == alone


def test_no_seeds():
    assert simulate.step_times(simulation("hello", JITTER, "compiled"), []) == []


def test_memory_bounds_the_number_of_concurrent_runs(monkeypatch):
    shared = simulation("hello", JITTER, "compiled")
    times = simulate.step_times(shared, range(5))
    monkeypatch.setattr(simulate, "MOST_BYTES", 1)
    assert simulate.step_times(shared, range(5)) == times


def test_progress_is_the_mean_of_all_runs():
    shared = simulation("hello", JITTER, "compiled")
    simulate.step_times(shared, range(3))
    assert shared.fraction == 1.0


def test_a_deadlock_is_raised():
    def program(me, out, into):
        message = {"over": "pp", "peer": 1 - me, "nbytes": 8.0}
        return Program(str(me), (Recv(name="recv", action=into, **message), Send(name="send", action=out, **message)))

    there, back = Action("F", 0, 0), Action("B", 1, 0)
    schedule = Schedule(Mesh.regular({"pp": 2}), (program(0, there, back), program(1, back, there)), (0, 1))
    cluster = uniform(gpus=2, hosts=0, bandwidth=1e9, latency=1e-6)
    network = Communicator(cluster, packed(schedule, cluster), ideal(), "flow", {})
    with pytest.raises(DeadlockError):
        simulate.step_times(
            SimulationRun(schedule, network, variation=Variation(jitter=0.1), engine="compiled"), [0, 1]
        )
