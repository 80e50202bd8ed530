"""Equal ranks are simulated once: one representative for each class of an equitable partition, exactly.

*The system.* Ranks, the communications between them, the flows of their plans, the links under the flows and the host
processors form a graph: a rank takes part in communications (as member, sender or receiver), a communication consists
of flows, a flow lies on links with weights, ranks compute on hosts. Colours to start with: of a rank its program, its
accelerator and its slow-down; of a communication all that its operations ask - kind, bytes, algorithm, latencies; of a
link its bandwidth. `refine` gives the coarsest equitable partition of it.

*Theorem.* Let the partition be equitable, and let no two ranks of a class draw different jitter. Then in the simulation
of all ranks, all members of a class do the same at the same times.

*Proof sketch.* By induction over events. Suppose that all members of each class have the same history until t. Then the
same communications, up to class, are under way: a meeting begins when the last of its members has come, its members'
classes and how many of each there are is told by its own class, so equal meetings begin at the same time. Rates are the
max-min fair vector, which is unique, so it has every symmetry that the system of constraints has; equal flows lie with
equal weights on equally many links of each class, equal links carry equally many flows of each class with equal
weights, so a vector that is constant on classes and max-min fair in the folded system - one variable for a class of
flows, one row for a class of links, with the weights that all flows of the class together lay on one link of it - is
feasible in the whole system, and every flow keeps its bottleneck: it is *the* fair vector. So equal flows end at the
same time, and so do equal computations, which the same accelerator prices. Until the next event nothing else changes.

*Constraints that never bind* (`simulator.engine.redundancy`) change neither what is feasible nor the fair rates: they
are left out of the system, and their links tell no classes apart.

*Condition.* One variable for an axis regardless of class would be wrong: flows in unequal surroundings get unequal
rates. A straggler, a slow link, an uneven last node splits the classes by itself, as far as it makes a difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.engine.cast import Communication, Tie
from simulator.engine.census import Census
from simulator.engine.flows import Flows
from simulator.engine.partition import COMMUNICATION, FLOW, HOST, LINK, RANK, Partition
from simulator.engine.privacy import Privacy
from simulator.engine.rows import Rows
from simulator.engine.tying import ties
from simulator.engine.variation import Variation
from simulator.garbage import collecting_no_garbage
from simulator.hashing import Colours, Indices, mixed, numbered
from simulator.matching import Asked, asked
from simulator.plan import Phase, Plan
from simulator.schedule import Collective, Compute, Op, Schedule
from simulator.transport.communicator import Communicator

Flags = NDArray[np.bool_]


class Folding:
    """The partition of *schedule* on the devices of *communicator*, and what its representatives do.

    *hosts* is by rank the host that it computes on, where it does. With *apart* every rank is a class of its own, as
    where each draws jitter of its own.
    """

    @collecting_no_garbage()
    def __init__(
        self,
        schedule: Schedule,
        communicator: Communicator,
        variation: Variation,
        hosts: Mapping[int, str],
        *,
        apart: bool = False,
    ) -> None:
        self.schedule, self.communicator = schedule, communicator
        self._census = Census(schedule)
        self._flows = Flows(self._census, communicator)
        colours = np.arange(len(schedule.program_of), dtype=np.uint64) if apart else self._colours(variation)
        self._partition = Partition(self._census, self._flows, communicator, colours, hosts)
        self.classes = self._partition.classes
        self._rows = Rows(self._flows, self._partition, communicator.cluster.bandwidths)
        self._plans: dict[tuple[int, Asked], Plan] = {}
        self._crowd = self._crowds(hosts)

    def _colours(self, variation: Variation) -> Colours:
        """By rank: its program, what it computes on, how slow it is; of one that meets others at a server its number.

        A server takes equal ranks one after the other, so that they do not do the same at the same times.
        """
        devices = list(map(self.communicator.cluster.accelerator, self.communicator.devices))
        slow = np.ones(len(devices))
        slow[list(variation.stragglers)] = list(variation.stragglers.values())
        served = np.array([any(map(_is_served, program.distinct())) for program in self.schedule.programs], np.bool_)
        alone = np.where(served[self._census.program_of], np.arange(1, len(devices) + 1), 0).astype(np.uint64)
        return mixed(self._census.program_of.astype(np.uint64)) ^ mixed(
            mixed(numbered(devices).astype(np.uint64)) ^ mixed(slow.view(np.uint64) ^ mixed(alone))
        )

    def _crowds(self, hosts: Mapping[int, str]) -> dict[int, int]:
        count: dict[tuple[str, int], int] = {}
        there = {rank: (host, int(self.classes[RANK][rank])) for rank, host in hosts.items()}
        for where in there.values():
            count[where] = count.get(where, 0) + 1
        return {rank: count[where] for rank, where in there.items()}

    @cached_property
    def stands_for(self) -> Sequence[int]:
        """By rank: the first of its class."""
        found: list[int] = self._partition.firsts[RANK][self.classes[RANK]].tolist()
        return found

    def crowd(self, rank: int) -> int:
        """How many ranks of the class of *rank* compute on its host."""
        return self._crowd.get(rank, 1)

    def host(self, name: str) -> int:
        """The class of the host of that *name*: representatives whose hosts are equal compute on one processor."""
        return int(self.classes[HOST][self._partition.hosts[name]])

    def communication(self, rank: int, op: Op) -> Communication:
        """The class of what *rank* takes part in with *op*."""
        return int(self.classes[COMMUNICATION][self._census.number(rank, op)])

    @cached_property
    def _partners(self) -> Indices:
        """By class of communication: how many classes of ranks take part, in each role."""
        first, kinds = self._partition.firsts[COMMUNICATION], self.classes[RANK]
        counts = [np.zeros(0, np.int64)]
        for batch in self._census.batches:
            own = first[np.searchsorted(first, batch.start) : np.searchsorted(first, batch.start + len(batch.ranks))]
            who = np.sort(kinds[batch.ranks[own - batch.start]], axis=1)
            apart = (np.diff(who, axis=1) != 0) | bool(batch.ends)  # a message's ends are told apart by their roles
            counts.append(1 + apart.sum(axis=1))
        return np.concatenate(counts)

    def partners(self, name: Communication, op: Op) -> int:
        """How many representatives come: one for each class among the partners, in each role."""
        assert isinstance(name, int)
        return int(self._partners[name])

    def copies(self, name: Communication) -> int:
        """How many communications the class has."""
        assert isinstance(name, int)
        return int(self._partition.counts[COMMUNICATION][name])

    def group(self, rank: int, axis: str) -> Communication:
        """The class of the collectives of *rank* over *axis*."""
        return int(self.classes[COMMUNICATION][self._census.collectives_of(rank)[axis]])

    def ranks_of(self, name: Communication) -> frozenset[int]:
        """The representatives that take part in the communications of a class."""
        assert isinstance(name, int)
        number = int(self._partition.firsts[COMMUNICATION][name])
        batch = self._census.batch(number)
        return frozenset(self.stands_for[rank] for rank in batch.ranks[number - batch.start].tolist())

    @cached_property
    def ties(self) -> Mapping[int, Tie]:
        """By rank, how it is tied to other representatives."""
        return ties(self.schedule, self, set(self.stands_for))

    def private_axes(self, rank: int) -> frozenset[str]:
        """The axes whose collectives *rank* runs with nobody but ranks that it stands for, over links of their own.

        Nobody else is ever on these links (`simulator.engine.privacy`). How long these collectives take is known
        beforehand.
        """
        return self._axes(rank, self._private)

    def undisturbed_axes(self, rank: int) -> frozenset[str]:
        """The axes whose collectives *rank* runs over links of their own, with whomever.

        How long these collectives take, once all members have come, is known beforehand.
        """
        return self._axes(rank, self._undisturbed)

    def _axes(self, rank: int, chosen: Flags) -> frozenset[str]:
        classes = self.classes[COMMUNICATION]
        return frozenset(axis for axis, n in self._census.collectives_of(rank).items() if chosen[classes[n]])

    @cached_property
    def _private(self) -> Flags:
        """By class of communication: whether it is of one class of ranks alone, and nothing ever shares its links."""
        return self._with_links_of_their_own(self._partners == 1)

    @cached_property
    def _undisturbed(self) -> Flags:
        """By class of communication: whether nothing ever shares its links."""
        return self._with_links_of_their_own(np.ones(len(self._partners), np.bool_))

    def _with_links_of_their_own(self, asked: Flags) -> Flags:
        """By class of communication: of those *asked* for, collectives of one flow at a time that share no link."""
        classes = self.classes[COMMUNICATION]
        wanted = asked[classes] & self._with_one_flow
        left = self._privacy.undisturbed(wanted)
        kept: Flags = np.bincount(classes, ~left, len(asked)) == 0
        return kept

    @cached_property
    def _privacy(self) -> Privacy:
        laid, binds = self._partition.laid, ~self._partition.free[self._partition.laid.links]
        return Privacy(self._census, self._flows.made_of[laid.flows[binds]], laid.links[binds].astype(np.int64))

    @cached_property
    def _with_one_flow(self) -> Flags:
        """By communication: whether it is a collective, and the flows of each phase are of one class."""
        found = np.zeros(len(self._census), np.bool_)
        for sheaf in self._flows.sheaves:
            if isinstance(sheaf.batch.ops[0], Collective):
                kinds = self.classes[FLOW][sheaf.flow_numbers()]
                sides = {part for parts in sheaf.parts.values() for part in parts.values() if len(part) > 1}
                alike = [(kinds[:, side] == kinds[:, side[:1]]).all(axis=1) for side in map(list, sides)]
                found[sheaf.numbers] = np.logical_and.reduce([np.ones(len(kinds), np.bool_), *alike])
        return found

    def plan(self, name: Communication, op: Op) -> Plan:
        """The plan of the class's first communication, its flows given way to those of their classes."""
        assert isinstance(name, int)
        key = name, asked(op)
        if key not in self._plans:
            self._plans[key] = self._folded(int(self._partition.firsts[COMMUNICATION][name]), key[1])
        return self._plans[key]

    def _folded(self, number: int, what: Asked) -> Plan:
        sheaf = self._flows.sheaves[self._flows.sheaf_of[number]]
        plan, parts, begin = sheaf.plans[what], sheaf.parts[what], sheaf.first_flow(number)
        again: dict[Phase, Phase] = {}
        for phase, part in parts.items():
            kinds = dict.fromkeys(self.classes[FLOW][begin + np.array(part, np.int64)].tolist())
            again[phase] = Phase(phase.latency, tuple(map(self._rows.flow, kinds)), phase.nbytes, phase.contended)
        phases = tuple(again[phase] for phase in plan.phases)
        return Plan(plan.algorithm, plan.protocol, phases, plan.sent_bytes, plan.sms)

    @cached_property
    def alike(self) -> Mapping[int, int]:
        """By number of the first link of a class: how many links are in it."""
        first, count = self._partition.firsts[LINK], self._partition.counts[LINK]
        return dict(zip(self._partition.links[first].tolist(), count.tolist(), strict=True))

    @property
    def capacity(self) -> Sequence[float]:
        """What each row can carry: one row for each class of links, by the capacity of its first."""
        return self._rows.capacity


def _is_served(op: Op) -> bool:
    return isinstance(op, Compute) and op.server is not None
