"""The ideal transport adds nothing to the links, so the closed forms of the alpha-beta model hold exactly."""

from __future__ import annotations

from clustersim.simulator.network.transport import Transport

ALGORITHMS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("ring",),
    "all_gather": ("ring",),
    "reduce_scatter": ("ring",),
    "broadcast": ("ring", "tree", "binomial", "direct"),
    "reduce": ("ring", "tree", "binomial", "direct"),
    "gather": ("direct",),
    "scatter": ("direct",),
    "all_to_all": ("direct",),
}
"""The choices of ``auto``: the ring where it is optimal in bandwidth; for rooted collectives the fastest of several."""


def ideal() -> Transport:
    """Latency and bandwidth of the links alone, no multiprocessors, ranks in their own order."""
    return Transport("ideal", algorithms=ALGORITHMS)
