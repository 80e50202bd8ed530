"""A reduce-scatter as a whole all-reduce, from which every rank keeps its part: twice the necessary bytes.

torch.distributed does so with Gloo: as many bytes leave a rank as in an all-reduce (counted on its interface, torch
2.13).
"""

from __future__ import annotations

from clustersim.simulator.network.collectives import ring
from clustersim.simulator.network.step import Group, Step


def reduce_scatter(group: Group, nbytes: float) -> list[Step]:
    """Position i keeps block i of the sum, in 2 (p - 1) rounds of nbytes / p around a ring."""
    return ring.all_reduce(group, nbytes)
