"""How long each computation of a schedule takes by the model: what a replay sleeps."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.accelerator import Accelerator, Software
from simulator.cluster import Cluster
from simulator.engine.variation import Variation
from simulator.schedule import Compute, Op, Schedule


def durations(
    schedule: Schedule,
    cluster: Cluster,
    devices: Sequence[str],
    software: Software | None = None,
    variation: Variation | None = None,
) -> list[list[float]]:
    """Seconds of the ops of each rank, step after step, as the engine takes them; of communications 0.

    *devices* names the GPU or host of each rank. Computations that share a processor are not slowed down by each other.
    """
    return [
        _of_rank(schedule, cluster, rank, device, software, variation or Variation())
        for rank, device in enumerate(devices)
    ]


def _of_rank(
    schedule: Schedule, cluster: Cluster, rank: int, device: str, software: Software | None, variation: Variation
) -> list[float]:
    program = schedule.program(rank)
    gpu = cluster.accelerator(device)
    on_host = any(isinstance(op, Compute) and op.on == "host" for op in program.ops)
    host = cluster.accelerator(device if program.on == "host" else cluster.host_of(device)) if on_host else gpu
    seconds = [_of_op(op, gpu, host, software) for op in program.ops] * schedule.steps
    factors = variation.factors(rank, len(seconds))
    return seconds if factors is None else [s * f for s, f in zip(seconds, factors.tolist(), strict=True)]


def _of_op(op: Op, gpu: Accelerator, host: Accelerator, software: Software | None) -> float:
    if not isinstance(op, Compute):
        return 0.0
    return host.seconds(op.kernels) if op.on == "host" else gpu.seconds(op.kernels, software)
