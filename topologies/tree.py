"""A tree of switches from a root down, with the GPUs below the lowest and the hosts at the root."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from simulator.accelerator import Accelerator
from simulator.cluster import Cluster, Link


def tree(
    arity: Sequence[int],
    bandwidth: Sequence[float],
    latency: Sequence[float],
    hosts: int = 1,
    accelerator: Accelerator | None = None,
) -> Cluster:
    """*arity*, *bandwidth* (bytes/s) and *latency* (s, of each link) level by level, the links of the root first.

    The hosts hang on the root by links of the last bandwidth and latency. The GPUs below one switch are a node.

    >>> cluster = tree([2, 3], [20e6, 37.5e6], [50e-6, 50e-6])
    >>> [cluster.ends[link] for link in cluster.route("gpu 0", "gpu 3")][1:-1]
    [('switch 1', 'switch 0'), ('switch 0', 'switch 2')]
    """
    graph: nx.DiGraph[str] = nx.DiGraph()
    accelerator = accelerator or Accelerator()
    above: dict[str, str] = {}
    links = [Link(f"level_{n}", b, a) for n, (b, a) in enumerate(zip(bandwidth, latency, strict=True), start=1)]

    def join(vertex: str, parent: str, link: Link) -> None:
        above[vertex] = parent
        graph.add_edge(vertex, parent, link=link)
        graph.add_edge(parent, vertex, link=link)

    level, switches = ["switch 0"], 1
    graph.add_node("switch 0", kind="switch")
    for branches, link in zip(arity[:-1], links, strict=False):
        parents = [parent for parent in level for _ in range(branches)]
        level = [f"switch {switches + index}" for index in range(len(parents))]
        switches += len(level)
        for vertex, parent in zip(level, parents, strict=True):
            graph.add_node(vertex, kind="switch")
            join(vertex, parent, link)
    for gpu in range(len(level) * arity[-1]):
        graph.add_node(f"gpu {gpu}", kind="gpu", node=gpu // arity[-1], accelerator=accelerator)
        join(f"gpu {gpu}", level[gpu // arity[-1]], links[-1])
    for host in range(hosts):
        graph.add_node(f"host {host}", kind="host", accelerator=accelerator)
        join(f"host {host}", "switch 0", links[-1])

    def climb(vertex: str) -> list[str]:
        way = [vertex]
        while way[-1] in above:
            way.append(above[way[-1]])
        return way

    def route(source: str, target: str) -> list[str]:
        up, down = climb(source), climb(target)
        meeting = next(vertex for vertex in up if vertex in down)
        return up[: up.index(meeting) + 1] + down[: down.index(meeting)][::-1]

    return Cluster(graph, route, "tree")
