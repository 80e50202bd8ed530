"""Piper's dynamic programme finds what brute force finds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import ceil, inf
from random import Random

import pytest

from clustersim.scenarios.search.methods.piper import piper
from clustersim.scenarios.search.pipeline_chain import Level, Machine, PipelineChain
from clustersim.simulator.reading.errors import ScheduleError
from tests.scenarios.search.random_problems import compositions, random_chain

Choice = tuple[PipelineChain, bool, int]
"""(layers by the tensor degree, recomputation, data-parallel degree) of a stage."""


def seconds(choices: Sequence[Choice], layers: Sequence[int], machine: Machine, micro_batches: int) -> float:
    """The time per micro-batch of the slowest stage; infinite if a stage does not fit. Links are all alike."""
    bandwidth, slowest, i = machine.levels[0].bandwidth, 0.0, 0
    for stage, ((chain, recompute, d), count) in enumerate(zip(choices, layers, strict=True)):
        own = chain.layers[i : i + count]
        in_flight = ceil(sum(d for _, _, d in choices[stage:]) / d)
        kept = sum(layer.recomputed_bytes if recompute else layer.activation_bytes for layer in own)
        again = max(layer.activation_bytes for layer in own) if recompute else 0.0
        if sum(layer.state_bytes for layer in own) + in_flight * kept + again > machine.memory_bytes:
            return inf
        compute = sum(layer.forward + layer.backward + recompute * layer.recompute for layer in own)
        ends = (i > 0) * chain.layers[i - 1].output_bytes + (stage + 1 < len(layers)) * own[-1].output_bytes
        summed = 4 * (d - 1) / d * sum(layer.gradient_bytes for layer in own) / micro_batches
        slowest = max(slowest, compute / d + (2 * ends / d + summed) / bandwidth)
        i += count
    return slowest


def brute_force(chains: Sequence[PipelineChain], machine: Machine, micro_batches: int, *, uniform: bool) -> float:
    degrees = [d for d in range(1, machine.gpus + 1) if micro_batches % d == 0]
    best = inf
    for layers in compositions(len(chains[0])):
        for choices in product(product(chains, (False, True), degrees), repeat=len(layers)):
            if sum(chain.tp * d for chain, _, d in choices) > machine.gpus:
                continue
            if sum(d for _, _, d in choices) > micro_batches:
                continue
            if uniform and len({(chain.tp, recompute) for chain, recompute, _ in choices}) > 1:
                continue
            best = min(best, seconds(choices, layers, machine, micro_batches))
    return best


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_it_is_as_good_as_brute_force(first: int) -> None:
    for seed in range(first, first + 20):
        is_as_good_as_brute_force(seed)


def is_as_good_as_brute_force(seed: int) -> None:
    random = Random(seed)
    layers, degrees = random.randint(1, 3), random.choice([(1,), (1, 2)])
    chains = [random_chain(random, layers, tp=tp) for tp in degrees]
    memory = random.choice([inf, random.uniform(4, 30)])
    machine = Machine((Level(random.randint(1, 5), random.uniform(0.5, 5)),), memory)
    micro_batches, uniform = random.choice([2, 4, 6]), random.random() < 0.3
    best = brute_force(chains, machine, micro_batches, uniform=uniform)
    if best == inf:
        with pytest.raises(ScheduleError, match="piper: nothing fits"):
            piper(chains, machine, micro_batches, uniform=uniform)
        return
    plan = piper(chains, machine, micro_batches, uniform=uniform)
    assert plan.seconds == pytest.approx(best, rel=1e-9)
    by_degree = {chain.tp: chain for chain in chains}
    choices = [(by_degree[stage.tp], stage.recompute, stage.replicas) for stage in plan.stages]
    layout = [stage.layers for stage in plan.stages]
    assert seconds(choices, layout, machine, micro_batches) == pytest.approx(best, rel=1e-9)


def test_memory_calls_for_recomputation_before_more_stages() -> None:
    chain = random_chain(Random(0), 4)
    need = sum(layer.state_bytes + layer.activation_bytes for layer in chain.layers)
    (stage,) = piper([chain], Machine((Level(1, 1.0),), need), 1).stages
    assert not stage.recompute
    (stage,) = piper([chain], Machine((Level(1, 1.0),), need - 0.1), 1).stages
    assert stage.recompute
