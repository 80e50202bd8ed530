"""Assembly stamps server templates through the cluster, plugs their NICs into a fabric and finds the routes.

A route inside a node is looked up in the wiring of its template; a route between nodes goes to the sender's NIC,
through the fabric as its structure says, and in from the receiver's NIC. Nothing is searched for that grows with the
cluster.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simulator.cluster import Cluster, Link
from simulator.cluster.topology import Topology, sorted_topology
from simulator.cluster.vertices import NONE, Names, Numbered, Vertices
from simulator.errors import ClusterError
from simulator.hashing import Indices, Table
from topologies.network import Network, Port, Ports, Tree, Way
from topologies.template import ServerTemplate, Tables
from topologies.wiring import Wiring

if TYPE_CHECKING:
    from simulator.cluster.regularity import Regularity

Fabric = Callable[[Network], Way]


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
    templates = _templates(wirings)
    last = templates[-1]
    ports, begin = _ports(templates), last.vertex + last.count * last.size
    way, network = None, None
    if fabric is not None and last.node + last.count > 1:
        lacking = [template.node for template in templates if not template.wiring.nics]
        if lacking:
            raise ClusterError(f"node {lacking[0]} has no NIC to reach the others by; give the node nics")
        network = Network(ports, cable or ports[0].link, radix, begin)
        way = fabric(network)
    topology = _topology(templates, network)
    return Cluster(topology, Routes(templates, ports, way, topology.vertices.names), name)


def _templates(wirings: Sequence[tuple[Wiring, int]]) -> list[ServerTemplate]:
    """A template for each wiring, numbered through the cluster."""
    templates: list[ServerTemplate] = []
    first: Counter[str] = Counter()
    node = vertex = port = 0
    for wiring, count in wirings:
        template = ServerTemplate(wiring, count, node, vertex, port, dict(first))
        templates.append(template)
        first.update({kind: number * count for kind, number in template.each.items()})
        node, vertex, port = node + count, vertex + count * template.size, port + count * len(template.nics)
    return templates


def _ports(templates: Sequence[ServerTemplate]) -> Ports:
    table: Table[Link] = Table()
    columns: list[tuple[Indices, ...]] = [(np.zeros(0, np.int64),) * 4]
    for template in templates:
        nics, servers = template.nics, template.servers
        links = template.wiring.server.ports if len(nics) else ()
        if len(links) != len(nics):
            raise ClusterError(
                f"the shape of node {template.node} has {len(nics)} NICs, but {len(links)} are asked for"
            )
        which = np.array([table.number(link) for link in links], np.int64)
        nic = (template.vertex + template.size * servers + nics).ravel()
        node = np.repeat(template.node + np.arange(template.count), len(nics))
        rail = np.tile(np.arange(len(nics)), template.count)
        columns.append((nic, node, rail, np.tile(which, template.count)))
    nic, node, rail, which = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Ports(nic, node, rail, table.values, which)


def _topology(templates: Sequence[ServerTemplate], network: Network | None) -> Topology:
    """The vertices and links of all servers, then those of the fabric."""
    tables = Tables(Table(), Table(), Table())
    switches = network.switches if network else []
    columns = [template.vertices(tables) for template in templates]
    kinds = np.array([tables.kinds.number(kind) for kind, _ in switches], np.int64)
    nothing = np.full(len(switches), NONE)
    columns.append((kinds, np.array([number for _, number in switches], np.int64), nothing, nothing))
    kind, number, node, accelerator = (np.concatenate(column) for column in zip(*columns, strict=True))
    words, nodes = tables.kinds.values, range(int(node.max(initial=NONE)) + 1)
    vertices = Vertices(
        words, kind, nodes, node, tables.accelerators.values, accelerator, Numbered(words, kind, number)
    )
    links = [template.links(tables) for template in templates]
    if network:
        distinct, source, target, which = network.links
        renumbered = np.array([tables.links.number(link) for link in distinct], np.int64)
        links.append((source, target, renumbered[which]))
    source, target, which = (np.concatenate(column) for column in zip(*links, strict=True))
    return sorted_topology(vertices, tables.links.values, source, target, which)


class Routes:
    """The router of an assembled cluster, *hierarchical* if switches between nodes form a tree."""

    def __init__(self, templates: Sequence[ServerTemplate], ports: Ports, way: Way | None, names: Names) -> None:
        self._templates, self._ports, self._way, self._names = templates, ports, way, names
        self._starts = [template.vertex for template in templates]
        self.hierarchical = way is None or isinstance(way, Tree)
        self._exits: dict[tuple[int, bool], tuple[list[int], Port]] = {}

    def __call__(self, source: int, target: int) -> list[int]:
        """The vertices from *source* to *target*, both of them devices or NICs."""
        a, b = self._place(source), self._place(target)
        if a[:2] == b[:2]:
            return a[0].path(a[1], a[2], b[2])
        if self._way is None:
            ends = f"{self._names[source]} to {self._names[target]}"
            raise ClusterError(f"there is no way from {ends}: they are in different nodes without fabric")
        (out, exit_), (back, entry) = self._to_nic(source, a, out=True), self._to_nic(target, b, out=False)
        return [*out, *self._way(exit_, entry), *back]

    def regularity(self, cluster: Cluster) -> Regularity | None:
        """What the nodes of *cluster*, whose routes these are, have in common; None where there is no tree above."""
        from topologies.regularity import regularity

        if not self.hierarchical:
            return None
        tree = self._way if isinstance(self._way, Tree) else None
        return regularity(cluster, self._templates, self._ports, tree)

    def nic_of(self, vertex: int) -> int:
        """The NIC by which *vertex* leaves its node for another."""
        template, server, place = self._place(vertex)
        return template.vertex + template.size * server + template.nic_of(place)

    def _to_nic(self, vertex: int, at: tuple[ServerTemplate, int, int], *, out: bool) -> tuple[list[int], Port]:
        """The vertices between *vertex* and the NIC by which it leaves its node or is reached, and the NIC's port."""
        if (vertex, out) not in self._exits:
            template, server, place = at
            nic = template.nic_of(place)
            path = template.path(server, *((place, nic) if out else (nic, place)))
            self._exits[vertex, out] = path, self._ports[template.port_of(server, nic)]
        return self._exits[vertex, out]

    def _place(self, vertex: int) -> tuple[ServerTemplate, int, int]:
        """The template of the server in which *vertex* stands, which of its servers, and the place in there."""
        template = self._templates[bisect_right(self._starts, vertex) - 1]
        server, place = divmod(vertex - template.vertex, template.size)
        if server >= template.count:
            raise ClusterError(f"{self._names[vertex]} is no vertex of a node of this cluster")
        return template, server, place


def cable_of(link: Link, latency: float | None, bandwidth: float | None = None) -> Link:
    """The link between two switches of a fabric whose NICs have *link*."""
    return replace(
        link,
        latency=link.latency if latency is None else latency,
        bandwidth=link.bandwidth if bandwidth is None else bandwidth,
    )
