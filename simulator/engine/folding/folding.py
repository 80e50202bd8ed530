"""Folding: equal ranks are simulated once, with one representative for each class of an equitable partition.

Rows that never bind are left out of flows (`simulator.engine.folding.non_binding`): links that no load can fill, and
rows that are equal to an earlier row or dominated by another row.

*The graph.* Its vertices are the ranks, the communications between them, the flows of their plans, the links that flows
cross, and the host processors. A rank takes part in communications (as member, sender or receiver), a communication
consists of flows, a flow crosses links with weights, a rank computes on a host. The initial colour of a rank is its
program, its accelerator and its slowdown. That of a communication is all its requests (kind, bytes, algorithm,
latencies). That of a link is its bandwidth. `refine` finds the coarsest equitable partition of this graph.

*Theorem.* Let the partition be equitable, and let no two ranks of a class have different jitter. Then in the simulation
of all ranks, all members of a class do the same at the same times.

*Proof sketch.* By induction over events. Suppose that all members of each class have the same history until t. Then the
same communications, up to class, are under way: a communication begins when the last of its members has arrived. Its
class determines the classes of its members and how many of each there are, so equal communications begin at the same
time. Rates are the max-min fair vector, which is unique, so it has every symmetry that the constraints have. Equal
flows cross equally many links of each class with equal weights, and equal links carry equally many flows of each class
with equal weights. The folded system has one variable for a class of flows and one row for a class of links, with the
weights that all flows of the class together have on one link. A vector that is constant on classes and max-min fair in
the folded system is feasible in the whole system, and every flow keeps its bottleneck: it is the fair vector. So equal
flows end at the same time, and so do equal computations, which have the same accelerator. Nothing else changes until
the next event.

*Constraints that never bind* change neither the feasible set nor the fair rates. They are left out, and their links do
not split classes.

*Classes are needed.* One variable for all groups of an axis would be wrong: flows with unequal neighbours have unequal
rates. A straggler, a slow link or a last node with fewer GPUs splits the classes as far as it makes a difference.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from clustersim.simulator.engine.folding.communications import CommunicationTable
from clustersim.simulator.engine.folding.flows import Flows, WideContents, contents_of
from clustersim.simulator.engine.folding.non_binding import Shares, undominated, unfillable
from clustersim.simulator.engine.folding.partition import COMMUNICATION, FLOW, HOST, LINK, RANK, Partition
from clustersim.simulator.engine.folding.replicas import Flags, Kinds, Replicas, cut
from clustersim.simulator.engine.pricing import Variation
from clustersim.simulator.engine.setup import Communication
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import Colours, Indices, mixed, of_positions
from clustersim.simulator.hardware.links import Links
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.plan import Flow, Phase, TransferPlan
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.gc_paused import gc_paused
from clustersim.simulator.schedule.matching import Request, request_of
from clustersim.simulator.schedule.ops import Op
from clustersim.simulator.schedule.schedule import Schedule


class FoldedNetwork:
    """The network of the classes of *partition*. *bandwidths*: by number of a link of the cluster, bytes/s.

    *capacity*: by row, bytes/s.
    """

    def __init__(self, flows: Flows, partition: Partition, links: Links) -> None:
        self._partition = partition
        self._bounds = flows.bounds[partition.firsts[FLOW]].tolist()
        first = partition.firsts[LINK]
        self._links = partition.links[first]
        self._capacities = links.some(self._links, lambda link: link.bandwidth)
        self.capacity: list[float] = self._capacities.tolist()
        self._non_binding = partition.non_binding[first]
        self._made: dict[int, Flow] = {}
        self._fold()

    def _fold(self) -> None:
        """Sum the weights and crossings of all flows of a class on the first link of each class.

        The sums are stored by entry (class of flows, row), one class of flows after the other.
        """
        incidence, classes = self._partition.first_entries, self._partition.classes
        flow, row = classes[FLOW][incidence.flows], classes[LINK][incidence.links]
        coefficients = incidence.coefficients
        key, first, entry = np.unique(flow * len(self.capacity) + row, return_index=True, return_inverse=True)
        order = np.lexsort((first, key // max(1, len(self.capacity))))
        self._flow, self._row = flow[first[order]], row[first[order]]
        # bincount adds in the order of the entries
        weights, crossings = incidence.weights[coefficients], incidence.crossings[coefficients]
        self._weight = np.bincount(entry, incidence.times * weights, len(key))[order]
        self._crossings = np.bincount(entry, incidence.times * crossings, len(key))[order].astype(np.float64)
        self._starts = np.searchsorted(self._flow, np.arange(len(self._bounds) + 1))

    @cached_property
    def _kept(self) -> NDArray[np.bool_]:
        """By row: True if it can bind."""
        non_binding = self._non_binding[self._row]
        share = self._weight / self._capacities[self._row]
        changing = np.zeros(len(self.capacity), np.bool_)
        changing[self._partition.classes[LINK][self._partition.distinct]] = True
        constant = ~non_binding & ~changing[self._row]
        kept = undominated(Shares(self._flow[constant], self._row[constant], share[constant]), len(self.capacity))
        return np.asarray(kept | changing)

    def flow(self, number: int) -> Flow:
        """The aggregate of all flows of the class *number*."""
        if number not in self._made:
            own = slice(self._starts[number], self._starts[number + 1])
            row, kept, bound = self._row[own], self._kept[self._row[own]], self._bounds[number]
            rows, weights = row[kept], self._weight[own][kept]
            alone = float((self._capacities[rows] / weights).min(initial=bound))
            self._made[number] = Flow(self._links[row], self._crossings[own], rows, weights, alone, bound)
        return self._made[number]


class Folding:
    """The classes of equal ranks of *schedule* on the devices of *communicator*; see `RankClasses` for the interface.

    *hosts*: the host that a rank computes on, for ranks that do. *distinct*: numbers of links that must be classes of
    their own, because their use changes from outside.
    """

    @gc_paused()
    def __init__(
        self,
        schedule: Schedule,
        communicator: Communicator,
        variation: Variation,
        hosts: Mapping[int, str],
        distinct: Collection[int] = (),
    ) -> None:
        self.schedule, self.communicator = schedule, communicator
        self._table = CommunicationTable(schedule)
        cluster = communicator.cluster
        never_full = unfillable(communicator).copy()
        never_full[list(distinct)] = False
        colours, found = self._colours(variation), None
        if not (hosts or len(distinct) or variation.varies):
            found = equal_replicas(self._table, communicator, colours, never_full)
        self._replicas = None if found is None else found.replicas
        self._table = self._table if found is None else found.table
        self._flows = Flows(self._table, communicator, self._replicas, None if found is None else found.wide)
        own = np.array(sorted(distinct), np.int64)
        self._partition = Partition(
            self._table, self._flows, communicator, colours, hosts, own, never_full, self._replicas
        )
        self.classes = self._partition.classes
        self._network = FoldedNetwork(self._flows, self._partition, cluster.links)
        self._plans: dict[tuple[int, Request], TransferPlan] = {}
        self._on_host = self._ranks_on_hosts(hosts)

    def _colours(self, variation: Variation) -> Colours:
        """The initial colour of each rank: its program, accelerator and slowdown. With spread or jitter all differ."""
        ranks = np.arange(self.schedule.mesh.world_size)
        if variation.varies:
            return ranks.astype(np.uint64)
        # a schedule may use the first devices of a communicator only, as a probe does beside parameter servers
        devices = self.communicator.devices[: len(ranks)]
        distinct_accelerators, accelerators = self.communicator.cluster.accelerators(devices)
        programs, known = self._table.program_of, mixed(np.arange(len(distinct_accelerators), dtype=np.uint64))
        of_program = mixed(np.arange(len(self.schedule.programs), dtype=np.uint64))
        colours: Colours = of_program[programs] ^ mixed(known ^ np.ones(1).view(np.uint64))[accelerators]
        slow = np.array([*variation.stragglers], np.int64)
        slowdowns = np.array([*variation.stragglers.values()], np.float64).view(np.uint64)
        colours[slow] = of_program[programs[slow]] ^ mixed(known[accelerators[slow]] ^ slowdowns)
        # a server takes simultaneous arrivals in order of rank, so ranks that use one differ
        served = np.flatnonzero(np.array([bool(program.servers()) for program in self.schedule.programs])[programs])
        colours[served] = mixed(mixed(colours[served]) ^ mixed(served.astype(np.uint64)))
        return colours

    def _ranks_on_hosts(self, hosts: Mapping[int, str]) -> dict[int, int]:
        count: dict[tuple[str, int], int] = {}
        there = {rank: (host, int(self.classes[RANK][rank])) for rank, host in hosts.items()}
        for where in there.values():
            count[where] = count.get(where, 0) + 1
        return {rank: count[where] for rank, where in there.items()}

    @cached_property
    def representative(self) -> Indices:
        """For each rank, the first of its class."""
        return np.asarray(self._partition.firsts[RANK][self.classes[RANK]])

    def ranks_on_host(self, rank: int) -> int:
        """How many ranks of the class of *rank* compute on its host."""
        return self._on_host.get(rank, 1)

    def host(self, name: str) -> int:
        """The class of the host *name*. The representatives on hosts of one class compute on one processor."""
        return int(self.classes[HOST][self._partition.hosts[name]])

    def communication(self, rank: int, op: Op) -> Communication:
        """The class of the communication in which *rank* takes part by *op*."""
        return int(self.classes[COMMUNICATION][self._table.number(rank, op)])

    @cached_property
    def _partners(self) -> Indices:
        """By class of communication: the number of classes of ranks that take part, counted for each role."""
        first, kinds = self._partition.firsts[COMMUNICATION], self.classes[RANK]
        counts = [np.zeros(0, np.int64)]
        for group_class in self._table.group_classes:
            begin, end = np.searchsorted(first, [group_class.start, group_class.start + len(group_class.ranks)])
            partners = np.sort(kinds[group_class.ranks[first[begin:end] - group_class.start]], axis=1)
            # sender and receiver have different roles, so they count twice even if they are of one class
            differ = (np.diff(partners, axis=1) != 0) | bool(group_class.ends)
            counts.append(1 + differ.sum(axis=1))
        return np.concatenate(counts)

    def partners(self, name: Communication, op: Op) -> int:
        """The number of representatives that arrive: one for each class of partners, in each role."""
        assert isinstance(name, int)
        return int(self._partners[name])

    def multiplicity(self, name: Communication) -> int:
        """The number of communications in the class."""
        assert isinstance(name, int)
        return int(self._partition.counts[COMMUNICATION][name])

    def plan(self, name: Communication, op: Op) -> TransferPlan:
        """The plan of the first communication of the class; each flow is replaced by the aggregate of its class."""
        assert isinstance(name, int)
        key = name, request_of(op)
        if key not in self._plans:
            self._plans[key] = self._folded(int(self._partition.firsts[COMMUNICATION][name]), key[1])
        return self._plans[key]

    def _folded(self, number: int, request: Request) -> TransferPlan:
        """The plan of communication *number* with aggregate flows."""
        one = self._flows.isomorphic[self._flows.isomorphic_of[number]]
        plan, parts, begin = one.plans[request], one.parts[request], one.first_flow(number)
        folded: dict[Phase, Phase] = {}
        for phase, part in parts.items():
            kinds = dict.fromkeys(self.classes[FLOW][begin + np.array(part, np.int64)].tolist())
            folded[phase] = Phase(phase.latency, tuple(map(self._network.flow, kinds)), phase.nbytes, phase.contended)
        phases = tuple(folded[phase] for phase in plan.phases)
        return TransferPlan(plan.algorithm, plan.protocol, phases, plan.sent_bytes, plan.sms, plan.delivery)

    @cached_property
    def link_multiplicity(self) -> Mapping[int, int]:
        """For the first link of each class, by its number: the number of links in the class."""
        first, count = self._partition.firsts[LINK], self._partition.counts[LINK]
        return dict(zip(self._partition.links[first].tolist(), count.tolist(), strict=True))

    @cached_property
    def equal_links(self) -> Mapping[int, Sequence[int]]:
        """For the first link of each class, by its number: the numbers of all links in the class."""
        classes, first = self._partition.classes[LINK], self._partition.firsts[LINK]
        links, classes = self._all_links(self._partition.links, classes)
        order = np.argsort(classes, kind="stable")
        members = np.split(links[order], np.cumsum(np.bincount(classes))[:-1])
        return {link: own.tolist() for link, own in zip(self._partition.links[first].tolist(), members, strict=True)}

    def _all_links(self, links: Indices, classes: Indices) -> tuple[Indices, Indices]:
        """The *links* in use and their *classes*, of all replicas."""
        if self._replicas is None:
            return links, classes
        inside = ~self._replicas.cables[links]
        found = [(links[~inside], classes[~inside])]
        links, classes = links[inside], classes[inside]
        for own, everywhere in self._replicas.everywhere_in_servers(links):
            found.append((everywhere.ravel(), np.tile(classes[own], len(everywhere))))
        every = [np.concatenate(column) for column in zip(*found, strict=True)]
        order = np.argsort(every[0])
        return every[0][order], every[1][order]

    @property
    def capacity(self) -> Sequence[float]:
        """The capacity of each row, bytes/s: one row for each class of links, with the bandwidth of one of them."""
        return self._network.capacity

    def row_of(self, link: int) -> int:
        """The row of link number *link*, which must be in use."""
        return int(self.classes[LINK][np.searchsorted(self._partition.links, link)])


Wide = Mapping[int, Sequence[tuple[Indices, WideContents]]]
"""By the index of a group class: the rows of its communications that are placed isomorphically, and their flows."""


@dataclass(frozen=True, eq=False)
class EqualReplicas:
    """*replicas* of equal kinds; the *table* of the communications of one replica of each kind, and of *wide* ones."""

    replicas: Replicas
    table: CommunicationTable
    wide: Wide


def equal_replicas(
    table: CommunicationTable, communicator: Communicator, ranks: Colours, unfillable: Flags
) -> EqualReplicas | None:
    """Return the equal replicas of the schedule of *table*; None if there are none.

    *ranks*: the initial colour of each rank. *unfillable*: True for links that no load can fill. On an irregular
    cluster, or if a cable between switches can be full, nothing is known of the flows before all are enumerated.
    """
    cluster = communicator.cluster
    if cluster.regularity is None:
        return None
    cables = _cables(cluster)
    device = communicator.device[: len(ranks)]
    found = cut(table, cluster.regularity.server[device]) if unfillable[cables].all() else None
    if found is None:
        return None
    devices = device[found.grid]
    placement = communicator.placements.whole(devices)
    kinds = Kinds(found, placement, ranks)
    wide: dict[int, list[tuple[Indices, WideContents]]] = {}
    for number, group_class in enumerate(table.group_classes):
        if not found.is_wide(group_class):
            kinds.add_inner(group_class)
            continue
        wide[number] = list(contents_of(group_class, communicator, WideContents))
        for rows, content in wide[number]:
            kinds.add_wide(group_class, rows, content.crossed(group_class.ranks.shape[1], cables))
    if kinds.numbers.max() + 1 == len(found.grid):
        return None
    leaves = of_positions(cluster.regularity.leaf(devices))
    replicas = Replicas(found, kinds.numbers, placement.slots, cables, leaves)
    kept = [
        np.arange(len(one.ranks)) if number in wide else replicas.inner_rows(one)
        for number, one in enumerate(table.group_classes)
    ]
    return EqualReplicas(replicas, table.reduced(kept), wide)


def _cables(cluster: Cluster) -> Flags:
    """By link: True between two switches that are in no server."""
    flags = np.zeros(len(cluster.links), np.bool_)
    flags[cluster.topology.cables] = True
    return flags
