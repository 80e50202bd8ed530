"""A binomial tree: every round doubles the number of ranks that hold the whole vector. Best for small vectors.

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005, sections 3 and 4.
"""

from __future__ import annotations

from clustersim.simulator.network.collectives.ring import rotated
from clustersim.simulator.network.step import Group, Step


def broadcast(group: Group, nbytes: float, root: int) -> list[Step]:
    """The root's vector to all positions, in ceil(log2 p) rounds of nbytes."""
    return _rounds(group, nbytes, root, reduces=False)


def reduce(group: Group, nbytes: float, root: int) -> list[Step]:
    """The sum to the root, in ceil(log2 p) rounds of nbytes."""
    return _rounds(group, nbytes, root, reduces=True)


def _rounds(group: Group, nbytes: float, root: int, *, reduces: bool) -> list[Step]:
    order, size = rotated(group.channels[0], root), group.size
    rounds, holding = [], 1
    while holding < size:
        pairs = [(order[i], order[i + holding]) for i in range(min(holding, size - holding))]
        transfers = tuple((receiver, sender) for sender, receiver in pairs) if reduces else tuple(pairs)
        rounds.append(Step(transfers, nbytes, reduces=reduces, parts=1, blocks=lambda *_: (0,)))
        holding *= 2
    return rounds[::-1] if reduces else rounds
