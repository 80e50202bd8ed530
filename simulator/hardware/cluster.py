"""A cluster is a directed graph of links between devices and switches, with the routes through it.

Vertices and links are numbered and stored as arrays (`simulator.hardware.topology`). The name of a vertex is its kind
and its number in the cluster, ``gpu 17``. The networkx graph is made on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice, pairwise
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.hashing import Indices, counted, distinct
from clustersim.simulator.hardware.links import Floats, Link, Links
from clustersim.simulator.hardware.topology import NONE, Ends, NamesOf, Topology, graph_of, search_route, topology_of
from clustersim.simulator.reading.errors import ClusterError

if TYPE_CHECKING:
    import networkx as nx

    from clustersim.simulator.hardware.regularity import Regularity

__all__ = ["Cluster", "Link", "Router"]

Router = Callable[[int, int], Sequence[int]]
"""From one device to another: the numbers of the vertices on the route, both ends included.

A router has the attribute `hierarchical`, which is true if routes between servers go up a tree of switches and down
again. It may have a method `nic_of` (the NIC on a device's routes to other servers), a method `regularity` (the common
structure of a cluster's servers), a method `paths` (several routes between two devices, for a connection), and an
attribute `chooses`.
"""

LINK_DEPENDENT = ("graph", "regularity", "_link_classes")
"""Cached attributes of a cluster that depend on the properties of its links."""

DEVICE_DEPENDENT = (
    "devices",
    "gpus",
    "hosts",
    "_device_vertices",
    "_numbers_of_vertices",
    "_accelerator_places",
    "_hosts_of",
)
"""Cached attributes of a cluster that depend on which devices it has."""


class Cluster:
    """A *topology* (or a networkx graph), its devices and their routes.

    *router* computes routes from the structure. Without a router a route has the fewest links, and passes through no
    other GPU if possible.

    >>> import networkx as nx
    >>> graph = nx.DiGraph()
    >>> graph.add_node("gpu 0", kind="gpu", node=0, accelerator=Accelerator())
    >>> graph.add_node("gpu 1", kind="gpu", node=0, accelerator=Accelerator())
    >>> graph.add_edge("gpu 0", "gpu 1", link=Link("nvlink3", 25e9, 1e-6))
    >>> cluster = Cluster(graph)
    >>> [cluster.links[i].kind for i in cluster.route("gpu 0", "gpu 1")]
    ['nvlink3']
    """

    def __init__(
        self, topology: Topology | nx.DiGraph[str], router: Router | None = None, name: str = "cluster"
    ) -> None:
        self.topology = topology if isinstance(topology, Topology) else topology_of(topology)
        self.vertices, self.name = self.topology.vertices, name
        self._router = router
        self._replacements: Mapping[Accelerator, Accelerator] = {}
        self._routes: dict[tuple[str, str], tuple[int, ...]] = {}
        # the cluster of which this is a copy with other accelerators, and the same regularity
        self._before: Cluster | None = None
        self._check_links()

    def _check_links(self) -> None:
        """Raise `ClusterError` for the first link without positive bandwidth or with negative latency."""
        bad = [not link.bandwidth > 0 or not link.latency >= 0 for link in self.links.distinct]
        if not any(bad):
            return
        for number in np.flatnonzero(np.array(bad, np.bool_)[self.links.which])[:1].tolist():
            source, target = self.ends[number]
            link = self.links[number]
            raise ClusterError(f"{source} - {target}: bandwidth must be above 0, latency at least 0: {link}")

    @property
    def links(self) -> Links:
        """The links by number."""
        return self.topology.links

    @cached_property
    def ends(self) -> Sequence[tuple[str, str]]:
        """The source and target vertex of each link, by number."""
        return Ends(self.topology)

    @cached_property
    def graph(self) -> nx.DiGraph[str]:
        """The topology as a networkx graph. Changes of the graph do not change the cluster."""
        return graph_of(self.topology)

    @property
    def hierarchical(self) -> bool:
        """Whether routes between servers go up a tree and down. Then the routes to one device determine all others."""
        return getattr(self._router, "hierarchical", False)

    @property
    def chooses(self) -> bool:
        """Whether a user has said how switches choose among equal-cost paths."""
        return getattr(self._router, "chooses", False)

    @cached_property
    def regularity(self) -> Regularity | None:
        """The common structure of the servers. None if the router knows of none."""
        if self._before is not None:
            return self._before.regularity
        found: Callable[[Cluster], Regularity | None] | None = getattr(self._router, "regularity", None)
        return found(self) if found else None

    @cached_property
    def cables(self) -> frozenset[int]:
        """The numbers of the links between switches of the fabric."""
        return frozenset(self.topology.cables.tolist())

    @cached_property
    def devices(self) -> Sequence[str]:
        """The GPUs, then the hosts."""
        return NamesOf(self.vertices.names, self._device_vertices)

    @cached_property
    def gpus(self) -> Sequence[str]:
        """The GPUs in order."""
        return NamesOf(self.vertices.names, self.vertices.of_kind("gpu"))

    @cached_property
    def hosts(self) -> Sequence[str]:
        """The host processors (sockets) in order."""
        return NamesOf(self.vertices.names, self.vertices.of_kind("host"))

    @cached_property
    def _device_vertices(self) -> Indices:
        """The vertices of `devices`."""
        return np.concatenate([self.vertices.of_kind("gpu"), self.vertices.of_kind("host")])

    @cached_property
    def _numbers_of_vertices(self) -> Indices:
        """By vertex its number in `devices`; `NONE` for vertices that are no device."""
        numbers = np.full(len(self.vertices) + 1, NONE)
        numbers[self._device_vertices] = np.arange(len(self._device_vertices))
        return numbers

    def _number_of(self, device: str) -> int:
        """The number of *device* in `devices`. Raises `KeyError` if it is not among them."""
        vertex = self.vertices.names.find(device)
        number = NONE if vertex is None else int(self._numbers_of_vertices[vertex])
        if number == NONE:
            raise KeyError(device)
        return number

    def numbers(self, devices: Sequence[str]) -> Indices:
        """Return the numbers of *devices* in `Cluster.devices`."""
        if isinstance(devices, NamesOf) and devices.names is self.vertices.names:
            if np.array_equal(devices.vertices, self._device_vertices[: len(devices)]):
                return np.arange(len(devices))
            numbers = self._numbers_of_vertices[devices.vertices]
            if (numbers != NONE).all():
                return numbers
        return np.fromiter(map(self._number_of, devices), np.int64, len(devices))

    def devices_of(self, numbers: Indices) -> Sequence[str]:
        """Return the devices with these *numbers*."""
        return NamesOf(self.vertices.names, self._device_vertices[numbers])

    def vertex(self, name: str) -> int:
        """Return the number of the vertex *name*. Raises `ClusterError` if there is none."""
        found = self.vertices.names.find(name)
        if found is None:
            raise ClusterError(f'{self.name} has no vertex "{name}"')
        return found

    def accelerator(self, device: str) -> Accelerator:
        """Return the accelerator of *device*, a GPU or a host."""
        return self._accelerators[int(self._accelerator_places[self._number_of(device)])]

    def accelerators(self, devices: Sequence[str]) -> tuple[Sequence[Accelerator], Indices]:
        """Return distinct accelerators, and for each of *devices*, GPUs or hosts, the place of its own among them."""
        return self._accelerators, self._accelerator_places[self.numbers(devices)]

    def count(self, devices: Sequence[str]) -> dict[Accelerator, int]:
        """Return the accelerators of the GPUs among *devices*, and the number of each."""
        numbers = self.numbers(devices)
        on_gpu = numbers < len(self.gpus)
        places = self._accelerator_places[numbers if on_gpu.all() else numbers[on_gpu]]
        return dict(zip(*counted(self._accelerators, places), strict=True))

    @cached_property
    def _accelerators(self) -> Sequence[Accelerator]:
        """The distinct accelerators."""
        return tuple(dict.fromkeys(self._replacements.get(own, own) for own in self.vertices.accelerators))

    @cached_property
    def _accelerator_places(self) -> Indices:
        """By number of a device the place of its accelerator in `_accelerators`."""
        replaced = [self._replacements.get(own, own) for own in self.vertices.accelerators]
        places = np.array([*map(self._accelerators.index, replaced), NONE], np.int64)
        return places[self.vertices.accelerator[self._device_vertices]]

    def with_accelerators(self, replacements: Mapping[Accelerator, Accelerator]) -> Cluster:
        """Return the cluster with *replacements* (old -> new) of accelerators. Links and routes are the same."""
        other = copy(self)
        for name in ("_accelerators", "_accelerator_places"):
            other.__dict__.pop(name, None)
        # a replacement may be replaced in turn
        earlier = {old: replacements.get(new, new) for old, new in self._replacements.items()}
        other._replacements = {**replacements, **earlier}
        other._before = self
        return other

    def on_nodes(self, nodes: Collection[int | str]) -> Cluster:
        """Return the cluster with the devices of *nodes* alone, in the order of the cluster. Links are the same."""
        other = copy(self)
        for name in DEVICE_DEPENDENT:
            other.__dict__.pop(name, None)
        of = np.array([self.node_of(device) in nodes for device in self.devices], np.bool_)
        gpus, hosts = np.split(self._device_vertices, [len(self.gpus)])
        other.__dict__["gpus"] = NamesOf(self.vertices.names, gpus[of[: len(gpus)]])
        other.__dict__["hosts"] = NamesOf(self.vertices.names, hosts[of[len(gpus) :]])
        other.__dict__["_device_vertices"] = self._device_vertices[of]
        # it numbers all devices
        other.__dict__["regularity"] = None
        return other

    def node_of(self, device: str) -> int | str:
        """Return the server of *device*. A device without a server is a server of its own."""
        return self.vertices.node_of(self.vertex(device))

    def first_of_nodes(self, devices: Sequence[str]) -> list[str]:
        """Return the first of *devices* in each server."""
        _, first = np.unique(self.servers(self.numbers(devices)), return_index=True)
        return [devices[place] for place in np.sort(first).tolist()]

    def host_of(self, gpu: str) -> str:
        """Return the host that *gpu* copies to: the nearest one of its own server, by number of links."""
        hosts = self._hosts_of.get(self.node_of(gpu), self.hosts)
        if not hosts:
            raise ClusterError(f"{gpu} has no host to copy to; give the cluster hosts")
        return min(hosts, key=lambda host: len(self.route(gpu, host)))

    def copy_path(self, device: str, source: str, to: str) -> tuple[int, ...]:
        """Return the links of a copy by *device* from *source* to *to*, each ``gpu``, ``host`` or ``nvme``.

        A copy from or to the host passes the link of its memory. Raises `ClusterError` if the node has no such place.
        """
        ends = {"gpu": device, "host": self.host_of(device)}
        if "nvme" in (source, to):
            ends["nvme"] = self.drive_of(device)
        memory = self._link_between(ends["host"], ends["host"])
        own = () if memory is None or "host" not in (source, to) else (memory,)
        route = () if source == to else self.route(ends[source], ends[to])
        return (*own, *route) if source == "host" else (*route, *own)

    def host_memory(self, devices: Sequence[str]) -> float:
        """Return the bytes of memory of all hosts of one server: the least among the servers of *devices*.

        A server without hosts has no limit.
        """
        if not self.hosts:
            return inf
        servers, which = np.unique(self.servers(self.numbers(self.hosts)), return_inverse=True)
        accelerators, places = self.accelerators(self.hosts)
        memory = np.bincount(which, np.array([one.memory_bytes for one in accelerators])[places], len(servers))
        theirs = distinct(self.servers(self.numbers(devices)))
        least: float = memory[np.isin(servers, theirs)].min(initial=inf)
        return least

    def servers(self, numbers: Indices) -> Indices:
        """Return the server of each of the devices with these *numbers*, as a number.

        A device without a server is a server of its own.
        """
        vertex = self._device_vertices[numbers]
        return np.where(self.vertices.node[vertex] == NONE, NONE - 1 - vertex, self.vertices.node[vertex])

    def drive_of(self, device: str) -> str:
        """Return the NVMe drives of the server of *device*. Raises `ClusterError` if there are none."""
        drive = self._drives.get(self.node_of(device))
        if drive is None:
            raise ClusterError(f"the node of {device} has no NVMe drive; give the node nvme: {{read, write, capacity}}")
        return drive

    def drive_capacity(self, device: str) -> float:
        """Return the bytes of the NVMe drives of the server of *device*; 0 without drives."""
        drive = self._drives.get(self.node_of(device))
        if drive is None:
            return 0.0
        return self.vertices.accelerators[int(self.vertices.accelerator[self.vertex(drive)])].memory_bytes

    @cached_property
    def _drives(self) -> Mapping[int | str, str]:
        """The vertex of the NVMe drives of each server that has some."""
        numbers = self.vertices.of_kind("nvme")
        names = self.vertices.names.of(numbers)
        return {self.vertices.node_of(vertex): name for vertex, name in zip(numbers.tolist(), names, strict=True)}

    @cached_property
    def _hosts_of(self) -> Mapping[int | str, Sequence[str]]:
        """The hosts of each server that has some."""
        found: dict[int | str, list[str]] = {}
        for host in self.hosts:
            found.setdefault(self.node_of(host), []).append(host)
        return found

    def route(self, source: str, target: str) -> tuple[int, ...]:
        """Return the numbers of the links from *source* to *target*, in order.

        Raises `ClusterError` if there is no route.
        """
        key = source, target
        if key not in self._routes:
            path = self._path(self.vertex(source), self.vertex(target))
            self._routes[key] = self._links(path, source, target)
        return self._routes[key]

    def paths(self, source: str, target: str, connection: int = 0) -> tuple[tuple[int, ...], ...]:
        """Return the links of each path that bytes of a *connection* take; each path carries an equal share.

        Without a choice among equal-cost paths it is the route alone. Raises `ClusterError` if there is no route.
        """
        several: Callable[[int, int, int], Sequence[Sequence[int]]] | None = getattr(self._router, "paths", None)
        if several is None:
            return (self.route(source, target),)
        found = several(self.vertex(source), self.vertex(target), connection)
        return tuple(self._links(path, source, target) for path in found)

    def _links(self, path: Sequence[int], source: str, target: str) -> tuple[int, ...]:
        """The numbers of the links of *path* between vertices. Raises `ClusterError` if there is no such link."""
        leaving = self.topology.leaving
        try:
            return tuple([leaving(a)[b] for a, b in pairwise(path)])
        except (KeyError, IndexError, TypeError):
            names = self.vertices.names
            told = [names[one] if isinstance(one, int) and 0 <= one < len(names) else repr(one) for one in path]
            missing = next((f"{a} to {b}" for a, b in pairwise(told) if self._link_between(a, b) is None), "")
            raise ClusterError(
                f"the route of the fabric from {source} to {target} takes {', '.join(told)}, but there is no link from "
                f"{missing}; a route names the switches in order, each joined to the next"
            ) from None

    def reversed(self, path: Sequence[int]) -> tuple[int, ...]:
        """Return the links of *path* in the opposite direction, from its end to its begin."""
        source, target = self.topology.source[list(path)].tolist(), self.topology.target[list(path)].tolist()
        ends = list(zip(source, target, strict=True))[::-1]
        return tuple([self.topology.leaving(b)[a] for a, b in ends])

    def _path(self, source: int, target: int) -> Sequence[int]:
        if self._router:
            return self._router(source, target)
        names = self.vertices.names
        return [self.vertex(name) for name in search_route(self.graph, self.gpus, names[source], names[target])]

    def number(self, source: str, target: str) -> int:
        """Return the number of the link from one vertex to the next. Raises `KeyError` if there is none."""
        number = self._link_between(source, target)
        if number is None:
            raise KeyError(f"no link from {source} to {target}")
        return number

    def _link_between(self, source: str, target: str) -> int | None:
        names = self.vertices.names
        if source not in names or target not in names:
            return None
        return self.topology.leaving(self.vertex(source)).get(self.vertex(target))

    def linked(self, one: str, other: str) -> bool:
        """Whether a link joins two vertices, in either direction."""
        return self._link_between(one, other) is not None or self._link_between(other, one) is not None

    def between(self, devices: Sequence[str]) -> list[list[float]]:
        """Return the bandwidth of the link from each of *devices* to each, bytes/s; 0 if there is none."""
        vertices = [self.vertex(device) for device in devices]
        rows = [self.topology.leaving(vertex) for vertex in vertices]
        return [[self.links[row[v]].bandwidth if v in row else 0.0 for v in vertices] for row in rows]

    def kinds_passed(self, route: Sequence[int]) -> list[str]:
        """Return the kinds of the vertices at the ends of the links of *route*."""
        return [self.vertices.kinds[kind] for kind in self.vertices.kind[self.topology.target[list(route)]].tolist()]

    def nic_of(self, device: str, elsewhere: str) -> str | None:
        """Return the NIC through which *device* reaches a device of another server. None if no NIC is on the route."""
        found: Callable[[int], int] | None = getattr(self._router, "nic_of", None)
        if found:
            return self.vertices.names[found(self.vertex(device))]
        route = self.route(device, elsewhere)
        kinds = self.kinds_passed(route)
        return self.ends[route[kinds.index("nic")]][1] if "nic" in kinds else None

    def link_class(self, number: int) -> int:
        """Return a number that two links share only if they are one `Link` between vertices of the same kinds."""
        return int(self._link_classes[number])

    @cached_property
    def _link_classes(self) -> Indices:
        kind, links, which = self.vertices.kind, self.links, self.links.which
        ends = kind[self.topology.source] * len(self.vertices.kinds) + kind[self.topology.target]
        classes: Indices = np.unique(ends * len(links.distinct) + which, return_inverse=True)[1]
        return classes

    def bandwidths_of(self, links: Indices) -> Floats:
        """Return the bandwidth of each of *links*, by number, bytes/s."""
        return self.links.some(links, lambda link: link.bandwidth)

    @property
    def bandwidths(self) -> Floats:
        """The bandwidth of each link, bytes/s."""
        return self.links.bandwidths

    def latency(self, route: Iterable[int]) -> float:
        """Return the sum of the links' latencies, s."""
        return self.latencies_of([tuple(route)])[0]

    def latencies_of(self, routes: Sequence[Sequence[int]]) -> list[float]:
        """Return the latency of each route, s."""
        numbers = np.fromiter(chain.from_iterable(routes), np.int64, sum(map(len, routes)))
        each = iter(self.links.some(numbers, lambda link: link.latency).tolist())
        return [sum(islice(each, len(route))) for route in routes]

    def degraded(self, factors: Iterable[tuple[str, str, float]]) -> Cluster:
        """Return the cluster with a factor on the bandwidth between pairs of vertices, in both directions."""
        changed: dict[int, Link] = {}
        for source, target, factor in factors:
            both = self._link_between(source, target), self._link_between(target, source)
            numbers = [number for number in both if number is not None]
            if not numbers:
                near = ", ".join(self._near(source))
                raise ClusterError(f"no link between {source} and {target}; there are: {near}")
            for number in numbers:
                link = changed.get(number, self.links[number])
                changed[number] = replace(link, bandwidth=link.bandwidth * factor)
        return self._with(self.links.replaced(changed))

    def _near(self, vertex: str) -> list[str]:
        """The names of the neighbours of *vertex*, or some names if there is no such vertex."""
        names = self.vertices.names
        if vertex not in names:
            return sorted(names)[:8]
        return sorted(names[other] for other in self.topology.leaving(self.vertex(vertex)))

    def map_links(self, change: Callable[[Link], Link]) -> Cluster:
        """Return the cluster with every link replaced by *change* of it."""
        return self._with(self.links.mapped(change))

    def _with(self, links: Links) -> Cluster:
        """The cluster with other *links* between the same vertices. Routes are the same."""
        other = copy(self)
        for name in LINK_DEPENDENT:
            other.__dict__.pop(name, None)
        if self.__dict__.get("regularity", self) is None:
            # no links make servers regular whose devices are not
            other.__dict__["regularity"] = None
        other.topology, other._before = replace(self.topology, links=links), None
        other._check_links()
        return other
