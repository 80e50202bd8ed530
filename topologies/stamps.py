"""The regularity of an assembled cluster, read off its stamped nodes and the tree of switches above them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from simulator.cluster import Cluster
from simulator.hashing import Indices, hashed, mixed, numbered
from simulator.regularity import Regularity
from topologies.kind import Kind
from topologies.network import Port, Tree

DEVICES = ("gpu", "host")

NONE = -1
"""In place of a link that there is not."""


def regularity(cluster: Cluster, kinds: Sequence[Kind], ports: Sequence[Port], tree: Tree | None) -> Regularity | None:
    """That of *cluster*, nodes of *kinds* with *ports* into *tree*; None where the nodes of a kind are not all alike.

    They are not where a fabric has given some of their vertices more links than others.
    """
    stamps = _stamps(cluster, kinds, plugs=tree is not None)
    chains = _chains(cluster, ports, tree) if tree else _Chains(*[np.zeros((len(ports) or 1, 0), np.int64)] * 3)
    if stamps is None or chains is None:
        return None
    masters = [_Master(stamp, vertex) for word in DEVICES for stamp in stamps for vertex in stamp.of_kind(word)]
    master, index = _copies(stamps, masters)
    node, local, nics, port, width, base = np.array([one.numbers for one in masters], np.int64)[master].T
    first, sort = (base + width * index)[:, None], numbered(cluster.links)
    out, back = (
        np.where(links == NONE, NONE, first + links)
        for links in (_even([one.out for one in masters])[master], _even([one.back for one in masters])[master])
    )
    leaves_by = port + nics * index
    return Regularity(
        server=node + index,
        local=local,
        out=out,
        back=back,
        door=_doors(sort, hashed([one.look for one in masters])[master].astype(np.int64), out, back),
        switch=chains.switch[leaves_by],
        down=chains.down[leaves_by],
        up=chains.up[leaves_by],
        base=np.concatenate([stamp.base + stamp.width * np.arange(stamp.kind.count) for stamp in stamps]),
        build=numbered([build for number, stamp in enumerate(stamps) for build in stamp.builds(number, sort)]),
        sort=sort,
    )


@dataclass(frozen=True)
class _Stamp:
    """The nodes of a *kind*: the first link of the first is *base*, and each node has *width*, from vertex on *behind*.

    *plugs*: whether its NICs have one link more than in the wiring, into the fabric; the first has the number *port*.
    """

    kind: Kind
    base: int
    width: int
    behind: Mapping[str, int]
    plugs: bool
    port: int

    def of_kind(self, word: str) -> tuple[str, ...]:
        """The vertices of that kind of the wiring."""
        return self.kind.wiring.of_kind(word)

    def links(self, path: Sequence[str]) -> list[int]:
        """How far behind the first link of a node those of *path* are."""
        graph = self.kind.wiring.graph
        return [self.behind[source] + list(graph[source]).index(target) for source, target in pairwise(path)]

    def builds(self, number: int, sort: Indices) -> Iterator[tuple[int, bytes]]:
        """By node what tells its links from those of others; the kind has that *number*."""
        for start in range(self.base, self.base + self.width * self.kind.count, self.width or 1):
            yield number, sort[start : start + self.width].tobytes()


def _stamps(cluster: Cluster, kinds: Sequence[Kind], *, plugs: bool) -> list[_Stamp] | None:
    """The nodes of *kinds*, whose vertices stand before all others; None if those of a kind differ in their links."""
    degrees = np.fromiter((len(others) for _, others in cluster.graph.adjacency()), np.int64)
    stamps, vertex, link, port = [], 0, 0, 0
    for kind in kinds:
        graph, nics = kind.wiring.graph, set(kind.wiring.nics)
        here = degrees[vertex : vertex + kind.count * len(graph)].reshape(kind.count, len(graph))
        if (here != [len(graph[v]) + (plugs and v in nics) for v in graph]).any():
            return None
        width = int(here[0].sum())
        behind = dict(zip(graph, accumulate(here[0].tolist(), initial=0), strict=False))
        stamps.append(_Stamp(kind, link, width, behind, plugs, port))
        vertex, link, port = vertex + here.size, link + width * kind.count, port + len(nics) * kind.count
    return stamps


@dataclass(frozen=True)
class _Master:
    """A device of the wiring, *vertex*, which every node of *stamp* has a copy of."""

    stamp: _Stamp
    vertex: str

    @property
    def _way(self) -> tuple[str, ...]:
        """The vertices to its NIC."""
        wiring = self.stamp.kind.wiring
        return wiring.route(self.vertex, wiring.nic_of(self.vertex)) if self.stamp.plugs else ()

    @property
    def out(self) -> list[int]:
        """The links, counted from the node's first, by which it leaves the node."""
        way, stamp = self._way, self.stamp
        return [*stamp.links(way), stamp.behind[way[-1]] + len(stamp.kind.wiring.graph[way[-1]])] if way else []

    @property
    def back(self) -> list[int]:
        """Those by which it is reached from its NIC."""
        wiring = self.stamp.kind.wiring
        return self.stamp.links(wiring.route(self._way[-1], self.vertex)) if self._way else []

    @property
    def look(self) -> object:
        """What there is to know of it and of its way out but for the links."""
        nodes = self.stamp.kind.wiring.graph.nodes
        return nodes[self.vertex]["accelerator"], tuple(nodes[vertex]["kind"] for vertex in self._way)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The node of its first copy, its place there, its node's NICs, that copy's port; links and first link."""
        kind, nics = self.stamp.kind, self.stamp.kind.wiring.nics
        port = self.stamp.port + (nics.index(self._way[-1]) if self._way else 0)
        place = list(kind.wiring.graph).index(self.vertex)
        return kind.node, place, len(nics), port, self.stamp.width, self.stamp.base


def _copies(stamps: Sequence[_Stamp], masters: Sequence[_Master]) -> tuple[Indices, Indices]:
    """By device the number of its master, and in which node of the kind it is: GPUs in order, then hosts."""
    found, begin = [np.zeros((2, 0), np.int64)], 0
    for count, own in ((stamp.kind.count, len(stamp.of_kind(word))) for word in DEVICES for stamp in stamps):
        found.append(np.stack([np.tile(begin + np.arange(own), count), np.repeat(np.arange(count), own)]))
        begin += own
    assert begin == len(masters)
    master, index = np.concatenate(found, axis=1)
    return master, index


def _even(rows: Sequence[Sequence[int]]) -> Indices:
    """*rows* of one length, filled up with `NONE`."""
    longest = max(map(len, rows), default=0)
    return np.array([[*row, *[NONE] * (longest - len(row))] for row in rows], np.int64).reshape(len(rows), longest)


def _doors(sort: Indices, look: Indices, out: Indices, back: Indices) -> Indices:
    """By device a number that tells its *look* and the sorts of its links *out* and *back* from those of others."""
    links = np.concatenate([out, back], axis=1)
    told = np.concatenate([look[:, None], np.where(links == NONE, NONE, sort[links])], axis=1).astype(np.uint64)
    salt = mixed(np.arange(told.shape[1], dtype=np.uint64))
    return np.unique(mixed(told ^ salt).sum(axis=1), return_inverse=True)[1]


@dataclass(frozen=True, slots=True)
class _Chains:
    """By port and level: the number of the switch, and of the links down from it and up to it."""

    switch: Indices
    down: Indices
    up: Indices


def _chains(cluster: Cluster, ports: Sequence[Port], tree: Tree) -> _Chains | None:
    """Those of *ports*; None where not all are equally long."""
    leaves = list(dict.fromkeys(tree.leaf_of[port.number] for port in ports))
    numbers: dict[str, int] = {leaf: number for number, leaf in enumerate(leaves)}
    climbs = [list(_climb(cluster, tree.above, leaf, numbers)) for leaf in leaves]
    if len(set(map(len, climbs))) > 1:
        return None
    leaf = np.array([numbers[tree.leaf_of[port.number]] for port in ports], np.int64)
    down = np.array([cluster.number(tree.leaf_of[port.number], port.nic) for port in ports], np.int64)
    above = np.array(climbs, np.int64).reshape(len(leaves), len(climbs[0]), 3)[leaf]
    first = np.stack([leaf, down, np.full(len(ports), NONE)], axis=1)
    chains = np.concatenate([first[:, None], above], axis=1)
    return _Chains(chains[..., 0], chains[..., 1], chains[..., 2])


def _climb(
    cluster: Cluster, above: Mapping[str, str], switch: str, numbers: dict[str, int]
) -> Iterator[tuple[int, int, int]]:
    """(number of the switch, link down from it, link up to it) for each one above *switch*."""
    while switch in above:
        top = above[switch]
        yield numbers.setdefault(top, len(numbers)), cluster.number(top, switch), cluster.number(switch, top)
        switch = top
