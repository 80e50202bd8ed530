"""The partition of ranks, communications, flows, links and hosts into classes of equals: refined, and looked up."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.engine.folding.communications import CommunicationTable
from simulator.engine.folding.flows import Flows, Placed
from simulator.engine.folding.non_binding import non_binding
from simulator.engine.folding.refinement import Edges, refine, told_apart
from simulator.hashing import Colours, Indices, firsts, hashed, mixed
from simulator.network.transport.communicator import Communicator
from simulator.schedule import Send

Flags = NDArray[np.bool_]

RANK, COMMUNICATION, FLOW, LINK, HOST = range(5)
MEMBER, SENDER, RECEIVER = range(3)


class Partition:
    """The coarsest equitable partition of what *table* and *flows* tell, with *ranks* of those colours to begin with.

    *hosts* is by rank the host that it computes on, where it does. Links are numbered anew, by *links* of the cluster;
    *placed* says what flows lay on them by these numbers, *free* which of them no load can fill. Hosts are numbered by
    *hosts*.
    """

    def __init__(
        self,
        table: CommunicationTable,
        flows: Flows,
        communicator: Communicator,
        ranks: Colours,
        hosts: Mapping[int, str],
        apart: Indices,
    ) -> None:
        cluster = communicator.cluster
        used = np.zeros(len(cluster.links), np.bool_)
        used[flows.placed.links] = True
        used[apart] = True
        self.links = np.flatnonzero(used)
        self.placed = flows.placed._replace(links=(np.cumsum(used, dtype=np.int32) - 1)[flows.placed.links])
        ample = np.zeros(len(used), np.bool_)
        ample[non_binding(cluster, communicator.transport.link_efficiency)] = True
        ample[apart] = False
        self.free = ample[self.links]
        self.apart = np.searchsorted(self.links, apart)
        bandwidths = cluster.bandwidths[self.links].view(np.uint64).copy()
        bandwidths[self.apart] ^= mixed(1 + self.apart.astype(np.uint64))
        self.hosts = places = {host: number for number, host in enumerate(dict.fromkeys(hosts.values()))}
        colours = [
            ranks,
            flows.labels,
            flows.uses,
            bandwidths,
            hashed([cluster.accelerator(host) for host in places]),
        ]
        free = self.free[self.placed.links]
        edges = [
            _taking_part(table),
            Edges(COMMUNICATION, FLOW, flows.made_of, np.arange(len(flows.made_of)), _same(flows.made_of)),
            _lying(self.placed, ~free),
            _computing(hosts, places),
        ]
        self.classes = refine(colours, edges)
        self.classes[LINK] = self._with_free_links(_lying(self.placed, free))

    def _with_free_links(self, lying: Edges) -> Indices:
        """The classes of links. Those that never bind are split by the flows on them, and split nothing else."""
        classes = self.classes[LINK]
        apart = told_apart(classes, self.classes[FLOW], Edges(LINK, FLOW, lying.others, lying.ones, lying.labels))
        return np.unique(np.where(self.free, len(classes) + apart, classes), return_inverse=True)[1]

    @cached_property
    def firsts(self) -> list[Indices]:
        """By kind the first vertex of each class."""
        return list(map(firsts, self.classes))

    @cached_property
    def counts(self) -> list[Indices]:
        """By kind how many vertices each class has."""
        return [np.bincount(classes) for classes in self.classes]


def _taking_part(table: CommunicationTable) -> Edges:
    """Communications and their partners, labelled by role."""
    empty = np.zeros((0, 2), np.int64)
    numbers, ranks, roles = [empty[:, 0]], [empty[:, 0]], [empty[:, 0]]
    for group_class in table.group_classes:
        count, partners = group_class.ranks.shape
        numbers.append(np.repeat(group_class.numbers, partners))
        ranks.append(group_class.ranks.ravel())
        own = [SENDER, RECEIVER] if isinstance(group_class.ops[0], Send) else [MEMBER] * partners
        roles.append(np.tile(np.array(own, np.int64), count))
    return Edges(
        COMMUNICATION, RANK, np.concatenate(numbers), np.concatenate(ranks), np.concatenate(roles).astype(np.uint64)
    )


def _computing(hosts: Mapping[int, str], places: Mapping[str, int]) -> Edges:
    ranks = np.array(list(hosts), np.int64)
    return Edges(RANK, HOST, ranks, np.array([places[host] for host in hosts.values()], np.int64), _same(ranks))


def _lying(placed: Placed, chosen: Flags) -> Edges:
    """The *chosen* entries as edges from flows to links, labelled by their terms."""
    labels = mixed(placed.weights.view(np.uint64)) ^ placed.crossings.astype(np.uint64)
    flows, links = (numbers[chosen].astype(np.int64) for numbers in (placed.flows, placed.links))
    return Edges(FLOW, LINK, flows, links, labels[placed.terms[chosen]])


def _same(vertices: Indices) -> Colours:
    return np.zeros(len(vertices), np.uint64)
