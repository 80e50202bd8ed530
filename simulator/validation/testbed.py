"""A testbed is a cluster built for real on one Linux machine: a network of namespaces, veth pairs, bridges and shapers.

Every device that a rank lives on is a network namespace with one interface, every switch a bridge, every link a veth
pair with a token bucket at either end. All bridges stand in one namespace, and nothing is connected to the machine's
own network. What TCP makes of contention, oversubscription and placement there is no model's doing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from types import FrameType
from typing import NoReturn

import networkx as nx

from simulator.cluster import Cluster
from simulator.errors import ClusterError
from simulator.validation.iproute import iproute, leftovers, listed, owner, remove, setting, why_not
from simulator.validation.place import Place
from simulator.validation.shaper import ROUTE, SEGMENTS, SETTINGS, delays, shape

RANKS = 16
"""More than these processes would wait for the cores of a common machine, not for the network."""

INTERFACE = "net0"

NETWORK = "198.18.0"
"""The network set aside for benchmarks (RFC 2544, appendix C.2.2)."""

_built = count()


@dataclass(frozen=True, slots=True)
class Bed:
    """The *places* of the ranks, and the *cluster* as it stands: without latencies where the kernel has no netem."""

    places: tuple[Place, ...]
    cluster: Cluster


@contextmanager
def build(cluster: Cluster, devices: Sequence[str]) -> Iterator[Bed]:
    """Build *cluster* for ranks on *devices*, one each; ranks on one device share its namespace, interface and address.

    All is taken down at the end, also after an error, SIGINT, SIGTERM or SIGHUP; what a killed run left is removed
    first. Raises `ClusterError` for a graph that is no tree of switches, and where the machine cannot have a testbed.
    """
    check(cluster, devices)
    reason = why_not()
    if reason:
        raise ClusterError(f"no testbed here: {reason}")
    remove(leftovers())
    run, process = f"{owner()}-{next(_built)}-", os.getpid()
    with _ending_in_order():
        try:
            yield _built_as(run, cluster, devices)
        finally:
            # a forked child that ends early must not take the testbed of its parent with it
            if os.getpid() == process:
                with _undisturbed():
                    remove(listed(run))


def check(cluster: Cluster, devices: Sequence[str]) -> None:
    """Hold *cluster* against what a testbed can be; raises `ClusterError`."""
    graph = cluster.graph
    if len(devices) > RANKS:
        raise ClusterError(f"a testbed carries up to {RANKS} ranks, not {len(devices)}")
    for source, target in graph.edges:
        if not graph.has_edge(target, source):
            raise ClusterError(f"{_no_tree(cluster)}: the link from {source} to {target} has no way back")
    for device in dict.fromkeys(devices):
        if graph.degree(device) != 2:
            links = ", ".join(sorted(graph.successors(device))) or "nothing"
            raise ClusterError(f"{_no_tree(cluster)}: {device} must hang on one switch, and it is linked to {links}")
    used = _used(cluster, devices)
    between = next((v for v in used if v not in devices and graph.nodes[v]["kind"] in ("gpu", "host")), None)
    if between:
        raise ClusterError(f"{_no_tree(cluster)}: {between} stands between others, where only a switch may")
    if not nx.is_tree(nx.Graph(used)):
        circle = " - ".join(end for end, _ in nx.find_cycle(nx.Graph(used)))
        raise ClusterError(f"{_no_tree(cluster)}: there are several ways round {circle}")


def _no_tree(cluster: Cluster) -> str:
    return f"cluster {cluster.name} is no tree of switches, which a testbed must be"


def _used(cluster: Cluster, devices: Sequence[str]) -> nx.DiGraph[str]:
    """The part of the graph that *devices* reach through switches."""
    others = {v for v, data in cluster.graph.nodes.items() if data["kind"] in ("gpu", "host") and v not in devices}
    leaves = {vertex for vertex in others if cluster.graph.degree(vertex) <= 2}
    return nx.DiGraph(nx.restricted_view(cluster.graph, leaves, []))


def _built_as(run: str, cluster: Cluster, devices: Sequence[str]) -> Bed:
    """The testbed of the *run* of that name."""
    graph = _used(cluster, devices)
    inside = {device: f"{run}{device.replace(' ', '')}" for device in dict.fromkeys(devices)}
    fabric = f"{run}fabric"
    iproute("ip", [f"netns add {name}" for name in (fabric, *inside.values())])
    slow = delays(fabric)
    _join(graph, fabric, inside, slow)
    for number, (device, name) in enumerate(inside.items(), start=1):
        setting(name, SETTINGS)
        up = [f"addr add {NETWORK}.{number}/24 dev {INTERFACE}", f"link set {INTERFACE} up", "link set lo up"]
        up.append(f"route replace {NETWORK}.0/24 dev {INTERFACE} {ROUTE}")
        iproute("ip", up, name)
        switch = next(graph.successors(device))
        iproute("tc", shape(INTERFACE, graph.edges[device, switch]["link"], delays=slow), name)
    address = {device: f"{NETWORK}.{number}" for number, device in enumerate(inside, start=1)}
    places = tuple(Place(rank, inside[at], INTERFACE, address[at]) for rank, at in enumerate(devices))
    return Bed(places, cluster if slow else cluster.relinked(lambda link: replace(link, latency=0.0)))


def _join(graph: nx.DiGraph[str], fabric: str, inside: dict[str, str], slow: bool) -> None:
    """Bridges for the switches, a veth pair for every link, and shapers on the ends that stand in the *fabric*."""
    switches = [vertex for vertex in graph if vertex not in inside]
    bridge = {switch: f"switch{number}" for number, switch in enumerate(switches)}
    lines = [f"link add {name} type bridge" for name in bridge.values()]
    shapers: list[str] = []
    for number, (one, other) in enumerate(nx.Graph(graph).edges):
        ends = [(one, other, f"port{number}a"), (other, one, f"port{number}b")]
        here = [end for end in ends if end[0] in bridge]
        away = [
            f"{INTERFACE} netns {inside[end]}" if end in inside else name for end, _, name in ends if end != here[0][0]
        ]
        lines.append(
            f"link add {here[0][2]} gso_max_segs {SEGMENTS} type veth peer name {away[0]} gso_max_segs {SEGMENTS}"
        )
        for switch, beyond, name in here:
            lines += [f"link set {name} master {bridge[switch]}", f"link set {name} up"]
            shapers += shape(name, graph.edges[switch, beyond]["link"], delays=slow)
    setting(fabric, SETTINGS[-1:])
    iproute("ip", [*lines, *(f"link set {name} up" for name in bridge.values())], fabric)
    iproute("tc", shapers, fabric)


class _Ended(BaseException):
    """A signal came that ends the process."""


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP go by way of every ``finally`` in here before they end the process, as SIGINT does anyway."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        raise _Ended(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    ended = 0
    try:
        yield
    except _Ended as signalled:
        ended = signalled.args[0]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if ended:
        os.kill(os.getpid(), ended)
        raise SystemExit(128 + ended)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that would end the process wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
