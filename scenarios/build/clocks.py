"""Clocks of equal GPUs: a synchronous step waits for the slowest of all, a pipeline for its longest stage.

GPUs of one type run products at different speeds (`Accelerator.slowest_of`). If all of them compute equally long, the
slowest of all sets the pace. If one stage of a pipeline computes longer than the others, as the last one does with its
head, then the slowest of the few GPUs of that stage does, unless one of the others is slower by more than what the
longest stage has more to compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clustersim.simulator.engine.pricing import Pricing
from clustersim.simulator.engine.variation import Variation
from clustersim.simulator.hardware.accelerator import Accelerator, Software
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.slowest import waited_for
from clustersim.simulator.schedule.schedule import Schedule


def at_slowest_clock(cluster: Cluster, devices: Sequence[str]) -> Cluster:
    """Return *cluster* with each type of GPU among *devices* as fast as the slowest of their number.

    In a synchronous step all GPUs wait for the slowest.
    """
    gpus = cluster.count(devices)
    return cluster.with_accelerators(
        {accelerator: accelerator.slowest_of(count) for accelerator, count in gpus.items()}
    )


def at_pace(schedule: Schedule, cluster: Cluster, devices: Sequence[str], software: Software | None) -> Cluster:
    """Return *cluster*, which is `at_slowest_clock` for *devices*, with GPUs as slow as those that a step waits for.

    Only ranks that compute differently make a difference. Launching by *software* counts as computing.
    """
    slowest = cluster.count(devices)
    if len(schedule.programs) == 1 or not any(accelerator.spread for accelerator in slowest):
        return cluster
    work = _work(schedule, cluster, devices, software)
    return cluster.with_accelerators(
        {one: one.slowest_of(waited_for(work[one], one.spread), now=slowest[one]) for one in work if one.spread}
    )


def _work(
    schedule: Schedule, cluster: Cluster, devices: Sequence[str], software: Software | None
) -> Mapping[Accelerator, Mapping[float, int]]:
    """By accelerator: how many ranks compute so many seconds in a step."""
    pricing = Pricing(schedule, cluster, devices, software, Variation())
    ranks: dict[tuple[Accelerator, int], list[int]] = {}
    for rank, program in enumerate(schedule.program_of):
        ranks.setdefault((cluster.accelerator(devices[rank]), program), []).append(rank)
    found: dict[Accelerator, dict[float, int]] = {}
    for (accelerator, _), alike in ranks.items():
        seconds = float(pricing.durations(alike[0])[0].sum())
        counts = found.setdefault(accelerator, {})
        counts[seconds] = counts.get(seconds, 0) + len(alike)
    return found
