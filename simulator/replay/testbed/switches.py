"""The switches between the ranks' devices. A testbed can build them if they form a tree."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from simulator.cluster import Cluster
from simulator.errors import ClusterError

RANKS = 16
"""With more processes than this, ranks would wait for the cores of a common machine instead of the network."""

DEVICES = ("gpu", "host")
"""Kinds of vertices that do not forward. All others are switches."""


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
