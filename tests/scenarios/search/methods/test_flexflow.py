"""FlexFlow's search reaches what brute force finds; its simulator has closed forms; AlexNet is divided as published."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.search.methods.flexflow import configurations, flexflow, held_bytes, iteration_seconds
from clustersim.scenarios.search.pipeline_chain import Level, Machine, PipelineChain, PipelineLayer
from clustersim.scenarios.search.planning_problem import chain_of
from clustersim.simulator.reading.errors import ScheduleError
from tests.scenarios.search.random_problems import random_chain

FEW, ALL = 50, 200


@pytest.mark.parametrize("instances", [FEW, pytest.param(ALL, marks=pytest.mark.exhaustive)])
def test_the_search_reaches_the_optimum_of_small_problems(
    instances: int, record_property: Callable[[str, object], None]
) -> None:
    reached = 0
    for seed in range(instances):
        random = Random(seed)
        whole = random_chain(random, random.randint(1, 4))
        gpus = random.choice([2, 4])
        chains = [whole if parts == 1 else whole.divided(parts) for parts in (1, 2, 4) if gpus % parts == 0]
        machine = Machine((Level(gpus, random.uniform(0.5, 5)),))
        seconds = iteration_seconds(chains, machine, gpus)
        every = product(configurations(chains, machine), repeat=len(whole))
        best, plan = min(map(seconds, every)) / gpus, flexflow(chains, machine, gpus, seed=seed, proposals=3000)
        assert plan.seconds >= best * (1 - 1e-9)
        reached += plan.seconds <= best * (1 + 1e-9)
    record_property("reached", reached)
    print(f"the best strategy is reached in {reached} of {instances} problems")
    assert reached >= 0.98 * instances


def layers(*backward: float, gradients: float = 0.0, output: float = 0.0) -> PipelineChain:
    return PipelineChain(tuple(PipelineLayer(f"{n}", 1.0, b, output, gradients) for n, b in enumerate(backward)))


def test_sums_of_gradients_run_beside_the_backward_pass() -> None:
    # 4 GPUs have 1 micro-batch each; a sum takes 2 * 3/4 * 2 bytes / 1 byte/s = 3 s, beside a backward pass of 2 s
    chain, machine = layers(2.0, 2.0, 2.0, gradients=2.0), Machine((Level(4, 1.0),))
    seconds = iteration_seconds([chain], machine, 4)
    assert seconds(((4, 1),) * 3) == pytest.approx(3 * 1.0 + 2.0 + 3 * 3.0)
    assert seconds(((1, 1),) * 3) == pytest.approx(4 * 3 * 3.0)


def test_parts_by_parameter_gather_their_input_and_sum_its_gradient() -> None:
    # 2 parts of the channels: each gathers the other half of the output, 1 of 2 bytes, and gets 2 summands of its half
    # of the gradient, one of them its own
    chain, machine = layers(2.0, 2.0, output=1.0), Machine((Level(2, 1.0),))
    seconds = iteration_seconds([chain, chain.divided(2)], machine, 2)
    assert seconds(((1, 2), (1, 2))) == pytest.approx(2 * 3.0 + 1.0 + 1.0)


def test_a_strategy_must_fit() -> None:
    layer = PipelineLayer("dense", 1.0, 1.0, state_bytes=8.0)
    chain = PipelineChain((layer,))
    chains = [chain, chain.divided(2)]
    (stage,) = flexflow(chains, Machine((Level(2, 1.0),), memory_bytes=4.0), 2).stages
    assert (stage.replicas, stage.tp) == (1, 2)
    assert held_bytes(chains)(((1, 2),)) == 4.0
    with pytest.raises(ScheduleError, match="flexflow: nothing fits 2 GPUs"):
        flexflow(chains, Machine((Level(2, 1.0),), memory_bytes=3.0), 2)


def test_one_configuration_for_all_is_the_best_of_all() -> None:
    whole = random_chain(Random(3), 5)
    chains, machine = [whole, whole.divided(2), whole.divided(4)], Machine((Level(4, 2.0),))
    seconds = iteration_seconds(chains, machine, 4)
    best = min(seconds((one,) * 5) for one in configurations(chains, machine)) / 4
    plan = flexflow(chains, machine, 4, uniform=True)
    assert plan.seconds == pytest.approx(best)
    assert len(plan.stages) == 1


@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.exhaustive), 4])
def test_alexnet_is_divided_by_sample_and_its_dense_layers_by_parameter(nodes: int) -> None:
    """Jia et al. 2019, section 8: nodes of four P100 with NVLink, 100 Gb/s InfiniBand between them, 256 images."""
    variant = Scenario.load("v100_profiles").variants["alexnet as measured, DDP"]
    gpus, whole = 4 * nodes, chain_of(variant)
    assert variant.model is not None
    kinds = [getattr(layer, "kind", "") for layer in variant.model.layers]
    chains = [whole if parts == 1 else whole.divided(parts) for parts in (1, 2, 4, 8, 16) if gpus % parts == 0]
    plan = flexflow(chains, Machine((Level(4, 20e9), Level(nodes, 12.5e9))), 256, proposals=20_000)
    parts = [(stage.replicas, stage.tp) for stage in plan.stages for _ in range(stage.layers)]
    by_kind = list(zip((kind.partition("(")[0] for kind in kinds), parts, strict=True))
    assert {own for kind, own in by_kind if kind == "Conv2d"} == {(gpus, 1)}
    assert all(p > 1 for kind, (_, p) in by_kind if kind == "Linear")
    data_parallel = iteration_seconds(chains, Machine((Level(4, 20e9), Level(nodes, 12.5e9))), 256)
    assert plan.seconds * 256 < 0.8 * data_parallel(((gpus, 1),) * len(whole))


def test_the_same_seed_gives_the_same_answer() -> None:
    whole = random_chain(Random(5), 8)
    chains, machine = [whole, whole.divided(2)], Machine((Level(8, 1.0),))
    one, two = (flexflow(chains, machine, 8, seed=7, proposals=500) for _ in range(2))
    assert one == two
