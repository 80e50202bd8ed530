"""A testbed is a cluster built for real on one Linux machine: a network of namespaces, veth pairs, bridges and shapers.

Every device of a rank is a network namespace with one interface, every switch a bridge, every link a veth pair with a
token bucket at either end. All bridges are in one namespace, without a connection to the machine's own network. So
contention, oversubscription and placement have the real effects of TCP, independent of any model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

import networkx as nx

from simulator.cluster import Cluster, Link
from simulator.errors import ClusterError
from simulator.processes import blocked
from simulator.replay import signals
from simulator.replay.place import Place
from simulator.replay.testbed.iproute import (
    iproute,
    leftovers,
    listed,
    owner,
    remove,
    set_parameters,
    unavailable_reason,
)
from simulator.replay.testbed.shaper import IPV4_ONLY, ROUTE, SEGMENTS, SETTINGS, delays, shape
from simulator.replay.testbed.switches import switch_tree

INTERFACE = "net0"
"""Of every device."""

NETWORK = "198.18.0"
"""The network reserved for benchmarks (RFC 2544, appendix C.2.2)."""

_built = count()


@dataclass(frozen=True, slots=True)
class Testbed:
    """The *places* of the ranks, and the *cluster* as built: without latencies if the kernel has no netem."""

    places: tuple[Place, ...]
    cluster: Cluster


@contextmanager
def build(cluster: Cluster, devices: Sequence[str]) -> Iterator[Testbed]:
    """Build *cluster* for ranks on *devices*, one each. Ranks on one device share its namespace, interface and address.

    Everything is removed at the end, also after an error, SIGINT, SIGTERM or SIGHUP. Leftovers of killed runs are
    removed first. Raises `ClusterError` for a graph that is not a tree of switches, and if the machine cannot have a
    testbed.
    """
    graph = switch_tree(cluster, devices)
    reason = unavailable_reason()
    if reason:
        raise ClusterError(f"no testbed here: {reason}")
    remove(leftovers())
    run, process = f"{owner()}-{next(_built)}-", os.getpid()
    with signals.orderly_termination():
        try:
            delayed = _Builder(run, graph, tuple(dict.fromkeys(devices))).build()
            yield Testbed(_places(run, devices), cluster if delayed else cluster.map_links(_without_latency))
        finally:
            # a forked child that ends early must not remove its parent's testbed
            if os.getpid() == process:
                with blocked():
                    remove(listed(run))


def _without_latency(link: Link) -> Link:
    return replace(link, latency=0.0)


def _places(run: str, devices: Sequence[str]) -> tuple[Place, ...]:
    number = {device: number for number, device in enumerate(dict.fromkeys(devices), start=1)}
    return tuple(
        Place(rank, _namespace(run, device), INTERFACE, f"{NETWORK}.{number[device]}")
        for rank, device in enumerate(devices)
    )


def _namespace(run: str, device: str) -> str:
    return f"{run}{device.replace(' ', '')}"


@dataclass(frozen=True)
class _Builder:
    """Builds the tree *graph* with *devices* as leaves, in namespaces with the prefix *run*."""

    run: str
    graph: nx.DiGraph[str]
    devices: tuple[str, ...]

    def build(self) -> bool:
        """Build everything and return whether the links have their latencies."""
        fabric = f"{self.run}fabric"
        iproute("ip", [f"netns add {name}" for name in (fabric, *map(self._inside, self.devices))])
        set_parameters(fabric, IPV4_ONLY)
        delayed = delays(fabric)
        iproute("ip", [*self._bridges(), *self._pairs()], fabric)
        iproute("tc", self._shapers(delayed), fabric)
        for number, device in enumerate(self.devices, start=1):
            self._configure(device, number, delayed)
        return delayed

    def _inside(self, device: str) -> str:
        return _namespace(self.run, device)

    def _bridge(self, switch: str) -> str:
        return f"switch{list(self.graph).index(switch)}"

    def _switches(self) -> list[str]:
        return [vertex for vertex in self.graph if vertex not in self.devices]

    def _bridges(self) -> Iterator[str]:
        for switch in self._switches():
            yield f"link add {self._bridge(switch)} type bridge"
            yield f"link set {self._bridge(switch)} up"

    def _ends(self) -> Iterator[list[tuple[str, str, str]]]:
        """For every link its two ends: (vertex of the end, other vertex, name of the interface).

        The first end belongs to a switch.
        """
        for number, (one, other) in enumerate(nx.Graph(self.graph).edges):
            ends = [(one, other, f"port{number}a"), (other, one, f"port{number}b")]
            yield ends if one not in self.devices else ends[::-1]

    def _pairs(self) -> Iterator[str]:
        """The lines of ip that make a veth pair for every link and attach it."""
        together = f"gso_max_segs {SEGMENTS}"
        for (_, _, near), (beyond, _, far) in self._ends():
            peer = f"{INTERFACE} netns {self._inside(beyond)}" if beyond in self.devices else far
            yield f"link add {near} {together} type veth peer name {peer} {together}"
        for switch, _, name in self._ports():
            yield f"link set {name} master {self._bridge(switch)}"
            yield f"link set {name} up"

    def _ports(self) -> Iterator[tuple[str, str, str]]:
        """The ends at switches."""
        return (end for ends in self._ends() for end in ends if end[0] not in self.devices)

    def _shapers(self, delayed: bool) -> Iterator[str]:
        for switch, beyond, name in self._ports():
            yield from shape(name, self.graph.edges[switch, beyond]["link"], delays=delayed)

    def _configure(self, device: str, number: int, delayed: bool) -> None:
        """Give the namespace of *device* its address, its route to all others, and its shaper."""
        inside = self._inside(device)
        set_parameters(inside, SETTINGS)
        address = f"addr add {NETWORK}.{number}/24 dev {INTERFACE}"
        route = f"route replace {NETWORK}.0/24 dev {INTERFACE} {ROUTE}"
        iproute("ip", [address, f"link set {INTERFACE} up", "link set lo up", route], inside)
        link = self.graph.edges[device, next(self.graph.successors(device))]["link"]
        iproute("tc", shape(INTERFACE, link, delays=delayed), inside)
