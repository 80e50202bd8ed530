"""A binomial tree in which a rank sends the vector to all its children at once, so that they share its port.

Gloo broadcasts so: a rank posts its sends one after the other and waits for them at the end (facebookincubator/gloo,
broadcast.cc). This loses the rounds of the tree: with p = 2^k ranks on equal ports the last rank has the vector after k
(k + 1) / 2 message times instead of k.
"""

from __future__ import annotations

from clustersim.simulator.network.collectives.ring import rotated
from clustersim.simulator.network.step import Group, Step


def broadcast(group: Group, nbytes: float, root: int) -> list[Step]:
    """The root's vector to all positions: one step for each depth of the tree."""
    order = rotated(group.channels[0], root)
    levels: dict[int, list[tuple[int, int]]] = {}
    for child in range(1, group.size):
        # the parent lacks the child's highest bit, so a rank is as deep as it has bits
        parent = child - (1 << child.bit_length() - 1)
        levels.setdefault(child.bit_count(), []).append((order[parent], order[child]))
    return [
        Step(tuple(levels[depth]), nbytes, coupled=False, parts=1, blocks=lambda *_: (0,)) for depth in sorted(levels)
    ]
