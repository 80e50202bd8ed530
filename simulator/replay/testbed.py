"""A testbed is a cluster built for real on one Linux machine: a network of namespaces, veth pairs, bridges, and
shapers (token buckets, which limit an interface to the rate of its link). Its switches must form a tree.

A testbed has Ethernet frames of 1,500 B. tc does not count checksum, preamble and gap of a frame, 24 of the 1,538 B on
a wire. So its rate is lower by that share, and full frames take as long as on a wire. The kernel passes several
segments of TCP at once and shapes them as one packet. They are few enough that a bucket of their size hardly shortens a
message, and many enough that two cores can carry a network.

Every device of a rank is a network namespace with one interface, every switch a bridge, every link a veth pair with a
token bucket at either end. All bridges are in one namespace, without a connection to the machine's own network. So
contention, oversubscription and placement have the real effects of TCP, independent of any model.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import networkx as nx

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.links import Link
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ClusterError
from clustersim.simulator.replay import rank_process
from clustersim.simulator.replay.network_namespaces import (
    iproute,
    leftovers,
    listed,
    owner,
    remove,
    set_parameters,
    unavailable_reason,
)
from clustersim.simulator.replay.rank_process import NetworkPlace, blocked

FRAME = 1514
"""Bytes of a full frame as tc counts it."""

COUNTED = FRAME / 1538
"""Share of a frame that tc counts: all but checksum (4 B), preamble (8 B) and gap (12 B; IEEE 802.3)."""

SEGMENTS = 3
"""TCP segments in one packet. On two cores one segment carries 430 of 500 Mb/s, three carry all of it (measured)."""

LATE = 75e-6
"""s by which the kernel's timer may be late while the link stays full: the bucket holds the bytes of that time."""

BUFFER = 2**26
"""Bytes that may queue before a link. More than the windows of all connections together, so no frame is lost."""

WINDOW = 6 * SEGMENTS * 1448
"""Bytes that a connection may have in the network: more than 500 Mb/s carry in 0.2 ms, yet a queue of few ms. All
connections have the same window, so those that share a link share it evenly.
"""

ROUTE = f"window {WINDOW} initcwnd {WINDOW // 1448}"
"""Options of the routes (ip-route(8)): the window to offer, and the initial window."""

IPV4_ONLY = (("net.ipv6.conf.all.disable_ipv6", "1"),)
"""Of every namespace: IPv6 would look for neighbours."""

SETTINGS = (
    *IPV4_ONLY,
    ("net.ipv4.tcp_congestion_control", "reno"),
    ("net.ipv4.tcp_slow_start_after_idle", "0"),
    ("net.ipv4.tcp_no_metrics_save", "1"),
)
"""Kernel parameters of the devices' namespaces. No frame is lost, so every congestion control grows to the window. Reno
exists in every kernel and never slows down to probe. A window that stays open after a pause avoids a slow start within
a step.
"""

RANKS = 16
"""With more processes than this, ranks would wait for the cores of a common machine instead of the network."""

DEVICES = ("gpu", "host")
"""Kinds of vertices that do not forward. All others are switches."""

INTERFACE = "net0"
"""Of every device."""

NETWORK = "198.18.0"
"""The network reserved for benchmarks (RFC 2544, appendix C.2.2)."""

_built = count()


@dataclass(frozen=True, slots=True)
class Testbed:
    """The *places* of the ranks, and the *cluster* as built: without latencies if the kernel has no netem."""

    places: tuple[NetworkPlace, ...]
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
    with rank_process.orderly_termination():
        try:
            delayed = _TestbedBuilder(run, graph, tuple(dict.fromkeys(devices))).build()
            yield Testbed(_places(run, devices), cluster if delayed else cluster.map_links(_without_latency))
        finally:
            # a forked child that ends early must not remove its parent's testbed
            if os.getpid() == process:
                with blocked():
                    remove(listed(run))


def _without_latency(link: Link) -> Link:
    return replace(link, latency=0.0)


def _places(run: str, devices: Sequence[str]) -> tuple[NetworkPlace, ...]:
    number = {device: number for number, device in enumerate(dict.fromkeys(devices), start=1)}
    return tuple(
        NetworkPlace(rank, _namespace(run, device), INTERFACE, f"{NETWORK}.{number[device]}")
        for rank, device in enumerate(devices)
    )


def _namespace(run: str, device: str) -> str:
    return f"{run}{device.replace(' ', '')}"


@dataclass(frozen=True)
class _TestbedBuilder:
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


def switch_tree(cluster: Cluster, devices: Sequence[str]) -> nx.DiGraph[str]:
    """Return the part of the graph that connects *devices*, those of all ranks, without other devices.

    Raises `ClusterError` unless it is a tree with the devices as leaves and every link goes both ways.
    """
    if len(devices) > RANKS:
        raise ClusterError(f"a testbed carries up to {RANKS} ranks, not {len(devices)}")
    for device in dict.fromkeys(devices):
        _check_leaf(cluster, device)
    graph = _without_idle(cluster, devices)
    fault = _fault(graph, devices)
    if fault:
        raise _no_tree(cluster, fault)
    return graph


def _no_tree(cluster: Cluster, fault: str) -> ClusterError:
    return ClusterError(f"cluster {cluster.name} is not a tree of switches, as a testbed must be: {fault}")


def _check_leaf(cluster: Cluster, device: str) -> None:
    beyond = sorted({*cluster.graph.successors(device), *cluster.graph.predecessors(device)})
    if len(beyond) != 1 or _is_device(cluster.graph, beyond[0]):
        linked = ", ".join(beyond) or "nothing"
        raise _no_tree(cluster, f"{device} must be linked to one switch, but is linked to {linked}")


def _is_device(graph: nx.DiGraph[str], vertex: str) -> bool:
    return graph.nodes[vertex]["kind"] in DEVICES


def _without_idle(cluster: Cluster, devices: Sequence[str]) -> nx.DiGraph[str]:
    """The component of *devices* without leaves that no rank uses."""
    graph = cluster.graph
    idle = [v for v in graph if v not in devices and _is_device(graph, v) and graph.degree(v) <= 2]
    left = nx.restricted_view(graph, idle, [])
    return nx.DiGraph(left.subgraph(nx.node_connected_component(nx.Graph(left), devices[0])))


def _fault(graph: nx.DiGraph[str], devices: Sequence[str]) -> str | None:
    """The reason why *graph* is not such a tree."""
    undirected = nx.Graph(graph)
    one_way = next((ends for ends in graph.edges if not graph.has_edge(*reversed(ends))), None)
    between = next((v for v in graph if v not in devices and _is_device(graph, v)), None)
    apart = next((device for device in devices if device not in graph), None)
    if one_way:
        return f"the link from {one_way[0]} to {one_way[1]} has no reverse link"
    if apart:
        return f"there is no route from {devices[0]} to {apart}"
    if between:
        return f"{between} is on routes between others; only switches may be"
    if not nx.is_tree(undirected):
        return f"there is a cycle {' - '.join(end for end, _ in nx.find_cycle(undirected))}"
    return None


def shape(interface: str, link: Link, *, delays: bool) -> Iterator[str]:
    """Yield the lines of tc that limit *interface* to *link*.

    They include the link's latency if the kernel *delays* frames (netem).
    """
    rate = link.bandwidth * COUNTED
    burst = round(SEGMENTS * FRAME + LATE * rate)
    bucket = f"tbf rate {round(8 * rate)}bit burst {burst} limit {BUFFER}"
    if delays and link.latency:
        # the bucket is netem's child, as in tc-netem(8); the limit counts packets
        yield f"qdisc add dev {interface} root handle 1: netem delay {link.latency * 1e6:.3f}us limit {BUFFER // FRAME}"
        yield f"qdisc add dev {interface} parent 1:1 handle 10: {bucket}"
    else:
        yield f"qdisc add dev {interface} root {bucket}"


def delays(namespace: str) -> bool:
    """Whether the kernel can delay frames, that is, has the queueing discipline netem."""
    trial = ["tc", "-n", namespace, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1us"]
    if subprocess.run(trial, capture_output=True, check=False).returncode:
        return False
    subprocess.run(["tc", "-n", namespace, "qdisc", "del", "dev", "lo", "root"], capture_output=True, check=False)
    return True
