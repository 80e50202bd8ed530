"""A binomial tree in which whoever holds the vector sends it to all its children at once, and they share its port.

Gloo broadcasts so: a rank posts its sends one after the other and waits for them at the end (facebookincubator/gloo,
broadcast.cc). The rounds of the tree's own design are lost: of p = 2^k ranks on equal ports the last has the vector
after k (k + 1) / 2 times that of one message, not after k.
"""

from __future__ import annotations

from simulator.network.collectives.ring import rotated
from simulator.network.step import Group, Step


def broadcast(group: Group, nbytes: float, root: int) -> list[Step]:
    """The root's vector to all: a step for those who are as many messages away from it."""
    order = rotated(group.channels[0], root)
    levels: dict[int, list[tuple[int, int]]] = {}
    for child in range(1, group.size):
        # the parent lacks the child's highest bit, so a rank is as deep as it has bits
        parent = child - (1 << child.bit_length() - 1)
        levels.setdefault(child.bit_count(), []).append((order[parent], order[child]))
    return [
        Step(tuple(levels[depth]), nbytes, coupled=False, parts=1, blocks=lambda *_: (0,)) for depth in sorted(levels)
    ]
