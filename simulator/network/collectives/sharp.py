"""SHARP: switches of the fabric add the vectors of all servers, so each server sends its vector once and receives once.

Every place of a server is the head of an equal part of the vector. Inside a server the others send their contributions
to the head. The heads of one place send the sums into the fabric, whose switches add them up along a tree and copy the
result back. The head passes it on to the others. NCCL calls this CollNet with direct exchange (src/graph/tuning.cc).
Graham et al., "Scalable Hierarchical Aggregation and Reduction Protocol (SHARP) Streaming-Aggregation Hardware Design
and Evaluation", ISC 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from clustersim.simulator.network.collectives.ring import pipeline
from clustersim.simulator.network.step import Group, Step, Transfer
from clustersim.simulator.network.transport import MOST_HEADS

Between = Callable[[Sequence[int]], Sequence[Sequence[Transfer]]]
"""Heads of all servers -> for each lane the transfers by which the first head gets their sum."""


def all_reduce(group: Group, nbytes: float) -> list[Step]:
    """The sum at every position: to the heads, up and down the switches of the fabric, and back."""
    return through_heads(group, nbytes, in_fabric, inside_switch=False, between_switches=True)


def through_heads(
    group: Group, nbytes: float, between: Between, *, inside_switch: bool, between_switches: bool
) -> list[Step]:
    """Reduce inside servers to heads, reduce *between* heads, and return the sum the same way.

    *inside_switch*, *between_switches*: whether switches inside a server, and between servers, add and copy; inside a
    server they do so for at most `MOST_HEADS` heads. Chunks pass all transfers in turn, so all stages are busy at once.
    """
    transfers: list[Transfer] = []
    adds: list[bool] = []
    switched: list[bool] = []
    lanes = 0
    places = min(map(len, group.servers))
    for place in range(min(places, MOST_HEADS) if inside_switch else places):
        inside = [(other, server[place]) for server in group.servers for other in server if other != server[place]]
        for across in between([server[place] for server in group.servers]):
            there = [*inside, *across]
            transfers += there + [(receiver, sender) for sender, receiver in reversed(there)]
            adds += [True] * len(there) + [False] * len(there)
            flags = [inside_switch] * len(inside) + [between_switches] * len(across)
            switched += flags + flags[::-1]
            lanes += 1
    steps = pipeline(tuple(transfers), lanes, nbytes, reduces=False)
    return [replace(step, reduces=tuple(adds), in_switch=tuple(switched)) for step in steps]


def in_fabric(heads: Sequence[int]) -> list[list[Transfer]]:
    """One lane: every head sends its vector once into the fabric. The first head stands for the root of the tree."""
    return [[(head, heads[0]) for head in heads[1:]]]
