"""How long each computation of a schedule takes by the model: what a replay sleeps."""

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
    """Seconds of the ops of each rank, step after step, as the engine prices them; of communications 0.

    *devices* names the GPU or host of each rank. Computations that share a processor are not slowed down by each other.
    """
    pricing = Pricing(schedule, cluster, devices, software, variation or Variation())
    return [pricing.durations(rank).ravel().tolist() for rank in range(len(devices))]
