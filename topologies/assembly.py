"""Assembly instantiates server templates, connects their NICs to a fabric and provides the routes.

A route inside a node is looked up in the wiring of its template. A route between nodes goes to the sender's NIC,
through the fabric by its router, and in from the receiver's NIC. No search grows with the cluster.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import Indices, Numbering
from clustersim.simulator.hardware.links import Link, Links
from clustersim.simulator.hardware.topology import (
    NO_LINKS,
    NONE,
    Numbered,
    Topology,
    VertexNames,
    Vertices,
    sorted_topology,
)
from clustersim.simulator.reading.errors import ClusterError
from clustersim.topologies.fabrics._network import FabricRouter, Network, Port, Ports, Routing, Tree
from clustersim.topologies.nodes._server import Wiring
from clustersim.topologies.regularity import KindTables, ServerTemplate

if TYPE_CHECKING:
    from clustersim.simulator.hardware.regularity import Regularity

Fabric = Callable[[Network], FabricRouter]


def assemble(
    wirings: Sequence[tuple[Wiring, int]],
    fabric: Fabric | None,
    cable: Link | None = None,
    radix: int = 40,
    name: str = "cluster",
    routing: Routing | None = None,
) -> Cluster:
    """Return the cluster of the given number of nodes of each wiring, joined by *fabric* (not needed for one node).

    *cable*: one link between switches of the fabric. *radix*: the number of ports of a switch. *routing*: how
    switches choose among equal-cost paths.
    """
    templates = _templates(wirings)
    last = templates[-1]
    ports, begin = _ports(templates), last.vertex + last.count * last.size
    router, network = None, None
    if fabric is not None and last.node + last.count > 1:
        lacking = [template.node for template in templates if not template.wiring.nics]
        if lacking:
            raise ClusterError(f"node {lacking[0]} has no NIC to reach other nodes; give the node nics")
        network = Network(ports, cable or ports[0].link, radix, begin, routing)
        router = _routed(fabric(network), network.routing)
    topology = _topology(templates, network)
    routes = Routes(templates, ports, router, topology.vertices.names, network.routing if network else None)
    return Cluster(topology, routes, name)


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
    table: Numbering[Link] = Numbering()
    columns: list[tuple[Indices, ...]] = [(np.zeros(0, np.int64),) * 4]
    for template in templates:
        nics, servers = template.nics, template.servers
        links = template.wiring.server.ports if len(nics) else ()
        if len(links) != len(nics):
            raise ClusterError(
                f"the shape of node {template.node} has {len(nics)} NICs, but {len(links)} were requested"
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
    tables = KindTables(Numbering(), Numbering(), Numbering())
    vertices, uplinks = _vertices(templates, network, tables), network.uplinks if network else None
    counts = [template.count * template.width(plugged=uplinks is not None) for template in templates]
    distinct, source, target, which = network.links if network else ((), *NO_LINKS)
    if network and uplinks is not None:
        fabric = np.flatnonzero(source >= network.begin)
        source, target, which = source[fabric], target[fabric], which[fabric]
    links, begin = np.empty((3, sum(counts) + len(source)), np.int32), 0
    for template, count in zip(templates, counts, strict=True):
        template.links(tables, uplinks, links[:, begin : begin + count])
        begin += count
    which = np.array([tables.links.number(link) for link in distinct], np.int32)[which]
    if network and uplinks is None:
        inside = links[0, :begin], links[1, :begin], links[2, :begin]
        return sorted_topology(vertices, tables.links.values, (source, target, which), inside)
    order = np.argsort(source, kind="stable")
    links[:, begin:] = source[order], target[order], which[order]
    return Topology(vertices, Links(tables.links.values, links[2]), links[0], links[1])


def _vertices(templates: Sequence[ServerTemplate], network: Network | None, tables: KindTables) -> Vertices:
    """The vertices of all servers, then the switches of the fabric."""
    switches = network.switches if network else []
    columns = [template.vertices(tables) for template in templates]
    kinds = np.array([tables.kinds.number(kind) for kind, _ in switches], np.int32)
    nothing = np.full(len(switches), NONE, np.int32)
    columns.append((kinds, np.array([number for _, number in switches], np.int32), nothing, nothing))
    kind, number, node, accelerator = (np.concatenate(column) for column in zip(*columns, strict=True))
    words, nodes = tables.kinds.values, range(int(node.max(initial=NONE)) + 1)
    return Vertices(words, kind, nodes, node, tables.accelerators.values, accelerator, Numbered(words, kind, number))


class Routes:
    """The router of an assembled cluster.

    It is *hierarchical* if the switches between nodes form a tree and a NIC does not depend on the receiver. It
    *chooses* if the user has said how.
    """

    def __init__(
        self,
        templates: Sequence[ServerTemplate],
        ports: Ports,
        router: FabricRouter | None,
        names: VertexNames,
        routing: Routing | None = None,
    ) -> None:
        routing = routing or Routing()
        self.chooses, self._pxn = routing.policy != "auto", routing.pxn
        self._templates, self._ports, self._router, self._names = templates, ports, router, names
        self._starts = [template.vertex for template in templates]
        self.hierarchical = router is None or (isinstance(router, Tree) and not self._pxn)
        self._exits: dict[tuple[int, bool], tuple[list[int], Port]] = {}

    def __call__(self, source: int, target: int) -> list[int]:
        """Return the vertices from *source* to *target*, ends included. Both are devices or NICs."""
        a, b = self._place(source), self._place(target)
        if a[:2] == b[:2]:
            return a[0].path(a[1], a[2], b[2])
        if self._router is None:
            ends = f"{self._names[source]} to {self._names[target]}"
            raise ClusterError(f"there is no route from {ends}: they are in different nodes without a fabric")
        back, entry = self._to_nic(target, b, out=False)
        out, exit_ = self._from_rail(source, a, entry.rail)
        return [*out, *self._router(exit_, entry), *back]

    def paths(self, source: int, target: int, connection: int) -> list[list[int]]:
        """Return the vertices of each path that the bytes of a *connection* take; each path has an equal share."""
        several = getattr(self._router, "paths", None)
        a, b = self._place(source), self._place(target)
        if several is None or a[:2] == b[:2]:
            return [self(source, target)]
        back, entry = self._to_nic(target, b, out=False)
        out, exit_ = self._from_rail(source, a, entry.rail)
        return [[*out, *switches, *back] for switches in several(exit_, entry, connection)]

    def regularity(self, cluster: Cluster) -> Regularity | None:
        """Return the regularity of *cluster*, which has these routes. None if its fabric is not a tree."""
        from clustersim.topologies.regularity import regularity

        if not self.hierarchical:
            return None
        tree = self._router if isinstance(self._router, Tree) else None
        return regularity(cluster, self._templates, self._ports, tree)

    def nic_of(self, vertex: int) -> int:
        """Return the NIC on the routes from *vertex* to other nodes."""
        template, server, place = self._place(vertex)
        return template.vertex + template.size * server + template.nic_of(place)

    def _from_rail(self, source: int, at: tuple[ServerTemplate, int, int], rail: int) -> tuple[list[int], Port]:
        """The vertices between *source* and the NIC by which it sends to *rail*, and the NIC's port.

        With PXN it is the NIC on the same rail, behind a GPU that *source* reaches over NVLink; else that of *source*.
        """
        template, server, place = at
        relay = template.relay(place, rail) if self._pxn else None
        if relay is None:
            return self._to_nic(source, at, out=True)
        there, port = self._to_nic(
            template.vertex + template.size * server + relay, (template, server, relay), out=True
        )
        return template.path(server, place, relay) + there[1:], port

    def _to_nic(self, vertex: int, at: tuple[ServerTemplate, int, int], *, out: bool) -> tuple[list[int], Port]:
        """The vertices between *vertex* and its NIC in the given direction, and the NIC's port."""
        if (vertex, out) not in self._exits:
            template, server, place = at
            nic = template.nic_of(place)
            path = template.path(server, *((place, nic) if out else (nic, place)))
            self._exits[vertex, out] = path, self._ports[template.port_of(server, nic)]
        return self._exits[vertex, out]

    def _place(self, vertex: int) -> tuple[ServerTemplate, int, int]:
        """The template of the server of *vertex*, the number of that server, and the place of the vertex in it."""
        template = self._templates[bisect_right(self._starts, vertex) - 1]
        server, place = divmod(vertex - template.vertex, template.size)
        if server >= template.count:
            raise ClusterError(f"{self._names[vertex]} is not a vertex of a node of this cluster")
        return template, server, place


def _routed(router: FabricRouter, routing: Routing) -> FabricRouter:
    """Return *router*. Raises `ClusterError` if it has no paths to choose from as *routing* says."""
    if routing.policy in ("adaptive", "ecmp") and not isinstance(router, Tree) and not hasattr(router, "paths"):
        raise ClusterError(
            f"network.routing: {routing.policy} needs equal-cost paths, and the fabric has one path between two NICs; "
            "take auto, or a fat_tree, rail or dragonfly"
        )
    return router


def cable_of(link: Link, latency: float | None, bandwidth: float | None = None) -> Link:
    """Return the link between two switches of a fabric whose NICs have *link*."""
    return replace(
        link,
        latency=link.latency if latency is None else latency,
        bandwidth=link.bandwidth if bandwidth is None else bandwidth,
    )
