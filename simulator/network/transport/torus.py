"""The torus that the chips of a group make, from the links between them."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.cluster import Cluster
from simulator.network.step import Group
from simulator.network.transport.channels import in_order


def torus_of(cluster: Cluster, devices: Sequence[str]) -> Group:
    """Return the group of *devices* by position: its servers in natural order, and the sides of the torus in each.

    No sides if servers differ, or if their chips are no box of a torus: then a server is one ring.
    """
    by_node: dict[int | str, list[int]] = {}
    for position, device in enumerate(devices):
        by_node.setdefault(cluster.node_of(device), []).append(position)
    servers = tuple(tuple(in_order(node, [devices[place] for place in node])) for node in by_node.values())
    found = {sides(cluster.between([devices[place] for place in server])) for server in servers}
    return Group(len(devices), servers, dims=found.pop() if len(found) == 1 else ())


def sides(bandwidth: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Return the sides of the box that chips in row-major order make by links of *bandwidth*; none if it is no box.

    >>> sides([[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0]])
    (2, 2)
    """
    found: list[int] = []
    stride, size = 1, len(bandwidth)
    while stride < size:
        length = 1
        while stride * (length + 1) <= size and bandwidth[stride * (length - 1)][stride * length]:
            length += 1
        if length == 1 or size % (stride * length) or not _joined(bandwidth, stride, length):
            return ()
        found.append(length)
        stride *= length
    return tuple(reversed(found))


def _joined(bandwidth: Sequence[Sequence[float]], stride: int, length: int) -> bool:
    """True if every chip is joined to the next one along the side of *length* chips that are *stride* apart."""
    inside = (place for place in range(len(bandwidth)) if place // stride % length < length - 1)
    return all(bandwidth[place][place + stride] for place in inside)
