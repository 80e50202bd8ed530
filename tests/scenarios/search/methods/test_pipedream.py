"""PipeDream's dynamic programme finds what brute force finds, and the published configurations."""

from __future__ import annotations

from functools import cache
from itertools import product
from math import lcm
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.scenarios.search.methods.pipedream import pipedream
from clustersim.scenarios.search.pipeline_chain import Level, Machine, PipelineChain, PipelineLayer, Plan
from clustersim.scenarios.search.planning_problem import chain_of
from clustersim.workloads.pipelines._row_patterns import warm_ups
from tests.scenarios.search.random_problems import compositions, random_chain, random_machine

GIB = 2.0**30


def brute_force(chain: PipelineChain, machine: Machine, overlap: bool) -> float:
    """The shortest bottleneck of all divisions of the layers over the units of each level."""

    @cache
    def best(level: int, i: int, j: int) -> float:
        if level < 0:
            return sum(layer.forward + layer.backward for layer in chain.layers[i:j])
        own = machine.levels[level]
        divisions = product(compositions(j - i), compositions(own.count))
        return min(bottleneck(level, i, *one) for one in divisions if len(one[0]) == len(one[1]))

    def bottleneck(level: int, i: int, layers: tuple[int, ...], units: tuple[int, ...]) -> float:
        bandwidth, found = machine.levels[level].bandwidth, []
        for number, (count, m) in enumerate(zip(layers, units, strict=True)):
            inside = best(level - 1, i, i + count)
            summed = 4 * (m - 1) / m * sum(layer.gradient_bytes for layer in chain.layers[i : i + count]) / bandwidth
            found.append((max(inside, summed) if overlap else inside + summed) / m)
            i += count
            if number + 1 < len(units):
                found.append(2 * chain.layers[i - 1].output_bytes / (bandwidth * min(m, units[number + 1])))
        return max(found)

    return best(len(machine.levels) - 1, 0, len(chain))


@pytest.mark.parametrize("first", range(0, 240, 20))
def test_it_is_as_good_as_brute_force(first: int) -> None:
    for seed in range(first, first + 20):
        is_as_good_as_brute_force(seed)


def is_as_good_as_brute_force(seed: int) -> None:
    random = Random(seed)
    levels = random.choice([1, 1, 2, 3])
    chain = random_chain(random, random.randint(1, 6 if levels == 1 else 4))
    machine, overlap = random_machine(random, levels, {1: 6, 2: 4, 3: 2}[levels]), random.random() < 0.5
    plan = pipedream(chain, machine, overlap=overlap)
    assert plan.seconds == pytest.approx(brute_force(chain, machine, overlap), rel=1e-9)
    assert sum(stage.layers for stage in plan.stages) == len(chain)
    assert sorted(gpu for stage in plan.stages for gpu in stage.gpus) == list(range(machine.gpus))


def test_replicas_of_a_stage_take_turns_over_the_servers() -> None:
    # two servers of two GPUs: each has a pipeline of two stages, which are replicated between the servers
    layers = [PipelineLayer("a", 1, 1, gradient_bytes=1.0), PipelineLayer("b", 1, 1, gradient_bytes=1.0)]
    plan = pipedream(PipelineChain(tuple(layers)), Machine((Level(2, 0.1), Level(2, 100.0))))
    assert plan.replicas == "2-2"
    assert [stage.gpus for stage in plan.stages] == [(0, 2), (1, 3)]


@pytest.fixture(scope="module")
def profiled() -> dict[str, PipelineChain]:
    """The chains of the profiles of PipeDream's own V100, all samples that were measured at once."""
    variants = Scenario.load("v100_profiles").variants
    return {name: chain_of(variants[f"{name} as measured, DDP"]) for name in ("alexnet", "vgg16", "resnet50", "gnmt")}


def planned(chain: PipelineChain, gpus: int, bandwidth: float, *, overlap: bool) -> Plan:
    return pipedream(chain, Machine((Level(gpus, bandwidth),)), overlap=overlap)


@pytest.mark.parametrize(
    ("model", "gpus", "replicas"),
    [
        # Narayanan et al. 2019, table 1: 16 V100 joined by 10 Gb/s; its 16 is data parallelism
        ("vgg16", 16, "15-1"),
        ("alexnet", 16, "15-1"),
        ("resnet50", 16, "16"),
        # the same formula on fewer: hybrid_conf.json of msr-fiddle/pipedream for VGG-16 and AlexNet
        ("vgg16", 8, "7-1"),
        ("vgg16", 4, "3-1"),
        ("alexnet", 4, "3-1"),
        ("gnmt", 4, "1-1-1-1"),
    ],
)
def test_the_paper_s_formula_gives_its_table_1(
    profiled: dict[str, PipelineChain], model: str, gpus: int, replicas: str
) -> None:
    assert planned(profiled[model], gpus, 10e9 / 8, overlap=True).replicas == replicas


@pytest.mark.parametrize(
    ("model", "gpus", "replicas"),
    [("vgg16", 16, "15-1"), ("vgg16", 8, "7-1"), ("vgg16", 4, "3-1"), ("resnet50", 4, "2-1-1"), ("gnmt", 4, "1-1-1-1")],
)
def test_the_optimizer_s_formula_gives_the_kept_configurations(
    profiled: dict[str, PipelineChain], model: str, gpus: int, replicas: str
) -> None:
    # hybrid_conf.json of msr-fiddle/pipedream; 4 GiB/s makes most of them
    assert planned(profiled[model], gpus, 4 * GIB, overlap=False).replicas == replicas


@pytest.mark.parametrize(
    ("model", "gpus", "replicas"),
    [
        ("resnet50", 16, "6-4-2-3-1"),
        ("resnet50", 8, "5-1-1-1"),
        ("alexnet", 16, "14-1-1"),
        ("alexnet", 4, "2-1-1"),
        ("gnmt", 12, "1-1-1-1-1-1-1-4-1"),
    ],
)
def test_where_a_kept_configuration_differs_the_published_optimizer_differs_too(
    profiled: dict[str, PipelineChain], model: str, gpus: int, replicas: str
) -> None:
    # printed by optimizer_graph_hierarchical.py -n <gpus> -b 4294967296 --activation_compression_ratio 1
    assert planned(profiled[model], gpus, 4 * GIB, overlap=False).replicas == replicas


def test_vgg_is_cut_and_priced_as_by_the_published_optimizer(profiled: dict[str, PipelineChain]) -> None:
    # optimizer_graph_hierarchical.py -n 16 -b 4294967296 --activation_compression_ratio 1, and -b 1250000000
    fast = planned(profiled["vgg16"], 16, 4 * GIB, overlap=False)
    assert [stage.layers for stage in fast.stages] == [25, 15]
    assert fast.seconds * 128 == pytest.approx(0.044657416, rel=1e-6)
    slow = planned(profiled["vgg16"], 16, 1.25e9, overlap=False)
    assert [(stage.layers, stage.replicas) for stage in slow.stages] == [(24, 13), (7, 2), (9, 1)]
    assert slow.seconds * 128 == pytest.approx(0.054794891, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_without_communication_the_estimate_is_the_simulated_steady_state(data: st.DataObject) -> None:
    """By Little's law, if a stage has in flight what the next one has, and one more for each of its own replicas.

    PipeDream's number of micro-batches in flight can be less where a replicated stage follows; ranks wait then.
    """
    stages = data.draw(st.integers(1, 4))
    replicas = data.draw(st.lists(st.integers(1, 3), min_size=stages, max_size=stages).filter(lambda n: sum(n) <= 8))
    layout = data.draw(st.lists(st.integers(1, 4), min_size=stages, max_size=stages))
    batch = lcm(*replicas) * data.draw(st.integers(1, 2))
    scenario = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": 8, "bandwidth": "1000 TB/s", "latency": "0 s"},
            "model": {"kind": "unit", "num_layers": sum(layout), "forward": "1 s", "backward": "2 s"},
            "training": {"global_batch_size": batch, "micro_batch_size": 1},
            "parallelism": {
                "pp": stages,
                "dp": replicas,
                "schedule": "pipedream",
                "layout": layout if stages > 1 else None,
            },
            "network": {"transport": "ideal"},
        }
    )
    estimate = batch * max(3.0 * layers / own for layers, own in zip(layout, replicas, strict=True))
    forwards = warm_ups(stages, replicas)
    simulated = scenario.run().timeline.step_time
    if all(own >= behind + more for own, behind, more in zip(forwards, forwards[1:], replicas[1:], strict=False)):
        assert simulated == pytest.approx(estimate)
    else:
        assert simulated > estimate or simulated == pytest.approx(estimate)
