"""The switches that join the ranks' devices, which a testbed can build if they are a tree."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from simulator.cluster import Cluster
from simulator.errors import ClusterError

RANKS = 16
"""More than these processes would wait for the cores of a common machine, not for the network."""

DEVICES = ("gpu", "host")
"""Kinds of vertices that hand nothing on; all others are switches."""


def joining(cluster: Cluster, devices: Sequence[str]) -> nx.DiGraph[str]:
    """The part of the graph by which *devices*, that of each rank, reach each other; other devices are left out.

    Raises `ClusterError` unless it is a tree with the devices as leaves, every link both ways.
    """
    if len(devices) > RANKS:
        raise ClusterError(f"a testbed carries up to {RANKS} ranks, not {len(devices)}")
    for device in dict.fromkeys(devices):
        _hold_leaf(cluster, device)
    graph = _without_idle(cluster, devices)
    fault = _fault(graph, devices)
    if fault:
        raise _no_tree(cluster, fault)
    return graph


def _no_tree(cluster: Cluster, fault: str) -> ClusterError:
    return ClusterError(f"cluster {cluster.name} is no tree of switches, which a testbed must be: {fault}")


def _hold_leaf(cluster: Cluster, device: str) -> None:
    beyond = sorted({*cluster.graph.successors(device), *cluster.graph.predecessors(device)})
    if len(beyond) != 1 or _is_device(cluster.graph, beyond[0]):
        linked = ", ".join(beyond) or "nothing"
        raise _no_tree(cluster, f"{device} must hang on one switch, and it is linked to {linked}")


def _is_device(graph: nx.DiGraph[str], vertex: str) -> bool:
    return graph.nodes[vertex]["kind"] in DEVICES


def _without_idle(cluster: Cluster, devices: Sequence[str]) -> nx.DiGraph[str]:
    """What hangs together with *devices*, but for leaves that no rank lives on."""
    graph = cluster.graph
    idle = [v for v in graph if v not in devices and _is_device(graph, v) and graph.degree(v) <= 2]
    left = nx.restricted_view(graph, idle, [])
    return nx.DiGraph(left.subgraph(nx.node_connected_component(nx.Graph(left), devices[0])))


def _fault(graph: nx.DiGraph[str], devices: Sequence[str]) -> str | None:
    """What keeps *graph* from being a tree."""
    ways = nx.Graph(graph)
    one_way = next((ends for ends in graph.edges if not graph.has_edge(*reversed(ends))), None)
    between = next((v for v in graph if v not in devices and _is_device(graph, v)), None)
    apart = next((device for device in devices if device not in graph), None)
    if one_way:
        return f"the link from {one_way[0]} to {one_way[1]} has no way back"
    if apart:
        return f"there is no way from {devices[0]} to {apart}"
    if between:
        return f"{between} stands between others, where only a switch may"
    if not nx.is_tree(ways):
        return f"there are several ways round {' - '.join(end for end, _ in nx.find_cycle(ways))}"
    return None
