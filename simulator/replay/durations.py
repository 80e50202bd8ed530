"""Modelled durations of the computations of a schedule, for a replay that sleeps."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.accelerator import Software
from simulator.cluster import Cluster
from simulator.engine.pricing import Pricing
from simulator.engine.variation import Variation
from simulator.schedule import Schedule


def durations(
    schedule: Schedule,
    cluster: Cluster,
    devices: Sequence[str],
    software: Software | None = None,
    variation: Variation | None = None,
) -> list[list[float]]:
    """Return the seconds of the ops of each rank, step after step, as the engine prices them; 0 for communications.

    *devices*: the GPU or host of each rank. Computations that share a processor do not slow each other down.
    """
    pricing = Pricing(schedule, cluster, devices, software, variation or Variation())
    return [pricing.durations(rank).ravel().tolist() for rank in range(len(devices))]
