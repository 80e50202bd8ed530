"""Server templates, and the regularity of a cluster that is assembled of them and of a tree of switches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import chain, pairwise

import numpy as np

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import Indices, Numbering, Numbers, distinct, firsts, hashed
from clustersim.simulator.hardware.links import Link
from clustersim.simulator.hardware.regularity import Chains, Regularity
from clustersim.simulator.hardware.topology import NONE, Topology
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.topologies.fabrics._network import Ports, Tree
from clustersim.topologies.nodes._server import Wiring

DEVICES = ("gpu", "host")


def regularity(
    cluster: Cluster, templates: Sequence[ServerTemplate], ports: Ports, tree: Tree | None
) -> Regularity | None:
    """Return the regularity of *cluster*: servers of *templates* with *ports* connected to *tree*.

    None if servers of one template differ, because the fabric has given some of their vertices more links than others.
    """
    groups = _server_groups(cluster.topology, templates, plugs=tree is not None)
    chains = _chains(cluster.topology, ports, tree) if tree else Chains(0, 0, *[np.zeros(0, np.int64)] * 5)
    if groups is None or chains is None:
        return None
    parts = [_Part(group, vertex) for word in DEVICES for group in groups for vertex in group.of_kind(word)]
    part, server = _instances(groups, parts)
    base = np.concatenate([group.base + group.width * np.arange(group.template.count) for group in groups])
    template = _template_ids(groups, cluster.links.which)
    out, back = _padded([one.out for one in parts]), _padded([one.back for one in parts])
    return Regularity(
        server=server,
        part=part,
        base=base,
        template=template,
        local=np.array([one.local for one in parts], np.int64),
        out=out,
        back=back,
        port=np.array([one.port for one in parts], np.int64).reshape(len(parts), 2),
        uplink=_uplinks(cluster.links.which, parts, base[firsts(template)], np.concatenate([out, back], axis=1)),
        chains=chains,
        link_class=cluster.links.which,
    )


@dataclass(frozen=True, eq=False)
class ServerTemplate:
    """*count* servers of one *wiring*. *node*, *vertex* and *port* are the numbers of the first server.

    *first*: by kind of vertex, the number of such vertices in all servers before.
    """

    wiring: Wiring
    count: int
    node: int
    vertex: int
    port: int
    first: Mapping[str, int]
    _paths: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the wiring's vertices."""
        return tuple(self.wiring.vertices)

    @cached_property
    def place(self) -> Mapping[str, int]:
        """The place of each vertex in the wiring."""
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def each(self) -> Mapping[str, int]:
        """The number of vertices of each kind in a server."""
        return Counter(self.wiring.vertices.values())

    @cached_property
    def nics(self) -> Indices:
        """The places of the NICs."""
        return np.array([self.place[nic] for nic in self.wiring.nics], np.int64)

    @property
    def size(self) -> int:
        """The number of vertices of one server."""
        return len(self.names)

    @property
    def servers(self) -> Indices:
        """The servers, counted from the first of this template, as a column."""
        return np.arange(self.count)[:, None]

    @cached_property
    def degrees(self) -> Indices:
        """By vertex the number of links of the wiring that leave it."""
        return np.array([len(self.wiring.links[name]) for name in self.names], np.int64)

    def width(self, *, plugged: bool) -> int:
        """Return the number of links that leave one server; *plugged*: with one link into the fabric from each NIC."""
        return int(self.degrees.sum()) + plugged * len(self.nics)

    def vertices(self, tables: KindTables) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Return arrays over all vertices, server after server: kind, number within the kind, node, accelerator."""
        kinds = list(self.wiring.vertices.values())
        begin = np.array([self.first.get(kind, 0) for kind in kinds], np.int32)
        own = np.array([int(name.rpartition(" ")[2]) for name in self.names], np.int32)
        each = np.array([self.each[kind] for kind in kinds], np.int32)
        computes = [self.wiring.accelerator(name) for name in self.names]
        places = [NONE if one is None else tables.accelerators.number(one) for one in computes]
        return (
            np.tile(np.array([tables.kinds.number(kind) for kind in kinds], np.int32), self.count),
            (begin + own + each * self.servers.astype(np.int32)).ravel(),
            np.repeat(np.arange(self.node, self.node + self.count, dtype=np.int32), self.size),
            np.tile(np.array(places, np.int32), self.count),
        )

    def links(self, tables: KindTables, uplinks: Numbers | None, out: Numbers) -> None:
        """Write all links into the rows of *out*, server after server: source and target vertex, number of the `Link`.

        *uplinks*: by port of the cluster, the switch to which its NIC has a link, the last one of the NIC.
        """
        links = [
            [(self.place[b], tables.links.number(link)) for b, link in self.wiring.links[a].items()] for a in self.names
        ]
        for nic, link in zip(self.nics.tolist(), self.wiring.server.ports, strict=True) if uplinks is not None else ():
            links[nic].append((NONE, tables.links.number(link)))
        lengths = [len(own) for own in links]
        target, number = np.array(list(chain.from_iterable(links)), np.int32).reshape(sum(lengths), 2).T
        begin = (self.vertex + self.size * self.servers).astype(np.int32)
        sources, targets, numbers = out.reshape(3, self.count, len(target))
        np.add(begin, np.repeat(np.arange(self.size, dtype=np.int32), lengths), out=sources)
        np.add(begin, target, out=targets)
        numbers[:] = number
        if uplinks is not None:
            own = uplinks[self.port : self.port + self.count * len(self.nics)]
            targets[:, np.cumsum(lengths)[self.nics] - 1] = own.reshape(self.count, -1)

    @cached_property
    def rails(self) -> Mapping[int, int]:
        """By place of a NIC the number of the NIC in its server."""
        return {place: rail for rail, place in enumerate(self.nics.tolist())}

    def port_of(self, server: int, nic: int) -> int:
        """Return the port of the NIC at place *nic* of a server."""
        return self.port + len(self.rails) * server + self.rails[nic]

    def nic_of(self, place: int) -> int:
        """Return the place of the NIC through which the device at *place* reaches the fabric."""
        return self.place[self.wiring.nic_of(self.names[place])]

    def relay(self, place: int, rail: int) -> int | None:
        """Return the GPU that sends to *rail* for the GPU at *place*. None: it sends itself, or has no NVLink."""
        gpus, name = self.wiring.gpus, self.names[place]
        if name not in gpus or rail >= len(self.nics) or self.nic_of(place) == self.nics[rail]:
            return None
        nic = self.names[self.nics[rail]]
        near = [gpu for gpu in gpus if self.wiring.nic_of(gpu) == nic and self.wiring.over_nvlink(name, gpu)]
        return self.place[near[gpus.index(name) % len(near)]] if near else None

    def path(self, server: int, source: int, target: int) -> list[int]:
        """Return the vertices from place *source* to place *target* of a server, ends included."""
        key, begin = (source, target), self.vertex + self.size * server
        if key not in self._paths:
            route = self.wiring.route(self.names[source], self.names[target])
            self._paths[key] = [self.place[name] for name in route]
        return [begin + place for place in self._paths[key]]


@dataclass(frozen=True)
class _Servers:
    """The servers of one *template*. *base*: the first link of the first server. *degrees*: links by vertex of one
    server.

    *plugs*: whether each NIC has one link into the fabric beyond those of the wiring.
    """

    template: ServerTemplate
    base: int
    degrees: Indices
    plugs: bool

    @cached_property
    def offsets(self) -> list[int]:
        """By vertex the distance of its first link from the first link of its server; last, the links of a server."""
        return [0, *np.cumsum(self.degrees).tolist()]

    @property
    def width(self) -> int:
        """The number of links of one server."""
        return self.offsets[-1]

    def of_kind(self, kind: str) -> tuple[str, ...]:
        """The vertices of *kind* of the wiring."""
        return self.template.wiring.of_kind(kind)

    def links(self, path: Sequence[str]) -> list[int]:
        """The distances of the links of *path* from the first link of the server."""
        place, links = self.template.place, self.template.wiring.links
        return [self.offsets[place[a]] + list(links[a]).index(b) for a, b in pairwise(path)]

    def last_link(self, vertex: str) -> int:
        """The distance of the last link that leaves *vertex* from the first link of the server."""
        return self.offsets[self.template.place[vertex] + 1] - 1


def _server_groups(topology: Topology, templates: Sequence[ServerTemplate], *, plugs: bool) -> list[_Servers] | None:
    """The servers of *templates*. None if servers of one template differ in the number of links at a vertex."""
    groups, link = [], 0
    for template in templates:
        degrees = template.degrees.copy()
        degrees[template.nics] += plugs
        groups.append(_Servers(template, link, degrees, plugs))
        end = topology.first(template.vertex + template.count * template.size)
        if end - link != groups[-1].width * template.count:
            return None
        sources = np.repeat(np.arange(template.size), degrees)
        begin = template.vertex + template.size * template.servers
        here = topology.source[link:end].reshape(template.count, -1)
        if (here != begin.astype(here.dtype) + sources.astype(here.dtype)).any():
            return None
        link = end
    return groups


@dataclass(frozen=True)
class _Part:
    """A device of the wiring, *vertex*. Every server of *group* has one instance of it."""

    group: _Servers
    vertex: str

    @cached_property
    def _path(self) -> tuple[str, ...]:
        """The vertices to its NIC."""
        wiring = self.group.template.wiring
        return wiring.route(self.vertex, wiring.nic_of(self.vertex)) if self.group.plugs else ()

    @property
    def out(self) -> list[int]:
        """The links from the device out of the server, counted from the server's first link."""
        path, group = self._path, self.group
        return [*group.links(path), group.last_link(path[-1])] if path else []

    @property
    def back(self) -> list[int]:
        """The links from the NIC to the device, counted from the server's first link."""
        wiring = self.group.template.wiring
        return self.group.links(wiring.route(self._path[-1], self.vertex)) if self._path else []

    @property
    def description(self) -> object:
        """The device and the vertices on its route out, apart from the links."""
        wiring = self.group.template.wiring
        return wiring.accelerator(self.vertex), tuple(wiring.vertices[vertex] for vertex in self._path)

    @property
    def local(self) -> int:
        """Its number in the server."""
        return self.group.template.place[self.vertex]

    @property
    def port(self) -> tuple[int, int]:
        """The port of its NIC in server 0, were that of this template too, and by how much it grows with servers."""
        template, nics = self.group.template, self.group.template.wiring.nics
        own = nics.index(self._path[-1]) if self._path else 0
        return template.port + own - len(nics) * template.node, len(nics)


def _instances(groups: Sequence[_Servers], parts: Sequence[_Part]) -> tuple[Indices, Indices]:
    """By device the number of its part, and of its server: GPUs in order, then hosts."""
    found, begin = [np.zeros((2, 0), np.int64)], 0
    for group, own in ((group, len(group.of_kind(word))) for word in DEVICES for group in groups):
        node, count = group.template.node, group.template.count
        found.append(np.stack([np.tile(begin + np.arange(own), count), np.repeat(node + np.arange(count), own)]))
        begin += own
    assert begin == len(parts)
    part, server = np.concatenate(found, axis=1)
    return part, server


def _padded(rows: Sequence[Sequence[int]]) -> Indices:
    """*rows* padded to one length with `NONE`."""
    longest = max(map(len, rows), default=0)
    return np.array([[*row, *[NONE] * (longest - len(row))] for row in rows], np.int64).reshape(len(rows), longest)


def _uplinks(link_class: Numbers, parts: Sequence[_Part], base: Indices, distances: Indices) -> Indices:
    """By template and part a number; equal for parts of equal description with links of equal classes out and back.

    *base*: the first link of the first server of each template. *distances*: by part its links, from there.
    """
    description = hashed([one.description for one in parts])
    missing = distances == NONE
    columns = [np.broadcast_to(description, (len(base), len(parts))).astype(np.int64)]
    for distance, none in zip(distances.T, missing.T, strict=True):
        # parts of other templates have distances that may lead beyond the last link
        links = np.minimum(base[:, None] + distance, len(link_class) - 1)
        columns.append(np.where(none, NONE, link_class[links]))
    rows = np.stack(columns, axis=-1).reshape(-1, len(columns))
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(len(base), len(parts))


def _template_ids(groups: Sequence[_Servers], link_class: Numbers) -> Indices:
    """By server a number that is equal for servers of one template whose links have equal classes, one by one."""
    found, known = [], 0
    for group in groups:
        links = link_class[group.base : group.base + group.width * group.template.count]
        rows = links.reshape(group.template.count, group.width)
        others = np.flatnonzero((rows != rows[:1]).any(axis=1))
        ids = np.full(len(rows), known)
        if len(others):
            ids[others] += 1 + np.unique(rows[others], axis=0, return_inverse=True)[1]
        found.append(ids)
        known = int(ids.max()) + 1
    return np.concatenate(found)


def _chains(topology: Topology, ports: Ports, tree: Tree) -> Chains | None:
    """The chains of *ports*. None if they differ in length, or if a switch has another link into a server."""
    first = int(topology.source[topology.leaving_fabric[:1]].max(initial=0))
    links, count = topology.leaving_fabric, len(topology.vertices) - first
    source, target = topology.source[links] - first, topology.target[links]
    leaf, into = np.asarray(tree.leaf_of, np.int64), np.flatnonzero(topology.vertices.node[target] != NONE)
    link_to = np.full(first, NONE)
    link_to[target[into]] = links[into]
    plugged = link_to[ports.nic]
    if len(into) != len(ports) or (plugged == NONE).any() or not np.array_equal(topology.source[plugged], leaf):
        return None
    above, up, down = (np.full(count, NONE) for _ in range(3))
    above[np.array([*tree.above], np.int64) - first] = list(tree.above.values())
    upward, downward = (above[source] == target), np.flatnonzero(target >= first)
    up[source[upward]] = links[upward]
    downward = downward[above[target[downward] - first] - first == source[downward]]
    down[target[downward] - first] = links[downward]
    levels, switch = 1, distinct(leaf)
    while (above[switch - first] != NONE).any():
        if (above[switch - first] == NONE).any():
            return None
        levels, switch = levels + 1, distinct(above[switch - first])
    return Chains(levels, first, leaf, plugged, above, down, up)


@dataclass(frozen=True, eq=False)
class KindTables:
    """The distinct kinds of vertices, accelerators and links of a cluster, numbered."""

    kinds: Numbering[str]
    accelerators: Numbering[Accelerator]
    links: Numbering[Link]
