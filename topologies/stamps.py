"""The regularity of an assembled cluster, read off its stamped nodes and the tree of switches above them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.cluster import Cluster, Link
from simulator.hashing import Indices
from simulator.regularity import Regularity
from topologies.kind import Kind
from topologies.network import Port, Tree

DEVICES = ("gpu", "host")

OWN = -1
"""In place of a NIC's link up to its leaf, which is one of its node's."""


def regularity(cluster: Cluster, kinds: Sequence[Kind], ports: Sequence[Port], tree: Tree | None) -> Regularity | None:
    """That of *cluster*, nodes of *kinds* with *ports* into *tree*; None where the nodes of a kind are not all alike.

    They are not where a fabric has given some of their vertices more links than others.
    """
    widths = [_width(cluster, kind) for kind in kinds]
    chains = _chains(cluster, ports, tree) if tree else _Chains(*[np.zeros((len(ports), 0), np.int64)] * 3)
    if chains is None or None in widths:
        return None
    counts = [kind.count for kind in kinds]
    steps = np.repeat(np.array(widths, np.int64), counts)
    base = np.cumsum(steps) - steps
    if steps.sum() != _first_of_fabric(cluster):
        return None
    sort = _sorts(cluster.links)
    server, local, port = _devices(cluster, kinds, with_ports=tree is not None)
    return Regularity(
        server=server,
        local=local,
        switch=chains.switch[port],
        down=chains.down[port],
        up=chains.up[port],
        base=base,
        build=_builds(sort, base, steps, np.repeat(np.arange(len(kinds)), counts)),
        sort=sort,
    )


def _width(cluster: Cluster, kind: Kind) -> int | None:
    """How many links leave the vertices of one node of *kind*, None if not equally many leave the NICs of each."""
    width = kind.wiring.graph.number_of_edges()
    for nic in kind.wiring.nics:
        found = {len(cluster.graph[kind.name(nic, index)]) for index in range(kind.count)}
        if len(found) > 1:
            return None
        width += found.pop() - len(kind.wiring.graph[nic])
    return width


def _first_of_fabric(cluster: Cluster) -> int:
    """The number of the first link that leaves a switch between nodes."""
    nodes = cluster.graph.nodes
    return sum(len(cluster.graph[vertex]) for vertex, data in nodes.items() if "node" in data)


@dataclass(frozen=True, slots=True)
class _Chains:
    """By port and level: the number of the switch, and of the links down from it and up to it."""

    switch: Indices
    down: Indices
    up: Indices


def _chains(cluster: Cluster, ports: Sequence[Port], tree: Tree) -> _Chains | None:
    """Those of *ports*; None where not all are equally long."""
    numbers: dict[str, int] = {}
    climbed: dict[str, list[tuple[int, int, int]]] = {}
    rows = []
    for port in ports:
        leaf = tree.leaf_of[port.number]
        if leaf not in climbed:
            climbed[leaf] = list(_climb(cluster, tree.above, leaf, numbers))
        here = numbers.setdefault(leaf, len(numbers))
        rows.append([(here, cluster.number(leaf, port.nic), OWN), *climbed[leaf]])
    if len(set(map(len, rows))) > 1:
        return None
    chains = np.array(rows, np.int64)
    return _Chains(chains[..., 0], chains[..., 1], chains[..., 2])


def _climb(
    cluster: Cluster, above: Mapping[str, str], switch: str, numbers: dict[str, int]
) -> Sequence[tuple[int, int, int]]:
    """(switch, link down from it, link up to it) for each switch above *switch*."""
    chain = []
    while switch in above:
        top = above[switch]
        number = numbers.setdefault(top, len(numbers))
        chain.append((number, cluster.number(top, switch), cluster.number(switch, top)))
        switch = top
    return chain


def _devices(cluster: Cluster, kinds: Sequence[Kind], *, with_ports: bool) -> tuple[Indices, Indices, Indices]:
    """Of each device: its node, which one it is there, and the port that it leaves by."""
    place = {name: number for number, name in enumerate(cluster.devices)}
    server, local, port = (np.zeros(len(place), np.int64) for _ in range(3))
    first_port = 0
    for kind in kinds:
        nics = kind.wiring.nics
        for number, (vertex, data) in enumerate(kind.wiring.graph.nodes.items()):
            if data["kind"] not in DEVICES:
                continue
            at = np.array([place[kind.name(vertex, index)] for index in range(kind.count)], np.int64)
            server[at] = kind.node + np.arange(kind.count)
            local[at] = number
            if with_ports:
                port[at] = first_port + nics.index(kind.wiring.nic_of(vertex)) + len(nics) * np.arange(kind.count)
        first_port += len(nics) * kind.count
    return server, local, port


def _sorts(links: Sequence[Link]) -> Indices:
    """A number for each link, the same for equal ones; few objects stand for many links."""
    objects = np.fromiter(map(id, links), np.int64, len(links))
    _, first, which = np.unique(objects, return_index=True, return_inverse=True)
    numbers: dict[Link, int] = {}
    return np.array([numbers.setdefault(links[n], len(numbers)) for n in first.tolist()], np.int64)[which]


def _builds(sort: Indices, base: Indices, widths: Indices, kind: Indices) -> Indices:
    """By node a number that tells its kind and all its links apart from those of others."""
    numbers: dict[tuple[int, bytes], int] = {}
    nodes = zip(kind.tolist(), base.tolist(), widths.tolist(), strict=True)
    found = [(number, sort[start : start + width].tobytes()) for number, start, width in nodes]
    return np.array([numbers.setdefault(what, len(numbers)) for what in found], np.int64)
