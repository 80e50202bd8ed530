"""The axes along which ranks with partial shards communicate; a step uses those with more than one rank.

The place i of a rank among the replicas decides its shards: neighbours form the groups, so i mod p is its shard of the
parameters, i mod g that of the gradients and i mod o that of the optimizer states, with p | g | o.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.schedule import Schedule
from simulator.schedule.mesh import Axis
from workloads.operators.parameter import REPLICAS
from workloads.partial_sharding.groups import GroupSizes

PARAMETERS = "dp.parameters"
"""Ranks that share the parameters."""
GRADIENTS = "dp.gradients"
"""Ranks that share the gradients."""
STATES = "dp.states"
"""Ranks that share the optimizer states."""
OPTIMIZER = "dp.optimizer"
"""Ranks of one group of optimizer states with the same shard of the gradients."""
REPLICA = "dp.replica"
"""Ranks with the same shard of the optimizer states."""
UPDATED = "dp.updated"
"""Ranks of one group of optimizer states with the same shard of the parameters."""


def with_group_axes(schedule: Schedule, sizes: GroupSizes) -> Schedule:
    """*schedule* with the axes of this file, but those of single ranks."""
    groups = schedule.mesh.axes[REPLICAS].groups

    def joined(size: int, stride: int) -> Axis:
        """Ranks whose places are equal modulo *stride*, within neighbours of *size*."""
        blocks = (group[begin : begin + size] for group in groups for begin in range(0, len(group), size))
        return Axis(tuple(block[place::stride] for block in blocks for place in range(stride)))

    made = {
        PARAMETERS: joined(sizes.parameters, 1),
        GRADIENTS: joined(sizes.gradients, 1),
        STATES: joined(sizes.optimizer, 1),
        OPTIMIZER: joined(sizes.optimizer, sizes.gradients),
        REPLICA: joined(sizes.replicas, sizes.optimizer),
        UPDATED: joined(sizes.optimizer, sizes.parameters),
    }
    several = {name: axis for name, axis in made.items() if len(axis.groups[0]) > 1}
    return replace(schedule, mesh=schedule.mesh.extended(0, several))
