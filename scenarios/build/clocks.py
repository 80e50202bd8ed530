"""The clocks of GPUs that work together."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.cluster import Cluster


def at_slowest_clock(cluster: Cluster, devices: Sequence[str]) -> Cluster:
    """Return *cluster* with each type of GPU among *devices* as fast as the slowest of their number.

    In a synchronous step all GPUs wait for the slowest.
    """
    gpus = cluster.count(devices)
    return cluster.with_accelerators(
        {accelerator: accelerator.slowest_of(count) for accelerator, count in gpus.items()}
    )
