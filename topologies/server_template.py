"""A server template: one wiring as arrays, instantiated many times with numbers of the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.hashing import Indices, Numbering
from clustersim.simulator.hardware.links import Link
from clustersim.simulator.hardware.topology import NONE
from clustersim.topologies.wiring.server import Wiring


@dataclass(frozen=True, eq=False)
class KindTables:
    """The distinct kinds of vertices, accelerators and links of a cluster, numbered."""

    kinds: Numbering[str]
    accelerators: Numbering[Accelerator]
    links: Numbering[Link]


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
