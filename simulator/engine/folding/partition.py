"""The partition of ranks, communications, flows, links and hosts into classes of equals, by colour refinement. This
finds the coarsest equitable partition of a graph with labelled vertices and edges.

It starts from given colours. Each round gives every vertex a new colour, made from its old colour and the multiset of
(edge label, colour of the neighbour). It ends when the number of colours no longer grows (Berkholz, Bonsma and Grohe,
"Tight lower and upper bounds for the complexity of canonical colour refinement", ESA 2013). Then two vertices of one
colour have equally many neighbours of every colour over every kind of edge.

Multisets are compared by sums of 64-bit hashes, modulo 2^64. The probability of a collision among n vertices is below
n^2 / 2^64: for a million vertices one in ten million.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from clustersim.simulator.engine.folding.communications import CommunicationTable
from clustersim.simulator.engine.folding.flows import Flows, Incidence
from clustersim.simulator.engine.folding.non_binding import Flags
from clustersim.simulator.engine.folding.replicas import Replicas
from clustersim.simulator.hardware.hashing import Colours, Indices, Numbers, firsts, hashed, mixed, sorted_once
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.ops import Send

AT_ONCE = 1 << 18
"""Edges that are looked at together: their temporary arrays stay in the cache."""

APART = np.uint64(0xD1342543DE82EF95)
"""An odd factor of colours: without it the first label with the second colour would have the hash of the second label
with the first colour. A multiplier of good generators (Steele and Vigna, "Computationally easy, spectrally good
multipliers", arXiv:2001.05304)."""

RANK, COMMUNICATION, FLOW, LINK, HOST = range(5)

MEMBER, SENDER, RECEIVER = range(3)


class Partition:
    """The coarsest equitable partition of the graph of *table* and *flows*.

    *ranks*: the initial colour of each rank. *hosts*: the host that a rank computes on, for ranks that do. *distinct*:
    numbers of links that must be classes of their own.

    Attributes: *classes*, by kind the class of each vertex. *links*, the links in use, by their numbers in the cluster;
    elsewhere in this file a link is an index in this array. *first_entries*: the entries of the incidence of flows and
    links for the first link of each class. *non_binding*, True for links that no load can fill. *hosts*, the number of
    each host.
    """

    def __init__(
        self,
        table: CommunicationTable,
        flows: Flows,
        communicator: Communicator,
        ranks: Colours,
        hosts: Mapping[int, str],
        distinct: Indices,
        unfillable: Flags,
        replicas: Replicas | None = None,
    ) -> None:
        cluster = communicator.cluster
        used = np.zeros(len(cluster.links), np.bool_)
        used[flows.incidence.links] = True
        used[distinct] = True
        self.links = np.flatnonzero(used)
        self.non_binding = unfillable[self.links]
        self.distinct = np.searchsorted(self.links, distinct)
        bandwidths = cluster.links.some(self.links, lambda link: link.bandwidth).view(np.uint64)
        bandwidths[self.distinct] ^= mixed(1 + self.distinct.astype(np.uint64))
        if cluster.chooses:  # their loads are reported apart from those of NICs
            bandwidths[np.isin(self.links, list(cluster.cables))] ^= mixed(np.zeros(1, np.uint64))
        self.hosts = {host: number for number, host in enumerate(dict.fromkeys(hosts.values()))}
        kept = np.arange(len(ranks)) if replicas is None else np.flatnonzero(replicas.kept)
        copies = [
            np.ones(len(ranks), np.int64) if replicas is None else replicas.copies[kept],
            flows.copies,
            flows.copies[flows.made_of],
            self._link_copies(flows),
            np.ones(len(self.hosts), np.int64),
        ]
        colours = [
            ranks[kept],
            flows.labels,
            flows.uses,
            bandwidths,
            hashed([cluster.accelerator(host) for host in self.hosts]),
        ]
        binding, unfilled = self._split(flows.take_incidence())
        self.classes = refine(
            colours,
            [
                _partner_edges(table, kept, len(ranks)),
                _unlabelled(COMMUNICATION, FLOW, flows.made_of, np.arange(len(flows.made_of), dtype=np.int32)),
                _crossing_edges(binding),
                _host_edges(hosts, self.hosts),
            ],
            copies,
        )
        self.copies = copies
        self.classes[LINK] = self._with_non_binding(_crossing_edges(unfilled))
        self.first_entries = self._of_first_links(binding, unfilled)
        self.firsts = list(map(firsts, self.classes))
        if replicas is not None:
            self.firsts[RANK] = kept[self.firsts[RANK]]
            place = np.empty(len(ranks), np.int64)
            place[kept] = self.classes[RANK]
            self.classes[RANK] = place[replicas.stands_for]

    def _link_copies(self, flows: Flows) -> Indices:
        copies = np.ones(len(self.links), np.int64)
        for links, counts in flows.link_copies:
            copies[np.searchsorted(self.links, links)] = counts
        return copies

    def _split(self, incidence: Incidence) -> tuple[Incidence, Incidence]:
        """The *incidence* with links that can be full, and with others; links become indices."""
        incidence.links[:] = np.searchsorted(self.links, incidence.links)
        unfilled = self.non_binding[incidence.links]
        return incidence.chosen(~unfilled), incidence.chosen(unfilled)

    def _of_first_links(self, *parts: Incidence) -> Incidence:
        """The entries of *parts* with the first link of each class, in order of flows and coefficients."""
        is_first = np.zeros(len(self.links), np.bool_)
        is_first[firsts(self.classes[LINK])] = True
        found = [part.chosen(np.flatnonzero(is_first[part.links])) for part in parts]
        flows, links, coefficients, times = (
            np.concatenate(column) for column in zip(*(one[:4] for one in found), strict=True)
        )
        whole = parts[0]._replace(flows=flows, links=links, coefficients=coefficients, times=times)
        return whole.chosen(np.lexsort((coefficients, flows)))

    def _with_non_binding(self, crossing: Edges) -> Indices:
        """The classes of links. Non-binding links are split by the flows on them, but they split no other class."""
        classes = self.classes[LINK]
        if not self.non_binding.any():
            return classes
        split = split_once(classes, self.classes[FLOW], crossing.turned)
        numbers = np.where(self.non_binding, classes.max() + 1 + split, classes)
        used = np.zeros(int(numbers.max()) + 1, np.bool_)
        used[numbers] = True
        return np.asarray((np.cumsum(used) - 1)[numbers])

    @cached_property
    def counts(self) -> list[Indices]:
        """By kind: the number of vertices of each class."""
        weighted = zip(self.classes[1:], self.copies[1:], strict=True)
        return [np.bincount(self.classes[RANK]), *(total(classes, copies) for classes, copies in weighted)]


def total(classes: Indices, copies: Indices) -> Indices:
    """The sum of *copies* by class."""
    return np.bincount(classes, copies).astype(np.int64)


def _partner_edges(table: CommunicationTable, kept: Indices, count: int) -> Edges:
    """Edges from communications to those of *kept* ranks, of *count*, that take part, labelled by role."""
    place = np.full(count, -1)
    place[kept] = np.arange(len(kept))
    empty = np.zeros((0, 2), np.int64)
    numbers, ranks, roles = [empty[:, 0]], [empty[:, 0]], [empty[:, 0]]
    for group_class in table.group_classes:
        here = place[group_class.ranks]
        row, position = np.nonzero(here >= 0)
        numbers.append(group_class.start + row)
        ranks.append(here[row, position])
        own = [SENDER, RECEIVER] if isinstance(group_class.ops[0], Send) else [MEMBER] * here.shape[1]
        roles.append(np.array(own, np.int64)[position])
    labels = np.arange(1 + max(MEMBER, SENDER, RECEIVER), dtype=np.uint64)
    return Edges(COMMUNICATION, RANK, np.concatenate(numbers), np.concatenate(ranks), labels, np.concatenate(roles))


def _host_edges(hosts: Mapping[int, str], numbers: Mapping[str, int]) -> Edges:
    """Edges from ranks to the hosts that they compute on; *numbers*: the number of each host."""
    ranks = np.array(list(hosts), np.int64)
    return _unlabelled(RANK, HOST, ranks, np.array([numbers[host] for host in hosts.values()], np.int64))


def _crossing_edges(incidence: Incidence) -> Edges:
    """The entries of *incidence* as edges from flows to links, labelled by their coefficients."""
    labels = mixed(incidence.weights.view(np.uint64)) ^ incidence.crossings.view(np.uint64)
    times = incidence.times if (incidence.times > 1).any() else None
    return Edges(FLOW, LINK, incidence.flows, incidence.links, labels, incidence.coefficients, times)


def _unlabelled(one: int, other: int, ones: Numbers, others: Numbers) -> Edges:
    return Edges(one, other, ones, others, np.zeros(1, np.uint64), np.zeros(len(ones), np.int32))


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges between vertices of kind *one* and vertices of kind *other*; both are indices of kinds.

    Edge i joins ``ones[i]`` and ``others[i]`` and has the label ``labels[which[i]]``. It counts ``times[i]`` times;
    once if nothing is said.
    """

    one: int
    other: int
    ones: Numbers
    others: Numbers
    labels: Colours
    which: Numbers
    times: Numbers | None = None

    @property
    def turned(self) -> Edges:
        """The same edges, seen from the other end."""
        return Edges(self.other, self.one, self.others, self.ones, self.labels, self.which, self.times)


def refine(
    colours: Sequence[Colours], edges: Sequence[Edges], copies: Sequence[Indices] | None = None
) -> list[Indices]:
    """By kind: the class of each vertex in the coarsest equitable partition that refines *colours* (by kind).

    *copies*: by kind, how many equal vertices each stands for. One that stands for fewer than its neighbour has an edge
    to each of the copies that fall to it. Classes of a kind are numbered from 0 in order of their first vertex.
    """
    colours = [mixed(colour) for colour in colours]
    directed = [_Directed(one, copies, salt=number) for number, one in enumerate([*edges, *(e.turned for e in edges)])]
    known = sum(len(sorted_once(colour)) for colour in colours)
    while True:
        fresh = [colour.copy() for colour in colours]
        for one in directed:
            one.add(fresh, colours)
        for kind in reversed(range(len(fresh))):  # large arrays; each is released when it has been mixed
            colours[kind] = mixed(fresh.pop())
        count = sum(len(sorted_once(colour)) for colour in colours)
        if count == known:
            return [_numbered(colour) for colour in colours]
        known = count


def split_once(classes: Indices, others: Indices, edges: Edges) -> Indices:
    """*classes* (of the vertices of kind `Edges.one`), split once by the classes *others* of their neighbours."""
    fresh = mixed(classes.astype(np.uint64))
    one = replace(edges, one=0, other=1)
    _Directed(one, None, salt=0).add([fresh], [fresh, mixed(others.astype(np.uint64))])
    return _numbered(fresh)


class _Directed:
    """One direction of *edges*: vertex ``ones[i]`` looks at vertex ``others[i]``.

    *salt* distinguishes the edges of several kinds that one vertex has. *copies*: as in `refine`.
    """

    def __init__(self, edges: Edges, copies: Sequence[Indices] | None, *, salt: int) -> None:
        self.edges, self.labels = edges, mixed(edges.labels)
        self.times: Colours | None = None if edges.times is None else edges.times.astype(np.uint64)
        if copies is not None and len(edges.ones):
            ones, others = copies[edges.one][edges.ones], copies[edges.other][edges.others]
            if (others > ones).any():
                several = np.maximum(1, others // ones).astype(np.uint64)
                self.times = several if self.times is None else self.times * several
        self.salt = mixed(np.array([salt], np.uint64))

    def add(self, fresh: list[Colours], colours: list[Colours]) -> None:
        """Add to the colours *fresh* of the vertices a hash of the *colours* of their neighbours."""
        edges, theirs = self.edges, colours[self.edges.other] * APART
        seen = np.zeros_like(fresh[edges.one])
        for begin in range(0, len(edges.ones), AT_ONCE):
            part = slice(begin, begin + AT_ONCE)
            colour = mixed(theirs[edges.others[part]] ^ self.labels[edges.which[part]])
            np.add.at(seen, edges.ones[part], colour if self.times is None else colour * self.times[part])
        if len(edges.ones):
            seen ^= self.salt
            fresh[edges.one] += mixed(seen)


def _numbered(colours: Colours) -> Indices:
    """The colours as numbers from 0, in order of their first vertex."""
    distinct = sorted_once(colours)
    which = np.searchsorted(distinct, colours)
    rank = np.empty(len(distinct), np.int64)
    rank[np.argsort(firsts(which))] = np.arange(len(distinct))
    return np.asarray(rank[which])
