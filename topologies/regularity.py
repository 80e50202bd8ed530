"""The regularity of an assembled cluster, read off the templates of its servers and the tree of switches above them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from simulator.cluster import Cluster
from simulator.cluster.regularity import Regularity
from simulator.cluster.topology import Topology
from simulator.cluster.vertices import NONE
from simulator.hashing import Indices, hashed, mixed
from topologies.network import Ports, Tree
from topologies.template import ServerTemplate

DEVICES = ("gpu", "host")


def regularity(
    cluster: Cluster, templates: Sequence[ServerTemplate], ports: Ports, tree: Tree | None
) -> Regularity | None:
    """That of *cluster*, servers of *templates* with *ports* into *tree*; None where those of a template differ.

    They differ where a fabric has given some of their vertices more links than others.
    """
    stamps = _stamps(cluster.topology, templates, plugs=tree is not None)
    chains = (
        _chains(cluster.topology, ports, tree) if tree else _Chains(*[np.zeros((len(ports) or 1, 0), np.int64)] * 3)
    )
    if stamps is None or chains is None:
        return None
    models = [_Model(stamp, vertex) for word in DEVICES for stamp in stamps for vertex in stamp.of_kind(word)]
    model, server = _copies(stamps, models)
    node, local, nics, port, width, base = np.array([one.numbers for one in models], np.int64)[model].T
    first, link_class = (base + width * server)[:, None], cluster.links.which
    out, back = (
        np.where(links == NONE, NONE, first + links)
        for links in (_even([one.out for one in models])[model], _even([one.back for one in models])[model])
    )
    leaves_by = port + nics * server
    return Regularity(
        server=node + server,
        local=local,
        out=out,
        back=back,
        uplink=_uplinks(link_class, hashed([one.look for one in models])[model].astype(np.int64), out, back),
        switch=chains.switch[leaves_by],
        down=chains.down[leaves_by],
        up=chains.up[leaves_by],
        base=np.concatenate([stamp.base + stamp.width * np.arange(stamp.template.count) for stamp in stamps]),
        template=_template_ids(stamps, link_class),
        link_class=link_class,
    )


@dataclass(frozen=True)
class _Stamp:
    """The servers of a *template*: the first link of the first is *base*; *degrees* is by vertex of one server.

    *plugs*: whether its NICs have one link more than in the wiring, into the fabric.
    """

    template: ServerTemplate
    base: int
    degrees: Indices
    plugs: bool

    @cached_property
    def behind(self) -> list[int]:
        """By vertex how far its first link is behind the first of its server; at the end the links of a server."""
        return [0, *np.cumsum(self.degrees).tolist()]

    @property
    def width(self) -> int:
        """Links of one server."""
        return self.behind[-1]

    def of_kind(self, kind: str) -> tuple[str, ...]:
        """The vertices of *kind* of the wiring."""
        return self.template.wiring.of_kind(kind)

    def links(self, path: Sequence[str]) -> list[int]:
        """How far behind the first link of a server those of *path* are."""
        place, links = self.template.place, self.template.wiring.links
        return [self.behind[place[a]] + list(links[a]).index(b) for a, b in pairwise(path)]

    def last_link(self, vertex: str) -> int:
        """How far behind the first link of a server the last one is that leaves *vertex*."""
        return self.behind[self.template.place[vertex] + 1] - 1


def _stamps(topology: Topology, templates: Sequence[ServerTemplate], *, plugs: bool) -> list[_Stamp] | None:
    """The servers of *templates*; None if those of a template differ in how many links leave their vertices."""
    stamps, link = [], 0
    for template in templates:
        here = topology.degrees[template.vertex : template.vertex + template.count * template.size]
        degrees = template.degrees.copy()
        degrees[template.nics] += plugs
        if (here.reshape(template.count, template.size) != degrees).any():
            return None
        stamps.append(_Stamp(template, link, degrees, plugs))
        link += stamps[-1].width * template.count
    return stamps


@dataclass(frozen=True)
class _Model:
    """A device of the wiring, *vertex*, which every server of *stamp* has a copy of."""

    stamp: _Stamp
    vertex: str

    @cached_property
    def _path(self) -> tuple[str, ...]:
        """The vertices to its NIC."""
        wiring = self.stamp.template.wiring
        return wiring.route(self.vertex, wiring.nic_of(self.vertex)) if self.stamp.plugs else ()

    @property
    def out(self) -> list[int]:
        """The links, counted from the server's first, by which it leaves the server."""
        path, stamp = self._path, self.stamp
        return [*stamp.links(path), stamp.last_link(path[-1])] if path else []

    @property
    def back(self) -> list[int]:
        """Those by which it is reached from its NIC."""
        wiring = self.stamp.template.wiring
        return self.stamp.links(wiring.route(self._path[-1], self.vertex)) if self._path else []

    @property
    def look(self) -> object:
        """What there is to know of it and of its way out but for the links."""
        wiring = self.stamp.template.wiring
        return wiring.accelerator(self.vertex), tuple(wiring.vertices[vertex] for vertex in self._path)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The server of its first copy, its place there, its server's NICs, that copy's port; links and first link."""
        stamp, template = self.stamp, self.stamp.template
        nics = template.wiring.nics
        port = template.port + (nics.index(self._path[-1]) if self._path else 0)
        return template.node, template.place[self.vertex], len(nics), port, stamp.width, stamp.base


def _copies(stamps: Sequence[_Stamp], models: Sequence[_Model]) -> tuple[Indices, Indices]:
    """By device the number of its model, and which server of the template it is in: GPUs in order, then hosts."""
    found, begin = [np.zeros((2, 0), np.int64)], 0
    for count, own in ((stamp.template.count, len(stamp.of_kind(word))) for word in DEVICES for stamp in stamps):
        found.append(np.stack([np.tile(begin + np.arange(own), count), np.repeat(np.arange(count), own)]))
        begin += own
    assert begin == len(models)
    model, server = np.concatenate(found, axis=1)
    return model, server


def _even(rows: Sequence[Sequence[int]]) -> Indices:
    """*rows* of one length, filled up with `NONE`."""
    longest = max(map(len, rows), default=0)
    return np.array([[*row, *[NONE] * (longest - len(row))] for row in rows], np.int64).reshape(len(rows), longest)


def _uplinks(link_class: Indices, look: Indices, out: Indices, back: Indices) -> Indices:
    """By device a number that tells its *look* and the classes of its links *out* and *back* from those of others."""
    links = np.concatenate([out, back], axis=1)
    told = np.concatenate([look[:, None], np.where(links == NONE, NONE, link_class[links])], axis=1).astype(np.uint64)
    salt = mixed(np.arange(told.shape[1], dtype=np.uint64))
    return np.unique(mixed(told ^ salt).sum(axis=1), return_inverse=True)[1]


def _template_ids(stamps: Sequence[_Stamp], link_class: Indices) -> Indices:
    """By server a number: the same for those of one template whose links are of the same classes, one for one."""
    found, known = [], 0
    for stamp in stamps:
        links = link_class[stamp.base : stamp.base + stamp.width * stamp.template.count]
        rows = links.reshape(stamp.template.count, stamp.width)
        others = np.flatnonzero((rows != rows[:1]).any(axis=1))
        ids = np.full(len(rows), known)
        if len(others):
            ids[others] += 1 + np.unique(rows[others], axis=0, return_inverse=True)[1]
        found.append(ids)
        known = int(ids.max()) + 1
    return np.concatenate(found)


@dataclass(frozen=True, slots=True)
class _Chains:
    """By port and level: the number of the switch, and of the links down from it and up to it."""

    switch: Indices
    down: Indices
    up: Indices


def _chains(topology: Topology, ports: Ports, tree: Tree) -> _Chains | None:
    """Those of *ports*; None where not all are equally long."""
    leaves, leaf = np.unique(np.array(tree.leaf_of, np.int64), return_inverse=True)
    numbers = {switch: number for number, switch in enumerate(leaves.tolist())}
    climbs = [list(_climb(topology, tree.above, switch, numbers)) for switch in leaves.tolist()]
    down = _plugged(topology, ports, leaves[leaf])
    if down is None or len(set(map(len, climbs))) > 1:
        return None
    above = np.array(climbs, np.int64).reshape(len(leaves), len(climbs[0]), 3)[leaf]
    first = np.stack([leaf, down, np.full(len(ports), NONE)], axis=1)
    chains = np.concatenate([first[:, None], above], axis=1)
    return _Chains(chains[..., 0], chains[..., 1], chains[..., 2])


def _plugged(topology: Topology, ports: Ports, leaf: Indices) -> Indices | None:
    """By port the link down to its NIC from its *leaf*; None where there is another one from a switch."""
    inside = topology.vertices.node
    down = np.flatnonzero((inside[topology.source] == NONE) & (inside[topology.target] != NONE))
    if not np.array_equal(np.sort(topology.target[down]), np.sort(ports.nic)):
        return None
    link_to = np.empty(len(inside), np.int64)
    link_to[topology.target[down]] = down
    found = link_to[ports.nic]
    return found if np.array_equal(topology.source[found], leaf) else None


def _climb(
    topology: Topology, above: Mapping[int, int], switch: int, numbers: dict[int, int]
) -> Iterator[tuple[int, int, int]]:
    """(number of the switch, link down from it, link up to it) for each one above *switch*."""
    while switch in above:
        top = above[switch]
        yield numbers.setdefault(top, len(numbers)), topology.leaving(top)[switch], topology.leaving(switch)[top]
        switch = top
