"""Collectives of XLA on TPUs: links between chips (ICI) in a slice, the data-centre network between slices.

Google has not published how XLA chooses and what it adds to the links. So nothing is added to the latency of a hop and
the bandwidth of a link, and sums go along all dimensions of the torus at once (`simulator.network.collectives.torus`).
All-to-all sends each message by itself; XLA's schedule of it is not published either.
"""

from __future__ import annotations

from clustersim.simulator.network.transport import Transport

ALGORITHMS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("torus",),
    "all_gather": ("torus",),
    "reduce_scatter": ("torus",),
    "broadcast": ("ring", "binomial"),
    "reduce": ("ring", "binomial"),
    "gather": ("direct",),
    "scatter": ("direct",),
    "all_to_all": ("direct",),
}
"""The choices of ``auto``."""


def ici() -> Transport:
    """Latency and bandwidth of the links alone; the chips of a slice as the torus that they make."""
    return Transport("ici", algorithms=ALGORITHMS, torus=True)
