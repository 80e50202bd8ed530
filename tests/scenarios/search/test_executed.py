"""Chains and machines of scenarios, and plans as scenarios that run: each method's estimate beside the simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.alternatives.space import Space
from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.memory_need import memory_need
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.scenarios.search.methods.pipedream_2bw import even_cuts
from clustersim.scenarios.search.pipeline_chain import Machine, Plan, Stage, held_bytes
from clustersim.scenarios.search.planner import Planner
from clustersim.scenarios.search.planning_problem import chain_of, machine_of, problem_of
from clustersim.scenarios.search.published_plans import METHODS, candidates_of, methods, overrides, propose
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.lookup import UnknownName, find

UNIT = {"kind": "unit", "num_layers": 6, "forward": "10 ms", "backward": "20 ms", "parameters": 12e6}
PORTS = {"preset": "uniform", "gpus": 4, "bandwidth": "10 GB/s", "latency": "0 s", "accelerator": "unit"}


def unit(**changes: Any) -> Scenario:
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": PORTS,
            "model": UNIT,
            "training": {"global_batch_size": 16, "micro_batch_size": 1},
            "network": {"transport": "ideal"},
            **changes,
        }
    )


def gpt(**training: Any) -> Scenario:
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_a100_80gb", "nodes": 1},
            "model": {"preset": "gpt2_medium", "num_layers": 8, "tie_embeddings": False},
            "software": "megatron",
            "training": {"global_batch_size": 32, "micro_batch_size": 1, "precision": "bf16", **training},
        }
    )


def measured() -> Scenario:
    scenario = Scenario.load("v100_profiles").variants["gnmt as measured, DDP"]
    return scenario.changed({"cluster.nodes": 1, "training.global_batch_size": 512}, "four GPUs")


def batch(scenario: BuiltScenario) -> int:
    assert scenario.specification.training is not None
    return scenario.specification.training.global_batch_size


@pytest.mark.parametrize("method", methods())
@pytest.mark.parametrize("made", [unit, gpt, pytest.param(measured, marks=pytest.mark.exhaustive)])
def test_a_plan_runs_and_takes_about_as_long_as_estimated(method: str, made: Callable[[], Scenario]) -> None:
    """`pytest -s` prints each estimate beside the simulation."""
    scenario = made()
    plan = propose(method, problem_of(scenario))
    result = scenario.changed(overrides(plan, scenario), method).run()
    assert isinstance(result, StepNumbers)
    estimate, simulated = plan.seconds * batch(result.scenario), result.timeline.step_time
    update = result.breakdown["optimizer"]
    print(
        f"{made.__name__:8} {method:13} {plan.replicas:8} estimate {estimate:.4f} s, "
        f"simulated {simulated:.4f} s, {update:.4f} s of it in the optimizer"
    )
    # no method counts the optimizer, the bubble of a flush, or ranks that wait for each other; PipeDream and Piper
    # count both directions of a sum of gradients, and Piper adds it to the computation
    assert 0.85 * estimate < simulated - update < 2 * estimate
    assert result.scenario.schedule().mesh.world_size == plan.gpus


def test_layers_are_priced_as_the_engine_prices_them() -> None:
    chain = chain_of(measured())
    model = measured().model
    assert model is not None
    assert [layer.forward for layer in chain.layers] == pytest.approx(
        [getattr(layer, "forward_seconds", 0.0) for layer in model.layers], abs=1e-12
    )
    # without a spread the slowest of all 8 GPUs, whose clock the chain has, is as fast as one alone
    scenario = gpt().changed({"cluster.node.accelerator": {"preset": "a100_80gb", "spread": 0}}, "equal GPUs")
    alone = scenario.changed({"parallelism": {"dp": 1}, "training.global_batch_size": 1}, "alone").run()
    assert isinstance(alone, StepNumbers)
    whole = chain_of(scenario)
    priced = float(whole.total("forward")[-1] + whole.total("backward")[-1])
    assert priced == pytest.approx(alone.breakdown["compute"], rel=0.02)


def test_tensor_ranks_pay_for_their_exchanges() -> None:
    one, two = chain_of(gpt()), chain_of(gpt(), tp=2)
    for whole, half in zip(one.layers, two.layers, strict=True):
        assert half.forward > whole.forward / 2
        assert half.gradient_bytes < 0.6 * whole.gradient_bytes
    assert chain_of(gpt(), micro_batch_size=2).layers[3].output_bytes == 2 * one.layers[3].output_bytes


def test_bandwidths_are_those_of_collectives() -> None:
    (level,) = machine_of(unit()).levels
    assert level.count == 4
    assert level.bandwidth == pytest.approx(10e9, rel=1e-6)
    inside, between = machine_of(gpt().changed({"cluster.nodes": 2}, "two nodes")).levels
    assert (inside.count, between.count) == (8, 2)
    assert between.bandwidth < inside.bandwidth


@pytest.mark.parametrize(("recompute", "pp"), [("none", 1), ("none", 4), ("full", 1), ("full", 4)])
def test_a_stage_holds_what_the_schedule_allocates(recompute: str, pp: int) -> None:
    scenario = gpt(recompute=recompute).changed({"parallelism.pp": pp, "parallelism.dp": 1}, "a pipeline")
    chain = chain_of(scenario)
    held = max(
        held_bytes(chain, i, j, pp - stage, recompute=recompute == "full")
        for stage, (i, j) in enumerate(even_cuts(chain, pp))
    )
    assert held == pytest.approx(memory_need(scenario, scenario.schedule()).tensors, rel=0.1)


def test_gpus_of_a_hierarchical_plan_are_placed() -> None:
    scenario = unit(cluster={**PORTS, "gpus": 4})
    plan = Plan("pipedream", (Stage(3, 2, gpus=(0, 2)), Stage(3, 2, gpus=(1, 3))), 0.01)
    changed = scenario.changed(overrides(plan, scenario), "plan")
    assert changed.derived.devices == tuple(scenario.cluster().gpus[gpu] for gpu in (0, 2, 1, 3))
    assert changed.specification.parallelism.layout == [3, 3]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            Plan("piper", (Stage(3, 1, 2), Stage(3)), 1.0),
            "piper has stages with tp 1 and 2; a scenario has one for all",
        ),
        (Plan("piper", (Stage(3, recompute=True), Stage(3)), 1.0), "stages with recompute False and True"),
        (Plan("flexflow", (Stage(3, 4), Stage(3, 1, 4)), 1.0, pipelined=False), "gives operators different parts"),
    ],
)
def test_what_a_scenario_cannot_execute_is_refused(plan: Plan, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        overrides(plan, unit())


def test_a_problem_has_the_degrees_that_divide_the_model() -> None:
    # 16 heads on the 8 GPUs of a node
    assert [chain.tp for chain in problem_of(gpt()).chains] == [1, 2, 4, 8]
    assert [chain.tp for chain in problem_of(gpt(), tensor_degrees=(1, 4)).chains] == [1, 4]
    assert [chain.tp for chain in problem_of(measured()).chains] == [1]
    several = problem_of(unit(), micro_batch_sizes=(1, 2, 3))
    assert [[chain.micro_batch_size for chain in own] for own in several.by_micro_batch] == [[1], [2]]
    with pytest.raises(ScenarioError, match="tp = 3 does not divide the 16 heads"):
        problem_of(gpt(), tensor_degrees=(3,))


def searched(scenario: Scenario, search: Mapping[str, Any]) -> Space:
    """The space of *scenario* with what to *search*."""
    return Space(scenario.changed({"plan.search": search}, "a search") if search else scenario)


@pytest.mark.parametrize("method", methods())
def test_candidates_are_changes_of_the_scenario(method: str) -> None:
    space = searched(unit(), {"micro_batch_size": [1, 2, 3], "tp": "auto"})
    found = list(find(METHODS, method).candidates(space))
    own, uniform = [one for one in found if one.free], [one for one in found if not one.free]
    assert [one.values["training.micro_batch_size"] for one in own] == [1, 2]
    for one in own:
        assert unit().changed(one.values, method).derived.gpus == 4
    assert {one.values["micro_batch_size"] for one in uniform} == {1, 2, 3}


def test_the_answer_of_a_method_is_no_worse_than_a_uniform_plan() -> None:
    scenario = unit().changed(
        {"plan.search": {"pp": "auto", "micro_batch_size": [1, 2]}, "plan.method": "piper"}, "test"
    )
    planner = Planner(scenario)
    best = planner.best()[0]
    for dp in (2, 4):
        plain = scenario.changed({"parallelism": {"dp": dp, "pp": 4 // dp}, "training.micro_batch_size": 1}, "plain")
        assert best.seconds <= plain.run().timeline.step_time


def test_where_nothing_fits_there_is_no_candidate() -> None:
    gpu = {"name": "small", "peak_flops": "1 TFLOP/s", "memory_bandwidth": "1 TB/s", "memory": "1 MB"}
    small = unit(cluster={**PORTS, "accelerator": gpu})
    for method in ("pipedream_2bw", "piper", "flexflow"):
        with pytest.raises(ScenarioError, match=f"{method}: nothing fits 4 GPUs with 0 GB left"):
            [*find(METHODS, method).candidates(searched(small, {}))]


ONE = {"micro_batch_size": [1]}


def test_a_plan_that_does_not_divide_the_batch_is_no_candidate() -> None:
    plan = Plan("pipedream", (Stage(3, 3), Stage(3)), 0.01)
    with pytest.raises(ScenarioError, match=r"stages with 3-1 replicas .* try training.global_batch_size 18"):
        [*candidates_of(lambda problem: plan, searched(unit(), ONE), {})]
    larger = unit(training={"global_batch_size": 24, "micro_batch_size": 1})
    found, *_ = candidates_of(lambda problem: plan, searched(larger, ONE), {})
    assert found.values["parallelism.dp"] == [3, 1]


def test_an_unknown_method_is_answered_with_the_names() -> None:
    with pytest.raises(UnknownName, match="pipedream"):
        propose("pipedraem", problem_of(unit()))


def test_only_what_differs_is_set_beside_the_degrees() -> None:
    plan = Plan("piper", (Stage(6, 4),), 0.01)
    degrees = {"parallelism.tp", "parallelism.pp", "parallelism.dp", "parallelism.schedule"}
    assert set(overrides(plan, unit())) == {*degrees, "training.micro_batch_size", "training.recompute"}
    given = unit(
        parallelism={"pp": 2, "schedule": "interleaved", "virtual_stages": 3, "rank_order": ["tp", "pp", "dp"]}
    )
    changes = overrides(plan, given)
    assert changes["parallelism.virtual_stages"] is None
    assert given.changed(changes, "plan").derived.described == "tp 1 x pp 1 x dp 4"


def test_a_collective_has_no_layers() -> None:
    scenario = Scenario.load("allreduce_dgx_a100")
    for made in (chain_of, machine_of):
        with pytest.raises(ScenarioError, match="there is no model to plan for"):
            made(scenario)


def test_a_batch_that_the_replicas_do_not_divide_becomes_larger() -> None:
    plan = Plan("pipedream", (Stage(4, 3), Stage(2)), 0.01)
    changes = overrides(plan, unit())
    assert changes["training.global_batch_size"] == 18
    assert changes["parallelism.dp"] == [3, 1]
    assert unit().changed(changes, "plan").run().timeline.step_time > 0


def test_a_machine_of_one_gpu_has_no_bandwidth() -> None:
    assert machine_of(unit(cluster={**PORTS, "gpus": 1})).gpus == 1
    assert Machine(()).gpus == 1
