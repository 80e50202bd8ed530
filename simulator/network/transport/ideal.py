"""The ideal transport adds nothing to the wire: with it the closed forms of the alpha-beta model hold exactly."""

from __future__ import annotations

from simulator.network.transport.transport import Transport

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
"""What ``auto`` means: the ring where it is optimal in bandwidth; for a rooted vector whatever takes least time."""


def ideal() -> Transport:
    """No latency but the wires', all of their bandwidth, no multiprocessors, ranks in their own order."""
    return Transport("ideal", algorithms=ALGORITHMS)
