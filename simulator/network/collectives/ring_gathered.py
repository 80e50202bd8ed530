"""A ring reduces and scatters, then every rank sends the root its part of the sum at once.

Gloo reduces so (facebookincubator/gloo, reduce.cc).
"""

from __future__ import annotations

from simulator.network.collectives import direct, ring
from simulator.network.step import Group, Step


def reduce(group: Group, nbytes: float, root: int) -> list[Step]:
    """The sum to the root: p - 1 rounds of nbytes / p, then as many messages of nbytes / p into the root's port."""
    return ring.reduce_scatter(group, nbytes) + direct.gather(group, nbytes, root)
