"""PipeDream-2BW's search: the best width and depth of all, with two versions of the weights."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from clustersim.scenarios.search.methods.pipedream_2bw import even_cuts, pipedream_2bw
from clustersim.scenarios.search.pipeline_chain import Level, Machine, PipelineChain, PipelineLayer
from clustersim.simulator.reading.errors import ScheduleError
from tests.scenarios.search.random_problems import random_chain


def seconds(chain: PipelineChain, machine: Machine, width: int, depth: int, batch: int, recompute: bool) -> float:
    """Seconds a sample in the closed form of the paper; infinite if a stage does not fit. Links are all alike."""
    bandwidth, m = machine.levels[0].bandwidth, batch // (width * chain.micro_batch_size)
    share, more = divmod(len(chain), depth)
    slowest, i = 0.0, 0
    for stage in range(depth):
        j = i + share + (stage < more)
        own = chain.layers[i:j]
        kept = sum(layer.recomputed_bytes if recompute else layer.activation_bytes for layer in own)
        held = sum(layer.state_bytes + layer.parameter_bytes for layer in own) + (depth - stage) * kept
        if held + recompute * max(layer.activation_bytes for layer in own) > machine.memory_bytes:
            return inf
        received = (stage > 0) * chain.layers[i - 1].output_bytes + (stage + 1 < depth) * own[-1].output_bytes
        compute = sum(layer.forward + layer.backward + recompute * layer.recompute for layer in own)
        summed = 2 * (width - 1) / width * sum(layer.gradient_bytes for layer in own) / bandwidth
        slowest = max(slowest, compute + received / bandwidth, summed / m)
        i = j
    return slowest / (width * chain.micro_batch_size)


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_it_is_as_good_as_brute_force(first: int) -> None:
    for seed in range(first, first + 20):
        is_as_good_as_brute_force(seed)


def is_as_good_as_brute_force(seed: int) -> None:
    random = Random(seed)
    layers, batch = random.randint(1, 6), random.choice([4, 6, 8, 12])
    chains = [random_chain(random, layers, micro_batch_size=size) for size in random.choice([(1,), (1, 2)])]
    machine = Machine((Level(random.randint(1, 8), random.uniform(0.5, 5)),), random.choice([inf, 30.0, 10.0]))
    best = min(
        (
            seconds(chain, machine, width, depth, batch, recompute)
            for chain in chains
            for width in range(1, machine.gpus + 1)
            for depth in range(1, min(layers, machine.gpus // width) + 1)
            for recompute in (False, True)
            if batch % (width * chain.micro_batch_size) == 0 and batch // (width * chain.micro_batch_size) >= depth
        ),
        default=inf,
    )
    if best == inf:
        with pytest.raises(ScheduleError, match="pipedream_2bw: nothing fits"):
            pipedream_2bw(chains, machine, batch)
    else:
        assert pipedream_2bw(chains, machine, batch).seconds == pytest.approx(best, rel=1e-9)


def test_ends_are_no_layers_of_an_even_division() -> None:
    ends = PipelineLayer("end", 1, 1, end=True)
    chain = PipelineChain((ends, *(PipelineLayer(f"layer {n}", 1, 1) for n in range(5)), ends))
    assert even_cuts(chain, 2) == [(0, 4), (4, 7)]
    assert even_cuts(chain, 1) == [(0, 7)]
