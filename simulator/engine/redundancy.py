"""A cable between switches that no load can fill is no constraint: the links that feed it, or that it feeds, bind first.

Whatever crosses a link from switch v to switch u has come into v by another link, for nothing turns round in a tree. So
the load of the link is at most that of the other links into v together; where these can carry no more than the link,
its constraint follows from theirs. The same holds of the links out of u. In a tree of switches these arguments lead
from cables to the links of NICs and never in a circle, so that all such constraints may be dropped at once. What is
feasible stays the same, and with it the max-min fair rates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.cluster import Cluster, Link

ROUNDING = 1e-12
"""Relative; capacities of bundles are sums."""


def redundant(cluster: Cluster, numbers: Sequence[int], efficiency: Callable[[Link], float]) -> list[bool]:
    """Whether the link of each of *numbers* can be filled by no load; *efficiency* is the share of a link in use."""
    if not cluster.hierarchical:
        return [False] * len(numbers)
    nodes = cluster.graph.nodes
    fabric = {vertex for vertex, data in nodes.items() if "node" not in data}
    into = {vertex: _total(cluster.graph.in_edges(vertex, data="link"), efficiency) for vertex in fabric}
    out = {vertex: _total(cluster.graph.out_edges(vertex, data="link"), efficiency) for vertex in fabric}

    def follows(number: int) -> bool:
        v, u = cluster.ends[number]
        if v not in fabric or u not in fabric:
            return False
        carried = _carried(cluster.links[number], efficiency) * (1 + ROUNDING)
        back = _carried(cluster.graph.edges[u, v]["link"], efficiency) if cluster.graph.has_edge(u, v) else 0.0
        return into[v] - back <= carried or out[u] - back <= carried

    return [follows(number) for number in numbers]


def _total(edges: Sequence[tuple[str, str, Link]], efficiency: Callable[[Link], float]) -> float:
    return sum(_carried(link, efficiency) for _, _, link in edges)


def _carried(link: Link, efficiency: Callable[[Link], float]) -> float:
    return link.bandwidth * efficiency(link)
