"""A cable between switches that no load can fill is no constraint: the links below it bind first.

Whatever goes up a cable from switch v has come into v by another link, for nothing turns round in a tree. So the load
of the cable is at most that of the other links into v together; where these can carry no more than the cable, its
constraint follows from theirs. The same holds of a cable down to switch u and the other links out of u. In a tree of
switches both arguments lead down, level by level, to the links of NICs and never in a circle, so that all such
constraints may be dropped at once. What is feasible stays the same, and with it the max-min fair rates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from simulator.cluster import Cluster, Link, attributes

ROUNDING = 1e-12
"""Relative; capacities of bundles are sums."""

Efficiency = Callable[[Link], float]


def non_binding(cluster: Cluster, efficiency: Efficiency) -> list[int]:
    """The numbers of the links that no load can fill; *efficiency* is the share of a link in use."""
    if not cluster.hierarchical:
        return []
    level, graph = _levels(cluster), cluster.graph
    each = {id(link): link.bandwidth * efficiency(link) for link in {id(link): link for link in cluster.links}.values()}
    into, out = _loads(cluster, level, each)

    def follows(v: str, u: str) -> bool:
        carried, back = (each[id(graph.edges[ends]["link"])] for ends in ((v, u), (u, v)))
        others = into[v] if level[u] > level[v] else out[u]
        return others - back <= carried * (1 + ROUNDING)

    return [cluster.number(v, u) for v in level for u in graph.successors(v) if u in level and follows(v, u)]


def _levels(cluster: Cluster) -> dict[str, int]:
    """How far above the servers each switch between them stands, from 0."""
    graph = cluster.graph
    inside = attributes(graph, "node")
    between = [vertex for vertex in graph if vertex not in inside]
    reached = [vertex for vertex in between if any(other in inside for other in graph.successors(vertex))]
    level = dict.fromkeys(reached, 0)
    for vertex in reached:
        for other in graph.successors(vertex):
            if other not in inside and other not in level:
                level[other] = level[vertex] + 1
                reached.append(other)
    return level


def _loads(
    cluster: Cluster, switches: Collection[str], each: Mapping[int, float]
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """What all links into each of the *switches* carry together, and all out of it; *each* is by `id` of a link."""
    into, out = defaultdict[str, float](float), dict[str, float]()
    for source, others in cluster.graph.adjacency():
        if source in switches:
            out[source] = sum(each[id(data["link"])] for data in others.values())
        for target in others:
            if target in switches:
                into[target] += each[id(others[target]["link"])]
    return into, out
