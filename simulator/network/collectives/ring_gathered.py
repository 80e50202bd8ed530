"""A reduce-scatter around a ring, then every rank sends its part of the sum to the root at once.

Gloo reduces so (facebookincubator/gloo, reduce.cc).
"""

from __future__ import annotations

from clustersim.simulator.network.collectives import direct, ring
from clustersim.simulator.network.step import Group, Step


def reduce(group: Group, nbytes: float, root: int) -> list[Step]:
    """The sum to the root: p - 1 rounds of nbytes / p, then p - 1 concurrent messages of nbytes / p to the root."""
    return ring.reduce_scatter(group, nbytes) + direct.gather(group, nbytes, root)
