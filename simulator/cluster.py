"""A cluster is a directed graph of links between devices and switches, and the routes through it.

Vertices carry `kind` (gpu, host, nvswitch, pcie_switch, nic, leaf, spine ...) and `node`, the number of the server they
belong to (absent on switches of the fabric); GPUs and hosts carry `accelerator`. Edges carry `link`. A vertex is named
by its kind and its number in the cluster, ``gpu 17``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from simulator.accelerator import Accelerator
from simulator.errors import ClusterError

if TYPE_CHECKING:
    from simulator.regularity import Regularity

Router = Callable[[str, str], Sequence[str]]
"""From one device to another: the vertices passed, both ends included.

A router says that it is `hierarchical` if between servers it goes up a tree of switches and down again.
"""


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link: *kind* (nvlink3, pcie4, ib_hdr ...), *bandwidth* in bytes/s, *latency* in s."""

    kind: str
    bandwidth: float
    latency: float


class Cluster:
    """*graph*, its devices and their routes.

    *router* gives routes by structure; without one a route has the fewest links, and passes through no other GPU
    where that can be.

    >>> graph = nx.DiGraph()
    >>> graph.add_node("gpu 0", kind="gpu", node=0, accelerator=Accelerator())
    >>> graph.add_node("gpu 1", kind="gpu", node=0, accelerator=Accelerator())
    >>> graph.add_edge("gpu 0", "gpu 1", link=Link("nvlink3", 25e9, 1e-6))
    >>> cluster = Cluster(graph)
    >>> [cluster.links[i].kind for i in cluster.route("gpu 0", "gpu 1")]
    ['nvlink3']
    """

    def __init__(self, graph: nx.DiGraph[str], router: Router | None = None, name: str = "cluster") -> None:
        self.graph, self.name = graph, name
        self._router = router
        self._instead: Mapping[Accelerator, Accelerator] = {}
        self._routes: dict[tuple[str, str], tuple[int, ...]] = {}
        leaving = [(source, others) for source, others in graph.adjacency()]
        self.ends: tuple[tuple[str, str], ...] = tuple(
            (source, other) for source, others in leaving for other in others
        )
        self.links: tuple[Link, ...] = tuple(data["link"] for _, others in leaving for data in others.values())
        self._leaving: dict[str, dict[str, int]] = {}
        self._sorts: dict[tuple[str, str, Link], int] = {}
        self._sort_of: dict[int, int] = {}
        if any(
            not link.bandwidth > 0 or not link.latency >= 0 for link in {id(link): link for link in self.links}.values()
        ):
            _blame_a_link(self.ends, self.links)

    @property
    def hierarchical(self) -> bool:
        """Whether routes between servers go up a tree and down: those to one device then tell all others."""
        return getattr(self._router, "hierarchical", False)

    @cached_property
    def regularity(self) -> Regularity | None:
        """What its servers have in common; None where the router knows of nothing."""
        found: Callable[[Cluster], Regularity | None] | None = getattr(self._router, "regularity", None)
        return found(self) if found else None

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The GPUs, then the hosts."""
        return *self.gpus, *self.hosts

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs in order."""
        return self._of_kind("gpu")

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """The host processors (sockets) in order."""
        return self._of_kind("host")

    def _of_kind(self, kind: str) -> tuple[str, ...]:
        return tuple(vertex for vertex, own in attributes(self.graph, "kind").items() if own == kind)

    def accelerator(self, device: str) -> Accelerator:
        """What computes at *device*, a GPU or a host."""
        return self._accelerators[device]

    def count(self, devices: Iterable[str]) -> dict[Accelerator, int]:
        """The accelerators of those of *devices* that are GPUs, and how many there are of each."""
        found = [self._accelerators[device] for device in devices if device not in self._host_set]
        numbers = Counter(map(id, found))
        count: dict[Accelerator, int] = {}
        for one in {id(one): one for one in found}.values():
            count[one] = count.get(one, 0) + numbers[id(one)]
        return count

    @cached_property
    def _host_set(self) -> frozenset[str]:
        return frozenset(self.hosts)

    @cached_property
    def _accelerators(self) -> Mapping[str, Accelerator]:
        own: Mapping[str, Accelerator] = attributes(self.graph, "accelerator")
        instead = {id(one): self._instead.get(one, one) for one in {id(one): one for one in own.values()}.values()}
        return {vertex: instead[id(accelerator)] for vertex, accelerator in own.items()}

    def equipped(self, instead: Mapping[Accelerator, Accelerator]) -> Cluster:
        """The cluster in which other accelerators stand *instead*; links and routes are the same."""
        other = copy(self)
        other.__dict__.pop("_accelerators", None)
        # what already stands in another's place may be replaced in turn
        placed = {old: instead.get(new, new) for old, new in self._instead.items()}
        other._instead = {**instead, **placed}
        return other

    def node_of(self, device: str) -> int | str:
        """The server that *device* stands in; a device that names none is a server of its own."""
        node: int | str = self.graph.nodes[device].get("node", device)
        return node

    def host_of(self, gpu: str) -> str:
        """The host that *gpu* copies to: the first one, in fewest links, of its own server."""
        hosts = self._hosts_of.get(self.node_of(gpu), self.hosts)
        if not hosts:
            raise ClusterError(f"{gpu} has no host to copy to; give the cluster hosts")
        return min(hosts, key=lambda host: len(self.route(gpu, host)))

    @cached_property
    def _hosts_of(self) -> Mapping[int | str, Sequence[str]]:
        """The hosts of each server that has some."""
        found: dict[int | str, list[str]] = {}
        for host in self.hosts:
            found.setdefault(self.node_of(host), []).append(host)
        return found

    def route(self, source: str, target: str) -> tuple[int, ...]:
        """The numbers of the links from *source* to *target*, in order. Raises `ClusterError` if there is no way."""
        key = source, target
        if key not in self._routes:
            path = self._router(source, target) if self._router else self._shortest(source, target)
            self._routes[key] = tuple(self.number(*pair) for pair in pairwise(path))
        return self._routes[key]

    def number(self, source: str, target: str) -> int:
        """The number of the link from one vertex to the next."""
        if source not in self._leaving:
            self._leaving[source] = {other: n for n, other in enumerate(self.graph[source], self._first[source])}
        return self._leaving[source][target]

    @cached_property
    def _first(self) -> Mapping[str, int]:
        """By vertex the number of the first link that leaves it."""
        counts = (len(others) for _, others in self.graph.adjacency())
        return dict(zip(self.graph, accumulate(counts, initial=0), strict=False))

    def sort(self, number: int) -> int:
        """A number that two links share only if they are one `Link` between vertices of the same kinds."""
        if number not in self._sort_of:
            source, target = self.ends[number]
            kinds = self.graph.nodes[source]["kind"], self.graph.nodes[target]["kind"], self.links[number]
            self._sort_of[number] = self._sorts.setdefault(kinds, len(self._sorts))
        return self._sort_of[number]

    @cached_property
    def bandwidths(self) -> NDArray[np.float64]:
        """By number of a link its bandwidth, bytes/s."""
        return np.fromiter((link.bandwidth for link in self.links), np.float64, len(self.links))

    def latency(self, route: Iterable[int]) -> float:
        """The sum of the links' latencies, in s."""
        return sum(self.links[number].latency for number in route)

    def degraded(self, factors: Iterable[tuple[str, str, float]]) -> Cluster:
        """The cluster in which the bandwidth between two vertices, both directions, is multiplied by a factor."""
        graph = self.graph.copy()
        for source, target, factor in factors:
            pairs = [pair for pair in ((source, target), (target, source)) if graph.has_edge(*pair)]
            if not pairs:
                near = sorted(graph.successors(source)) if source in graph else sorted(graph)[:8]
                raise ClusterError(f"no link between {source} and {target}; there are: {', '.join(near)}")
            for pair in pairs:
                link: Link = graph.edges[pair]["link"]
                graph.edges[pair]["link"] = replace(link, bandwidth=link.bandwidth * factor)
        return Cluster(graph, self._router, self.name)

    def relinked(self, change: Callable[[Link], Link]) -> Cluster:
        """The cluster in which every link gives way to what *change* makes of it."""
        graph, links = self.graph.copy(), {link: change(link) for link in self.links}
        for data in graph.edges.values():
            data["link"] = links[data["link"]]
        return Cluster(graph, self._router, self.name).equipped(self._instead)

    def _shortest(self, source: str, target: str) -> list[str]:
        others = [gpu for gpu in self.gpus if gpu not in (source, target)]
        for graph in (nx.restricted_view(self.graph, others, []), self.graph):
            try:
                path: list[str] = nx.shortest_path(graph, source, target)
            except (nx.NetworkXNoPath, nx.NodeNotFound):
                continue
            return path
        raise ClusterError(f"there is no way from {source} to {target}")


def attributes(graph: nx.DiGraph[str], name: str) -> Mapping[str, Any]:
    """By vertex its attribute of that *name*, of those that have one."""
    pairs: Any = graph.nodes(data=name)
    return {vertex: value for vertex, value in pairs if value is not None}


def _blame_a_link(ends: Iterable[tuple[str, str]], links: Iterable[Link]) -> None:
    """Raise `ClusterError` for the first link that has no bandwidth, or less than no latency."""
    for (source, target), link in zip(ends, links, strict=True):
        if not link.bandwidth > 0 or not link.latency >= 0:
            raise ClusterError(f"{source} - {target}: bandwidth must be above 0, latency at least 0: {link}")
