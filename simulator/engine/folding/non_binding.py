"""Non-binding constraints: cables between switches that no load can fill.

All traffic that leaves switch v by a cable upward came into v by another link, since routes in a tree do not turn back.
So the load of the cable is at most the load of the other links into v together. If their capacity is at most that of
the cable, the constraint of the cable follows from theirs. The same holds for a cable down to switch u and the other
links out of u. In a tree of switches both arguments lead down, level by level, to the links of NICs. They never lead in
a circle, so all such constraints can be left out together. The feasible rates stay the same, and so do the max-min fair
rates.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simulator.cluster import Cluster
from simulator.cluster.links import Link
from simulator.cluster.topology import Topology
from simulator.cluster.vertices import NONE
from simulator.hashing import Indices

ROUNDING = 1e-12
"""Relative; the capacity of a bundle of links is a sum, which is rounded."""

Efficiency = Callable[[Link], float]


def non_binding(cluster: Cluster, efficiency: Efficiency) -> Indices:
    """The numbers of the links that no load can fill. *efficiency*: the usable fraction of a bandwidth."""
    if not cluster.hierarchical:
        return np.zeros(0, np.int64)
    topology = cluster.topology
    source, target, vertices = topology.source, topology.target, len(topology.vertices)
    level = _levels(topology)
    carried = cluster.links.each(lambda link: link.bandwidth * efficiency(link))
    into, out = np.bincount(target, carried, vertices), np.bincount(source, carried, vertices)
    cables = np.flatnonzero((level[source] != NONE) & (level[target] != NONE))
    v, u = source[cables], target[cables]
    back = carried[_reverse(topology, cables)]
    others = np.where(level[u] > level[v], into[v], out[u])
    return cables[others - back <= carried[cables] * (1 + ROUNDING)]


def _levels(topology: Topology) -> Indices:
    """By vertex: the level of a switch between nodes, 0 for those joined to a node; `NONE` for other vertices."""
    inside = topology.vertices.node != NONE
    level = np.full(len(inside), NONE)
    between = ~inside[topology.source]
    source, target = topology.source[between], topology.target[between]
    reached, number = source[inside[target]], 0
    onward = ~inside[target]
    source, target = source[onward], target[onward]
    while len(reached):
        level[reached] = number
        reached, number = target[(level[source] == number) & (level[target] == NONE)], number + 1
    return level


def _reverse(topology: Topology, cables: Indices) -> Indices:
    """For each of *cables*, the link in the opposite direction."""
    pairs = zip(topology.source[cables].tolist(), topology.target[cables].tolist(), strict=True)
    return np.array([topology.leaving(u)[v] for v, u in pairs], np.int64)
