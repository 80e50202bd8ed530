"""Everything that prices communication of one scenario does so with one network: its library, algorithms and clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.build.explanation import stages_as_run
from clustersim.scenarios.build.memory_need import memory_need
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.explain.changes import _machine
from clustersim.scenarios.run.running import communicator
from clustersim.scenarios.search.estimator import Estimator
from clustersim.scenarios.search.planning_problem import chain_of
from clustersim.scenarios.search.varied_machine import machine
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.transport import Transport
from clustersim.simulator.reading.errors import ScenarioError

SCENARIO = {
    "version": 1,
    "cluster": {"preset": "dgx_h100", "nodes": 2},
    "model": {"preset": "gpt2", "num_layers": 2},
    "training": {"global_batch_size": 64, "micro_batch_size": 2, "precision": "bf16", "recompute": "optimal"},
    "parallelism": {"tp": 2, "data": {"method": "ddp"}},
    "network": {"sharp": True, "nvls_tree": True, "algorithms": {"all_gather": "direct"}},
    "software": "megatron",
}


def explained(scenario: Scenario) -> None:
    timeline = scenario.run().timeline
    _machine(scenario, timeline, ()).simulation()


DOORS: dict[str, Callable[[Scenario], object]] = {
    "run": lambda one: one.run(),
    "estimate": lambda one: Estimator(one).estimate(one),
    "sensitivity": lambda one: machine(one).simulation(),
    "optimal recomputation": lambda one: one.schedule(),
    "show recompute": lambda one: list(stages_as_run(one)),
    "memory": lambda one: memory_need(one, one.schedule()),
    "chains of a plan": lambda one: chain_of(one.changed({"training.recompute": "none"}, "test")),
    "validate": lambda one: communicator(one, one.cluster()),
    "explain": explained,
}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Communicator]:
    found: list[Communicator] = []
    original = Communicator.__init__

    def recording(self: Communicator, *given: object, **named: object) -> None:
        original(self, *given, **named)  # type: ignore[arg-type]
        found.append(self)

    monkeypatch.setattr(Communicator, "__init__", recording)
    return found


@pytest.mark.parametrize("door", DOORS)
def test_all_doors_take_the_same_network(door: str, made: list[Communicator]) -> None:
    expected = communicator(Scenario.model_validate(SCENARIO))
    made.clear()
    DOORS[door](Scenario.model_validate(SCENARIO))
    assert made
    for network in made:
        assert contents(network.transport) == contents(expected.transport)
        assert (network.fidelity, network.algorithms) == (expected.fidelity, expected.algorithms)
        gpu = network.devices[0]
        assert network.cluster.accelerator(gpu) == expected.cluster.accelerator(gpu)


def contents(transport: Transport) -> dict[str, object]:
    return {field.name: getattr(transport, field.name) for field in fields(Transport) if field.name != "tuning_model"}


def test_check_takes_the_network_of_a_run(made: list[Communicator]) -> None:
    assert run(["check", "llama3_8b_fsdp_dgx_h100"]) == 0
    assert {network.transport.version for network in made} == {"2.30"}


def test_a_benchmark_by_processes_has_no_handover_in_any_door() -> None:
    scenario = Scenario.load("allreduce_dgx_a100", {"collective.driver": "processes"})
    one = next(iter(scenario.variants.values()), scenario)
    assert communicator(one).transport.handover == 0.0
    assert machine(one).transport.handover == 0.0


def test_the_release_of_nccl_is_a_property() -> None:
    for release, tables in (("2.14.3", "2.10"), ("2.27", "2.30")):
        one = Scenario.model_validate({**SCENARIO, "network": {"version": release}})
        assert communicator(one).transport.version == tables
    with pytest.raises(ScenarioError, match=r'network\.version: must be a release of NCCL in quotes, such as "2\.27"'):
        Scenario.model_validate({**SCENARIO, "network": {"version": 2.10}})
    with pytest.raises(ScenarioError, match="belongs to transport nccl"):
        Scenario.model_validate({**SCENARIO, "network": {"transport": "gloo", "version": "2.27"}})
