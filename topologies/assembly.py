"""Assembly numbers the wirings of all nodes through the cluster, plugs their NICs into a fabric and finds the routes.

A route inside a node is looked up in the wiring of its kind; a route between nodes goes to the sender's NIC, through
the fabric as its structure says, and in from the receiver's NIC. Nothing is searched for that grows with the cluster.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import networkx as nx

from simulator.cluster import Cluster, Link
from simulator.errors import ClusterError
from simulator.garbage import collecting_no_garbage
from topologies.kind import Kind
from topologies.network import Network, Port, Tree, Way
from topologies.wiring import Wiring

if TYPE_CHECKING:
    from simulator.regularity import Regularity

Fabric = Callable[[Network], Way]


@collecting_no_garbage()
def assemble(
    wirings: Sequence[tuple[Wiring, int]],
    fabric: Fabric | None,
    cable: Link | None = None,
    radix: int = 40,
    name: str = "cluster",
) -> Cluster:
    """The cluster of so many nodes of each wiring, joined by *fabric* (not needed for one node).

    *cable* is one link between switches of the fabric, *radix* the ports that its switches have.
    """
    graph: nx.DiGraph[str] = nx.DiGraph()
    kinds: list[Kind] = []
    first: Counter[str] = Counter()
    node = 0
    for wiring, count in wirings:
        each = Counter(data["kind"] for _, data in wiring.graph.nodes.items())
        kinds.append(Kind(wiring, count, node, dict(first), dict(each)))
        first.update({kind: number * count for kind, number in each.items()})
        node += count
    for kind in kinds:
        _stamp(graph, kind)
    way, ports = None, _ports(kinds)
    if fabric is not None and node > 1:
        lacking = [kind.node for kind in kinds if not kind.wiring.nics]
        if lacking:
            raise ClusterError(f"node {lacking[0]} has no NIC to reach the others by; give the node nics")
        way = fabric(Network(graph, ports, cable or ports[0].link, radix))
    return Cluster(graph, Routes(kinds, ports, way), name)


def _stamp(graph: nx.DiGraph[str], kind: Kind) -> None:
    """All nodes of *kind* in *graph*."""
    template = kind.wiring.graph
    position = {vertex: number for number, vertex in enumerate(template)}
    parts = []
    for vertex, data in template.nodes.items():
        number = int(vertex.rpartition(" ")[2])
        parts.append((data, data["kind"], kind.first.get(data["kind"], 0) + number, kind.each[data["kind"]]))
    edges = [(position[a], position[b], {"link": data["link"]}) for a, b, data in template.edges(data=True)]
    for index in range(kind.count):
        names = [f"{word} {base + index * each}" for _, word, base, each in parts]
        node = {"node": kind.node + index}
        graph.add_nodes_from((vertex, {**part[0], **node}) for vertex, part in zip(names, parts, strict=True))
        graph.add_edges_from((names[a], names[b], data) for a, b, data in edges)


def _ports(kinds: Sequence[Kind]) -> list[Port]:
    ports: list[Port] = []
    for kind in kinds:
        links, nics = kind.wiring.server.ports, kind.wiring.nics
        for index in range(kind.count):
            for rail, (nic, link) in enumerate(zip(nics, links, strict=True)):
                ports.append(Port(len(ports), kind.name(nic, index), kind.node + index, rail, link))
    return ports


class Routes:
    """The router of an assembled cluster, *hierarchical* if switches between nodes form a tree."""

    def __init__(self, kinds: Sequence[Kind], ports: Sequence[Port], way: Way | None) -> None:
        self._way = way
        self._stamped, self._ports = kinds, ports
        self.hierarchical = way is None or isinstance(way, Tree)
        self._port = {port.nic: port for port in ports}
        self._places: dict[str, tuple[Kind, int, str]] = {}
        self._doors: dict[tuple[str, bool], tuple[list[str], Port]] = {}
        words = {word for kind in kinds for word in kind.each}
        self._kinds = {word: [kind for kind in kinds if word in kind.each] for word in words}
        self._starts = {word: [kind.first.get(word, 0) for kind in self._kinds[word]] for word in words}

    def __call__(self, source: str, target: str) -> list[str]:
        """The vertices from *source* to *target*, both of them devices or NICs."""
        a, b = self._place(source), self._place(target)
        if a[:2] == b[:2]:
            return self._inside(a, a[2], b[2])
        if self._way is None:
            raise ClusterError(f"there is no way from {source} to {target}: they are in different nodes without fabric")
        (out, exit_), (back, entry) = self._door(source, a, out=True), self._door(target, b, out=False)
        return [*out, *self._way(exit_, entry), *back]

    def regularity(self, cluster: Cluster) -> Regularity | None:
        """What the nodes of *cluster*, whose routes these are, have in common; None where there is no tree above."""
        from topologies.stamps import regularity

        if not self.hierarchical:
            return None
        tree = self._way if isinstance(self._way, Tree) else None
        return regularity(cluster, self._stamped, self._ports, tree)

    def _door(self, vertex: str, place: tuple[Kind, int, str], *, out: bool) -> tuple[list[str], Port]:
        """The vertices between *vertex* and the NIC by which it leaves its node or is reached, and the NIC's port."""
        if (vertex, out) not in self._doors:
            nic = self._nic(place)
            path = self._inside(place, place[2], nic) if out else self._inside(place, nic, place[2])
            self._doors[vertex, out] = path, self._port[path[-1] if out else path[0]]
        return self._doors[vertex, out]

    def _place(self, vertex: str) -> tuple[Kind, int, str]:
        """The kind of node in which *vertex* stands, the node's index among them, and its name in the wiring."""
        known = self._places.get(vertex)
        if known is None:
            known = self._places[vertex] = self._found(vertex)
        return known

    def _found(self, vertex: str) -> tuple[Kind, int, str]:
        word, _, text = vertex.rpartition(" ")
        if word in self._kinds and text.isdecimal():
            at = bisect_right(self._starts[word], int(text)) - 1
            kind = self._kinds[word][at]
            index, number = divmod(int(text) - self._starts[word][at], kind.each[word])
            if index < kind.count:
                return kind, index, f"{word} {number}"
        raise ClusterError(f"{vertex} is no vertex of a node of this cluster")

    def _inside(self, place: tuple[Kind, int, str], source: str, target: str) -> list[str]:
        kind, index, _ = place
        return [kind.name(vertex, index) for vertex in kind.wiring.route(source, target)]

    def _nic(self, place: tuple[Kind, int, str]) -> str:
        return place[0].wiring.nic_of(place[2])


def cable_of(link: Link, latency: float | None, bandwidth: float | None = None) -> Link:
    """The link between two switches of a fabric whose NICs have *link*."""
    return replace(
        link,
        latency=link.latency if latency is None else latency,
        bandwidth=link.bandwidth if bandwidth is None else bandwidth,
    )
