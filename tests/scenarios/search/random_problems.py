"""Small random chains and machines, and all ways to divide them, for searches by brute force."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from clustersim.scenarios.search.pipeline_chain import Level, Machine, PipelineChain, PipelineLayer


def random_chain(random: Random, layers: int, *, micro_batch_size: int = 1, tp: int = 1) -> PipelineChain:
    """A chain with times of about 1 s, transfers and sums of gradients that are about as long at 1 byte/s."""
    return PipelineChain(
        tuple(
            PipelineLayer(
                f"layer {number}",
                forward=random.uniform(0.1, 1) / tp,
                backward=random.uniform(0.1, 2) / tp,
                output_bytes=random.choice([0.0, random.uniform(0, 1)]),
                gradient_bytes=random.choice([0.0, random.uniform(0, 5)]) / tp,
                parameter_bytes=random.uniform(0, 2) / tp,
                state_bytes=random.uniform(2, 8) / tp,
                activation_bytes=random.uniform(0.5, 2),
                recompute=random.uniform(0.1, 1) / tp,
                recomputed_bytes=random.uniform(0, 0.5),
                channelwise=random.random() < 0.3,
            )
            for number in range(layers)
        ),
        micro_batch_size,
        tp,
    )


def random_machine(random: Random, levels: int, gpus: int, memory_bytes: float = float("inf")) -> Machine:
    """A machine of *levels* with up to *gpus* units each, faster inside."""
    counts = [random.randint(1, gpus) for _ in range(levels)]
    return Machine(
        tuple(Level(count, random.uniform(0.5, 5) / (level + 1)) for level, count in enumerate(counts)), memory_bytes
    )


def compositions(total: int) -> Iterator[tuple[int, ...]]:
    """All ordered sums of positive numbers that make *total*."""
    if total == 0:
        yield ()
    for first in range(1, total + 1):
        for rest in compositions(total - first):
            yield first, *rest
