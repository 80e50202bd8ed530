"""Conversion between a cluster's topology and a networkx graph.

Vertices of the graph have `kind` (gpu, host, nvswitch, pcie_switch, nic, leaf, spine ...) and `node`, their server
(absent on switches of the fabric). GPUs and hosts have `accelerator`. Edges have `link`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.cluster.links import Links
from simulator.cluster.topology import Topology
from simulator.cluster.vertices import NONE, ExplicitNames, Vertices
from simulator.errors import ClusterError
from simulator.hashing import Indices, T, Table

if TYPE_CHECKING:
    import networkx as nx


def graph_of(topology: Topology) -> nx.DiGraph[str]:
    """Return *topology* as a networkx graph, with vertices and links in their order, by name."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    vertices, links = topology.vertices, topology.links
    names = vertices.names.of(np.arange(len(vertices)))
    columns = vertices.kind.tolist(), vertices.node.tolist(), vertices.accelerator.tolist()
    for name, kind, node, accelerator in zip(names, *columns, strict=True):
        attributes: dict[str, Any] = {"kind": vertices.kinds[kind]}
        if accelerator != NONE:
            attributes["accelerator"] = vertices.accelerators[accelerator]
        if node != NONE:
            attributes["node"] = vertices.nodes[node]
        graph.add_node(name, **attributes)
    ends = zip(topology.source.tolist(), topology.target.tolist(), links, strict=True)
    graph.add_edges_from((names[source], names[target], {"link": link}) for source, target, link in ends)
    return graph


def topology_of(graph: nx.DiGraph[str]) -> Topology:
    """Return the topology of *graph*, with its vertices in their order and the edges of each vertex in theirs."""
    names = ExplicitNames(tuple(graph))
    kinds, kind = _numbered(data.get("kind", "") for _, data in graph.nodes.items())
    nodes, node = _numbered(data.get("node") for _, data in graph.nodes.items())
    accelerators, accelerator = _numbered(data.get("accelerator") for _, data in graph.nodes.items())
    vertices = Vertices(kinds, kind, nodes, node, accelerators, accelerator, names)
    leaving = [others for _, others in graph.adjacency()]
    source = np.repeat(np.arange(len(leaving)), np.array([len(others) for others in leaving], np.int64))
    place = {name: number for number, name in enumerate(names)}
    target = np.array([place[other] for others in leaving for other in others], np.int64)
    distinct, which = _numbered(data["link"] for others in leaving for data in others.values())
    return Topology(vertices, Links(distinct, which), source, target)


def search_route(graph: nx.DiGraph[str], gpus: Sequence[str], source: str, target: str) -> list[str]:
    """Return the vertices of a route with the fewest links, through no other one of *gpus* if possible.

    Raises `ClusterError` if there is no route.
    """
    import networkx as nx

    others = [gpu for gpu in gpus if gpu not in (source, target)]
    for part in (nx.restricted_view(graph, others, []), graph):
        try:
            path: list[str] = nx.shortest_path(part, source, target)
        except nx.NetworkXNoPath:
            continue
        return path
    raise ClusterError(f"there is no route from {source} to {target}")


def _numbered(values: Iterable[T | None]) -> tuple[tuple[T, ...], Indices]:
    """The distinct *values* and the place of each; `NONE` for None."""
    table: Table[T] = Table()
    numbers = [NONE if value is None else table.number(value) for value in values]
    return table.values, np.array(numbers, np.int64)
