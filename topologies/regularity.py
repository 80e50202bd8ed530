"""Server templates, and the regularity of a cluster that is assembled of them and of a tree of switches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import pairwise

import numpy as np

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import Indices, Numbering, hashed, mixed
from clustersim.simulator.hardware.links import Link
from clustersim.simulator.hardware.topology import NONE, Regularity, Topology
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
    chains = (
        _chains(cluster.topology, ports, tree) if tree else _Chains(*[np.zeros((len(ports) or 1, 0), np.int64)] * 3)
    )
    if groups is None or chains is None:
        return None
    devices = [_DeviceTemplate(group, vertex) for word in DEVICES for group in groups for vertex in group.of_kind(word)]
    which, server = _instances(groups, devices)
    node, local, nics, port, width, base = np.array([one.numbers for one in devices], np.int64)[which].T
    first, link_class = (base + width * server)[:, None], cluster.links.which
    relative = _padded([one.out for one in devices])[which], _padded([one.back for one in devices])[which]
    out, back = (np.where(links == NONE, NONE, first + links) for links in relative)
    description = hashed([one.description for one in devices])[which].astype(np.int64)
    leaves_by = port + nics * server
    return Regularity(
        server=node + server,
        local=local,
        out=out,
        back=back,
        uplink=_uplinks(link_class, description, out, back),
        switch=chains.switch[leaves_by],
        down=chains.down[leaves_by],
        up=chains.up[leaves_by],
        base=np.concatenate([group.base + group.width * np.arange(group.template.count) for group in groups]),
        template=_template_ids(groups, link_class),
        link_class=link_class,
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

    def vertices(self, tables: KindTables) -> tuple[Indices, Indices, Indices, Indices]:
        """Return arrays over all vertices, server after server: kind, number within the kind, node, accelerator."""
        kinds = list(self.wiring.vertices.values())
        begin = np.array([self.first.get(kind, 0) for kind in kinds], np.int64)
        own = np.array([int(name.rpartition(" ")[2]) for name in self.names], np.int64)
        each = np.array([self.each[kind] for kind in kinds], np.int64)
        computes = [self.wiring.accelerator(name) for name in self.names]
        places = [NONE if one is None else tables.accelerators.number(one) for one in computes]
        return (
            np.tile(np.array([tables.kinds.number(kind) for kind in kinds], np.int64), self.count),
            (begin + own + each * self.servers).ravel(),
            np.repeat(self.node + np.arange(self.count), self.size),
            np.tile(np.array(places, np.int64), self.count),
        )

    def links(self, tables: KindTables) -> tuple[Indices, Indices, Indices]:
        """Return arrays over all links, server after server: source vertex, target vertex, number of the `Link`."""
        ends = [(self.place[a], self.place[b]) for a in self.names for b in self.wiring.links[a]]
        source, target = np.array(ends, np.int64).reshape(len(ends), 2).T
        which = [tables.links.number(link) for a in self.names for link in self.wiring.links[a].values()]
        begin = self.vertex + self.size * self.servers
        return (
            (begin + source).ravel(),
            (begin + target).ravel(),
            np.tile(np.array(which, np.int64), self.count),
        )

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
        here = topology.degrees[template.vertex : template.vertex + template.count * template.size]
        degrees = template.degrees.copy()
        degrees[template.nics] += plugs
        if (here.reshape(template.count, template.size) != degrees).any():
            return None
        groups.append(_Servers(template, link, degrees, plugs))
        link += groups[-1].width * template.count
    return groups


@dataclass(frozen=True)
class _DeviceTemplate:
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
    def numbers(self) -> tuple[int, ...]:
        """(node, place in it, NICs of a server, port, links of a server, first link) of its first instance."""
        group, template = self.group, self.group.template
        nics = template.wiring.nics
        port = template.port + (nics.index(self._path[-1]) if self._path else 0)
        return template.node, template.place[self.vertex], len(nics), port, group.width, group.base


def _instances(groups: Sequence[_Servers], devices: Sequence[_DeviceTemplate]) -> tuple[Indices, Indices]:
    """By device the number of its template, and of its server in that template: GPUs in order, then hosts."""
    found, begin = [np.zeros((2, 0), np.int64)], 0
    for count, own in ((group.template.count, len(group.of_kind(word))) for word in DEVICES for group in groups):
        found.append(np.stack([np.tile(begin + np.arange(own), count), np.repeat(np.arange(count), own)]))
        begin += own
    assert begin == len(devices)
    which, server = np.concatenate(found, axis=1)
    return which, server


def _padded(rows: Sequence[Sequence[int]]) -> Indices:
    """*rows* padded to one length with `NONE`."""
    longest = max(map(len, rows), default=0)
    return np.array([[*row, *[NONE] * (longest - len(row))] for row in rows], np.int64).reshape(len(rows), longest)


def _uplinks(link_class: Indices, description: Indices, out: Indices, back: Indices) -> Indices:
    """By device a number; equal for devices of equal *description* with links *out* and *back* of equal classes."""
    links = np.concatenate([out, back], axis=1)
    classes = np.where(links == NONE, NONE, link_class[links])
    columns = np.concatenate([description[:, None], classes], axis=1).astype(np.uint64)
    salt = mixed(np.arange(columns.shape[1], dtype=np.uint64))
    return np.unique(mixed(columns ^ salt).sum(axis=1), return_inverse=True)[1]


def _template_ids(groups: Sequence[_Servers], link_class: Indices) -> Indices:
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


@dataclass(frozen=True, slots=True)
class _Chains:
    """By port and level: the vertex of the switch, and the numbers of the links down from it and up to it."""

    switch: Indices
    down: Indices
    up: Indices


def _chains(topology: Topology, ports: Ports, tree: Tree) -> _Chains | None:
    """The chains of *ports*. None if they differ in length."""
    switch = np.array(tree.leaf_of, np.int64)
    plugged = _plugged(topology, ports, switch)
    if plugged is None:
        return None
    above = np.full(len(topology.vertices), NONE)
    above[list(tree.above)] = list(tree.above.values())
    up, down = np.full_like(above, NONE), np.full_like(above, NONE)
    upward = np.flatnonzero(above[topology.source] == topology.target)
    downward = np.flatnonzero(above[topology.target] == topology.source)
    up[topology.source[upward]], down[topology.target[downward]] = upward, downward
    levels = [(switch, plugged, np.full_like(switch, NONE))]
    while (above[switch] != NONE).any():
        if (above[switch] == NONE).any():
            return None
        levels.append((above[switch], down[switch], up[switch]))
        switch = above[switch]
    return _Chains(*(np.stack(columns, axis=1) for columns in zip(*levels, strict=True)))


def _plugged(topology: Topology, ports: Ports, leaf: Indices) -> Indices | None:
    """By port the link from its *leaf* down to its NIC. None if a switch has another link into a server."""
    inside = topology.vertices.node
    down = np.flatnonzero((inside[topology.source] == NONE) & (inside[topology.target] != NONE))
    if not np.array_equal(np.sort(topology.target[down]), np.sort(ports.nic)):
        return None
    link_to = np.empty(len(inside), np.int64)
    link_to[topology.target[down]] = down
    found = link_to[ports.nic]
    return found if np.array_equal(topology.source[found], leaf) else None


@dataclass(frozen=True, eq=False)
class KindTables:
    """The distinct kinds of vertices, accelerators and links of a cluster, numbered."""

    kinds: Numbering[str]
    accelerators: Numbering[Accelerator]
    links: Numbering[Link]
