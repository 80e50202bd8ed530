"""The rings (channels) that a library finds for a group: over all NVLinks in a server, over all NICs between servers;
and the torus that chips make.

In a server whose GPUs are joined pairwise the rings are Hamiltonian cycles packed into the capacities of the links, at
the speed that carries most, as NCCL's graph search tries its speeds (src/graph/search.cc). Through a switch one ring
suffices, because ports are the bottleneck. Between servers of c NICs there are c rings of equal parts. Ring k leaves
even servers by NIC k and runs through odd ones backwards, so it enters them by NIC k: every hop stays on one rail.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import islice, pairwise
from typing import TypeVar

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import Indices
from clustersim.simulator.network.step import Group

Item = TypeVar("Item")
Cycle = tuple[int, ...]
Matrix = tuple[tuple[float, ...], ...]

MOST_GPUS = 10
"""Larger servers that are joined pairwise are not searched: they have too many cycles."""

MOST_CYCLES = 3000
"""More than the 2,520 cycles of 8 fully connected GPUs."""

MOST_PAIRS = 16
"""Cycles, each in both directions: half of MAXCHANNELS (NVIDIA/nccl src/include/devcomm.h, v2.10.3)."""

MOST_TRIALS = 60
"""Steps of the packing search. Fewer suffice for the full packing of DGX-1 and of full meshes up to 8 GPUs."""


def group_of(cluster: Cluster, devices: Sequence[str], *, reorders: bool, numbers: Indices | None = None) -> Group:
    """Return the group of *devices* by position: its servers and, if the transport *reorders*, its rings.

    *numbers*: those of the devices in `Cluster.devices`, if they are known.
    """
    numbers = cluster.numbers(devices) if numbers is None else numbers
    nodes = _servers(cluster, numbers)
    if not reorders or len(devices) < 2:
        return Group(len(devices), nodes)
    if cluster.regularity is not None and len(nodes) > 1:
        # devices are numbered in the order of their names
        place = numbers.tolist()
        sorted_nodes = [sorted(node, key=place.__getitem__) for node in nodes]
    else:
        sorted_nodes = [in_order(node, [devices[position] for position in node]) for node in nodes]
    if len(nodes) > 1:
        return Group(len(devices), nodes, tuple(_across(cluster, devices, sorted_nodes, numbers)))
    return Group(len(devices), nodes, tuple(_inside(cluster, devices, sorted_nodes[0])))


def _servers(cluster: Cluster, numbers: Indices) -> tuple[tuple[int, ...], ...]:
    """The positions of devices by server, in order of the first position; *numbers*: those of the devices."""
    by_node: dict[int, list[int]] = {}
    for position, server in enumerate(cluster.servers(numbers).tolist()):
        by_node.setdefault(server, []).append(position)
    return tuple(map(tuple, by_node.values()))


def in_order(items: Sequence[Item], names: Sequence[str]) -> list[Item]:
    """Return *items* in the natural order of their *names*."""
    if len(items) < 2:
        return list(items)
    return [item for item, _ in sorted(zip(items, names, strict=True), key=lambda pair: natural(pair[1]))]


def natural(name: str) -> tuple[str, tuple[int, ...]]:
    """A sort key that puts ``gpu 9`` before ``gpu 10``."""
    return re.sub(r"\d+", "", name), tuple(map(int, re.findall(r"\d+", name)))


def _inside(cluster: Cluster, devices: Sequence[str], node: Sequence[int]) -> list[Cycle]:
    """The rings through the positions of one server."""
    if len(node) == 1:
        return [tuple(node)]
    there, places = cluster.between([devices[position] for position in node]), range(len(node))
    matrix = tuple(tuple(0.0 if i == j else min(there[i][j], there[j][i]) for j in places) for i in places)
    return [tuple(node[place] for place in cycle) for cycle in cycles(matrix)] or [tuple(node)]


@lru_cache(maxsize=1024)
def cycles(bandwidth: Matrix) -> tuple[Cycle, ...]:
    """Return the directed Hamiltonian cycles that carry most, an equal part each, over links of *bandwidth* (bytes/s).

    The speed of a ring is the bandwidth of a link or half of it. Empty if no cycle exists.

    >>> link = ((0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0))
    >>> len(cycles(link))
    6
    """
    size = len(bandwidth)
    if size > MOST_GPUS or not any(map(any, bandwidth)):
        return ()
    if size == 2:
        return ((0, 1),)
    found = list(islice(_hamiltonian(bandwidth), MOST_CYCLES))
    best: list[Cycle] = []
    most = 0.0
    for speed in sorted({b / part for row in bandwidth for b in row if b for part in (1, 2)}, reverse=True):
        # tolerance for rounding: half of a third may differ from a sixth
        capacity = {(i, j): int(b / speed + 1e-9) for i, row in enumerate(bandwidth) for j, b in enumerate(row)}
        packed = _pack(found, capacity, size)
        if len(packed) * speed > most * (1 + 1e-9):
            best, most = packed, len(packed) * speed
    return tuple(directed for cycle in best for directed in (cycle, (cycle[0], *cycle[:0:-1])))


def _hamiltonian(bandwidth: Matrix) -> Iterator[Cycle]:
    """Every undirected cycle through all places, beginning at 0."""
    size = len(bandwidth)

    def extend(path: list[int]) -> Iterator[Cycle]:
        if len(path) == size:
            if bandwidth[path[-1]][0] and path[1] < path[-1]:
                yield tuple(path)
            return
        for place in range(1, size):
            if place not in path and bandwidth[path[-1]][place]:
                yield from extend([*path, place])

    return extend([0])


def _pack(found: Sequence[Cycle], capacity: dict[tuple[int, int], int], size: int) -> list[Cycle]:
    """Pack as many of *found* into *capacity* as fit, those with most room first. A cycle may be taken again."""
    most = min(MOST_PAIRS, min(sum(capacity[i, j] for j in range(size)) for i in range(size)) // 2)
    best: list[Cycle] = []
    trials = MOST_TRIALS

    def room(cycle: Cycle) -> tuple[int, int]:
        left = [capacity[ends] for ends in pairwise((*cycle, cycle[0]))]
        return min(left), sum(left)

    def take(cycle: Cycle, count: int) -> None:
        for i, j in pairwise((*cycle, cycle[0])):
            capacity[i, j] -= count
            capacity[j, i] -= count

    def descend(chosen: list[Cycle]) -> None:
        nonlocal best, trials
        trials -= 1
        if len(chosen) > len(best):
            best = list(chosen)
        rooms = {cycle: room(cycle) for cycle in found}
        for cycle in sorted((c for c in found if rooms[c][0] > 0), key=lambda c: rooms[c], reverse=True):
            if len(best) == most or trials <= 0:
                return
            take(cycle, 1)
            descend([*chosen, cycle])
            take(cycle, -1)

    descend([])
    return best


def _across(
    cluster: Cluster, devices: Sequence[str], nodes: Sequence[Sequence[int]], numbers: Indices
) -> Iterator[Cycle]:
    """One ring for each NIC in use, counted in the server that uses fewest; server after server.

    *numbers*: those of the devices. The paths through equal servers are found once.
    """
    alike = _alike(cluster, nodes, numbers)
    first = {kind: number for number, kind in reversed([*enumerate(alike)])}
    found = {kind: _Passage(cluster, devices, nodes, number) for kind, number in first.items()}
    channels = min(one.nics for one in found.values())
    paths = {kind: one.paths(channels) for kind, one in found.items()}
    orders = [paths[kind] for kind in alike]
    for number, kind in enumerate(alike):
        if found[kind].joint and channels == len(nodes[number]) == found[kind].nics:
            orders[number] = _Passage(cluster, devices, nodes, number).paths(channels)
    for channel in range(channels):
        paths_through = [order[channel][:: -1 if number % 2 else 1] for number, order in enumerate(orders)]
        yield tuple([node[place] for node, path in zip(nodes, paths_through, strict=True) for place in path])


def _alike(cluster: Cluster, nodes: Sequence[Sequence[int]], numbers: Indices) -> list[Hashable]:
    """By server a key; equal for servers of one template with the same devices, as far as the cluster is regular."""
    regular = cluster.regularity
    if regular is None:
        return list(range(len(nodes)))
    template, part = regular.template[regular.server[numbers]].tolist(), regular.part[numbers].tolist()
    return [(template[node[0]], *[part[position] for position in node]) for node in nodes]


class _Passage:
    """How rings pass server *number* of *nodes*, the positions of *devices* in each server."""

    def __init__(self, cluster: Cluster, devices: Sequence[str], nodes: Sequence[Sequence[int]], number: int) -> None:
        self._cluster, self._devices = cluster, [devices[position] for position in nodes[number]]
        self._elsewhere = devices[nodes[number - 1][0]]
        self._nic = _nics(cluster, self._devices, self._elsewhere)

    @property
    def nics(self) -> int:
        """The number of NICs in use."""
        return max(self._nic) + 1

    @cached_property
    def joint(self) -> float:
        """The bandwidth (bytes/s) of the equal links that join an even number of GPUs pairwise; 0 if none do."""
        if len(self._devices) % 2:
            return 0.0
        there, places = self._cluster.between(self._devices), range(len(self._devices))
        joints = {there[i][j] for i in places for j in places if i != j}
        return joints.pop() if len(joints) == 1 else 0.0

    def paths(self, channels: int) -> list[Cycle]:
        """Return the order of each of *channels* channels through the server, by place in it."""
        if channels == len(self._devices) == len(set(self._nic)) and self._is_narrow:
            by_end = {path[-1]: path for path in zigzags(len(self._devices))}
            return [by_end[self._nic.index(channel)] for channel in range(channels)]
        return _paths(_inside(self._cluster, self._devices, range(len(self._devices))), self._nic, channels)

    @property
    def _is_narrow(self) -> bool:
        """Whether the equal links that join GPUs pairwise carry less than two NICs."""
        if not self.joint:
            return False
        route = self._cluster.route(self._devices[0], self._elsewhere)
        return self.joint < 2 * min(self._cluster.links[link].bandwidth for link in route)


def zigzags(size: int) -> list[Cycle]:
    """Return *size* directed Hamiltonian paths, *size* even, that use each link of a full mesh once in each direction.

    One begins and one ends at each place, so that rings through all NICs of a server share none of its links (Walecki's
    decomposition; Alspach 2008, "The wonderful Walecki construction").

    >>> zigzags(4)
    [(0, 1, 3, 2), (2, 3, 1, 0), (1, 2, 0, 3), (3, 0, 2, 1)]
    """
    steps = [(place + 1) // 2 * (1 if place % 2 else -1) for place in range(size)]
    forward = [tuple((begin + step) % size for step in steps) for begin in range(size // 2)]
    return [directed for path in forward for directed in (path, path[::-1])]


def _nics(cluster: Cluster, devices: Sequence[str], elsewhere: str) -> list[int]:
    """For each of *devices* of a server the number, within it, of the NIC on the route from it to *elsewhere*."""
    if len(devices) == 1:
        return [0]
    names = [cluster.nic_of(device, elsewhere) or "" for device in devices]
    distinct = list(set(names))
    numbers = {name: number for number, name in enumerate(in_order(distinct, distinct))}
    return [numbers[name] for name in names]


def _paths(orders: Sequence[Cycle], nic: Sequence[int], channels: int) -> list[Cycle]:
    """The order of each channel through one server."""
    paths: list[Cycle] = []
    entered: set[int] = set()
    for channel in range(channels):
        paths.append(_path(orders, nic, channel, channels, entered))
        entered.add(nic[paths[-1][0]])
    return paths


def _path(orders: Sequence[Cycle], nic: Sequence[int], channel: int, channels: int, entered: set[int]) -> Cycle:
    """An order through one server that ends at NIC *channel*.

    It begins at the same NIC if two GPUs share that NIC, else at the next one, else at one where no other channel
    enters.
    """

    def preference(path: Cycle) -> int:
        first = nic[path[0]]
        return [first == channel, first == (channel + 1) % channels, first not in entered, True].index(True)

    rotations = (
        (*order[place + 1 :], *order[: place + 1])
        for turn in range(len(orders))
        for order in (orders[(channel + turn) % len(orders)],)
        for place in range(len(order))
        if nic[order[place]] == channel
    )
    return min(rotations, key=preference)


def torus_of(cluster: Cluster, devices: Sequence[str], numbers: Indices | None = None) -> Group:
    """Return the group of *devices* by position: its servers in natural order, and the sides of the torus in each.

    No sides if servers differ, or if their chips are no box of a torus: then a server is one ring. *numbers*: those of
    the devices in `Cluster.devices`, if they are known.
    """
    nodes = _servers(cluster, cluster.numbers(devices) if numbers is None else numbers)
    servers = tuple(tuple(in_order(node, [devices[place] for place in node])) for node in nodes)
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
