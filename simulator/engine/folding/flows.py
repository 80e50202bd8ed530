"""The flows of all communications as arrays: the links that each flow crosses, and the weight on each link.

Groups of a class that are placed isomorphically on the cluster (`simulator.network.isomorphic_groups`) share
one plan: that of the first group, with relabelled links. So a plan is made once for each set of isomorphic groups and
each request, and the links of its flows are found for all groups together. Within a communication, flows of several
requests are one flow if their links, weights and bounds are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from clustersim.simulator.engine.folding.communications import CommunicationTable, GroupClass
from clustersim.simulator.engine.folding.replicas import Flags, Replicas
from clustersim.simulator.hardware.hashing import Colours, Indices, Numbers, hashed, mixed
from clustersim.simulator.network.isomorphic_groups import Slots
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.plan import Flow, Phase, TransferPlan
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.matching import Request, request_of

Floats = NDArray[np.float64]
Short = NDArray[np.int32]

LinkCopies = list[tuple[Numbers, Indices]]
"""Numbers of links, and how many equal links each of them stands for."""

Parts = Mapping[Phase, tuple[int, ...]]
"""For each distinct phase of a plan: the indices of its flows among those of the communication."""


@dataclass(frozen=True, eq=False)
class Isomorphic:
    """The communications *numbers* of one *group_class* that are placed isomorphically.

    *plans*: by request the plan of the first. *parts*: by request the flows of each phase of the plan. *flows*: how
    many flows each communication has. They are numbered from *start* on, one communication after the other.
    """

    group_class: GroupClass
    numbers: Indices
    plans: Mapping[Request, TransferPlan]
    parts: Mapping[Request, Parts]
    flows: int
    start: int

    def first_flow(self, number: int) -> int:
        """The number of the first flow of communication *number*."""
        return self.start + int(np.searchsorted(self.numbers, number)) * self.flows


class Incidence(NamedTuple):
    """Which flow crosses which link, with which coefficients: a sparse matrix, one flow after the other.

    Entry i says that flow ``flows[i]`` crosses link ``links[i]`` with the weight ``weights[coefficients[i]]`` and as
    many crossings, and stands for ``times[i]`` equal ones. There are some fifty entries for each rank, so they are
    int32.
    """

    flows: Short
    links: Short
    coefficients: Short
    times: Short
    weights: Floats
    crossings: Floats

    def chosen(self, entries: NDArray[Any]) -> Incidence:
        """The *entries* alone: flags or numbers."""
        return self._replace(
            flows=self.flows[entries],
            links=self.links[entries],
            coefficients=self.coefficients[entries],
            times=self.times[entries],
        )


class Flows:
    """The flows of the communications of *table*, as *communicator* plans them.

    By communication: *isomorphic_of*, its index in *isomorphic*; *labels*, the colour of its requests; *copies*, how
    many equal ones it stands for. By flow: *made_of*, its communication; *uses*, the colour of its use there; *bounds*,
    the bound of its rate, bytes/s. *link_copies*: how many equal links some links stand for; others for themselves.

    *wide*: by the index of a group class in the table, its communications that cross *replicas*.
    """

    def __init__(
        self,
        table: CommunicationTable,
        communicator: Communicator,
        replicas: Replicas | None = None,
        wide: Mapping[int, Sequence[tuple[Indices, Contents]]] | None = None,
    ) -> None:
        self.isomorphic: list[Isomorphic] = []
        contents: list[Contents] = []
        start = 0
        for place, group_class in enumerate(table.group_classes):
            for rows, content in (wide or {}).get(place) or contents_of(group_class, communicator, Contents):
                numbers = group_class.start + rows
                one = Isomorphic(group_class, numbers, content.plans, content.parts, len(content.flows), start)
                self.isomorphic.append(one)
                contents.append(content)
                start += one.flows * len(numbers)
        self.isomorphic_of = np.empty(len(table), np.int64)
        for place, one in enumerate(self.isomorphic):
            self.isomorphic_of[one.numbers] = place
        self.labels: Colours = hashed(list(map(_label, self.isomorphic)))[self.isomorphic_of]
        self.made_of = _joined(np.int64, (np.repeat(one.numbers, one.flows) for one in self.isomorphic))
        uses = iter(hashed([use for content in contents for use in content.uses]).tolist())
        pairs = list(zip(self.isomorphic, contents, strict=True))
        self.uses: Colours = _joined(np.uint64, (_each(s, [next(uses) for _ in c.flows], np.uint64) for s, c in pairs))
        self.bounds: Floats = _joined(np.float64, (_each(s, [f.bound for f in c.flows], np.float64) for s, c in pairs))
        self.copies: Indices = np.ones(len(table), np.int64)
        self.link_copies: LinkCopies = []
        if replicas is not None:
            for place, group_class in enumerate(table.group_classes):
                if place not in (wide or {}):
                    self.copies[group_class.numbers] = replicas.copies[group_class.ranks[:, 0]]
        self.incidence = _incidence(pairs, replicas, self.link_copies)

    def take_incidence(self) -> Incidence:
        """Return the incidence and forget it: some seventy entries for each rank, which are read once."""
        incidence = self.incidence
        del self.incidence
        return incidence


C = TypeVar("C", bound="Contents")


def contents_of(group_class: GroupClass, communicator: Communicator, kind: type[C]) -> Iterator[tuple[Indices, C]]:
    """The sets of isomorphic communications of *group_class*: their rows, and their plans and flows as *kind*."""
    ops = group_class.ops[:1] if communicator.regular else group_class.ops
    how = [communicator.placement(op, group_class.ranks) for op in ops]
    for rows in _equal_placements([one.patterns for one in how]):
        content, ranks = kind(), tuple(group_class.ranks[rows[0]].tolist())
        for op, one in zip(group_class.ops, how * len(group_class.ops), strict=False):
            content.add(request_of(op), communicator.plan(op, ranks), one.slots.some(rows))
        yield rows, content


class Contents:
    """The flows of isomorphic communications, each with its links in every communication."""

    def __init__(self) -> None:
        self.plans: dict[Request, TransferPlan] = {}
        self.parts: dict[Request, Parts] = {}
        self.flows: list[Flow] = []
        self._links: list[Indices] = []
        self._used: list[list[tuple[int, int]]] = []
        self._known: dict[Hashable, int] = {}

    def add(self, request: Request, plan: TransferPlan, slots: Slots) -> None:
        """Add the *plan* of the first communication for *request*. *slots*: those of all communications."""
        number = len(self.plans)
        self.plans[request] = plan
        self.parts[request] = {
            phase: tuple(self._part((number, place), *flow) for flow in self._distinct(phase, slots))
            for place, phase in enumerate(dict.fromkeys(plan.phases))
        }

    def _distinct(self, phase: Phase, slots: Slots) -> Iterator[tuple[Hashable, Flow, Indices]]:
        """The flows of *phase*, each with its key and with its links in every communication.

        Flows of several phases with equal keys are one flow. Flows of one phase never are: equal ones are counted.
        """
        count: Counter[Hashable] = Counter()
        everywhere = slots.everywhere_of([flow.links for flow in phase.flows])
        for flow, links in zip(phase.flows, everywhere, strict=True):
            carried = _digest(links, flow.weights), flow.bound
            count[carried] += 1
            yield (carried, count[carried]), flow, links

    def _part(self, where: tuple[int, int], key: Hashable, flow: Flow, links: Indices) -> int:
        part = self._known.setdefault(key, len(self.flows))
        if part == len(self.flows):
            self.flows.append(flow)
            self._links.append(links.astype(np.int32))
            self._used.append([])
        self._used[part].append(where)
        return part

    @property
    def uses(self) -> list[Hashable]:
        """By flow: the (request, phase) pairs that use it, and its bound."""
        return [(tuple(where), flow.bound) for where, flow in zip(self._used, self.flows, strict=True)]

    @property
    def coefficients(self) -> tuple[Floats, Floats]:
        """The weights and the crossings of all flows, one flow and one link after the other."""
        weights, crossings = (flow.weights for flow in self.flows), (flow.crossings for flow in self.flows)
        return _joined(np.float64, weights), _joined(np.float64, crossings)

    def entries(self, one: Isomorphic, replicas: Replicas | None, link_copies: LinkCopies) -> Sequence[Short]:
        """The entries of the communications of *one*: flows, links, coefficients counted from 0, and times.

        The links are not kept. Adds links of *replicas* to *link_copies*.
        """
        count, width = len(one.numbers), sum(len(flow.links) for flow in self.flows)
        begins = one.start + one.flows * np.arange(count, dtype=np.int32)[:, None]
        flows = begins + np.repeat(np.arange(one.flows, dtype=np.int32), [len(flow.links) for flow in self.flows])
        links = np.concatenate([np.zeros((count, 0), np.int32), *self._links], axis=1)
        self._links.clear()
        coefficients = np.tile(np.arange(width, dtype=np.int32), count)
        entries = flows.ravel(), links.ravel(), coefficients, np.ones(len(coefficients), np.int32)
        if replicas is None:
            return entries
        rank = np.repeat(one.group_class.ranks[one.numbers - one.group_class.start, 0], width)
        return _in_all_replicas(entries, rank, replicas, link_copies)


def _in_all_replicas(
    entries: Sequence[Short], rank: Indices, replicas: Replicas, link_copies: LinkCopies
) -> Sequence[Short]:
    """The *entries* of kept replicas, and those on cables of all replicas. *rank*: by entry a rank of the replica."""
    links = entries[1]
    on_cable = replicas.cables[links]
    inside = np.flatnonzero(~on_cable)
    link_copies.append((links[inside], replicas.copies[rank[inside]]))
    found = [[column[inside] for column in entries]]
    above = np.flatnonzero(on_cable)
    for own, everywhere, counts in replicas.above(rank[above], links[above].astype(np.int64)):
        flows, coefficients = (np.tile(column[above[own]], len(everywhere)) for column in (entries[0], entries[2]))
        times = np.repeat(counts.astype(np.int32), len(own))
        found.append([flows, everywhere.ravel().astype(np.int32), coefficients, times])
    return [np.concatenate(column) for column in zip(*found, strict=True)]


class WideContents(Contents):
    """The flows of isomorphic communications that cross replicas. Their links are not listed before `entries`."""

    def __init__(self) -> None:
        super().__init__()
        self._slots = Slots(np.zeros((0, 0), np.int64))

    @cached_property
    def _places(self) -> list[tuple[Indices, Indices]]:
        """By flow the slots of its links, and the distances from there."""
        return [self._slots.places(flow.links) for flow in self.flows]

    def _distinct(self, phase: Phase, slots: Slots) -> Iterator[tuple[Hashable, Flow, Indices]]:
        self._slots = slots
        count: Counter[Hashable] = Counter()
        for flow in phase.flows:
            carried = _digest(flow.links, flow.weights), flow.bound
            count[carried] += 1
            yield (carried, count[carried]), flow, flow.links

    def crossed(self, partners: int, cables: Flags) -> Colours:
        """By position in the group of *partners*, a colour of the links of its server that the flows cross."""
        found: Colours = np.zeros(partners, np.uint64)
        for number, (flow, places) in enumerate(zip(self.flows, self._places, strict=True)):
            inside = np.flatnonzero(~cables[flow.links])
            slot, distance = (column[inside] for column in places)
            column, position = np.divmod(slot, partners)
            colour = mixed(flow.weights[inside].view(np.uint64))
            colour ^= flow.crossings[inside].view(np.uint64)
            for part in (distance, column, np.full_like(slot, number)):
                colour = mixed(colour ^ part.astype(np.uint64))
            np.add.at(found, position, mixed(colour))
        return found

    def entries(self, one: Isomorphic, replicas: Replicas | None, link_copies: LinkCopies) -> Sequence[Short]:
        """The entries on links of kept replicas, and on cables."""
        assert replicas is not None
        ranks = one.group_class.ranks[one.numbers - one.group_class.start]
        kept, copies, begin = replicas.kept[ranks], replicas.copies[ranks], 0
        somewhere = np.asarray(kept.any(axis=0))
        found = [np.zeros((4, 0), np.int32)]
        for number, (links, (slot, distance)) in enumerate(zip(self._links, self._places, strict=True)):
            position, on_cable = slot % ranks.shape[1], replicas.cables[links]
            columns = np.flatnonzero(somewhere[position] | on_cable)
            row, place = np.nonzero(kept[:, position[columns]] | on_cable[columns])
            column = columns[place]
            there = self._slots.at(row, slot[column]) + distance[column]
            flows = one.start + one.flows * row + number
            found.append(np.array([flows, there, begin + column, np.ones_like(flows)], np.int32))
            inside = ~on_cable[column]
            link_copies.append((there[inside], copies[row[inside], position[column[inside]]]))
            begin += len(links)
        self._links.clear()
        del self._places
        return np.concatenate(found, axis=1)  # type: ignore[return-value]


def _incidence(
    pairs: Sequence[tuple[Isomorphic, Contents]], replicas: Replicas | None, link_copies: LinkCopies
) -> Incidence:
    """The incidence of all flows, from each set of isomorphic communications and its contents."""
    coefficients = [content.coefficients for _, content in pairs]
    starts = accumulate((len(weights) for weights, _ in coefficients), initial=0)
    columns: list[Sequence[Short]] = [[np.zeros(0, np.int32)] * 4]
    for (one, content), start in zip(pairs, starts, strict=False):
        flows, links, own, times = content.entries(one, replicas, link_copies)
        columns.append((flows, links, own + np.int32(start), times))
    flows, links, which, times = (np.concatenate(column) for column in zip(*columns, strict=True))
    weights = _joined(np.float64, (own for own, _ in coefficients))
    crossings = _joined(np.float64, (own for _, own in coefficients))
    return Incidence(flows, links, which, times, weights, crossings)


def _equal_placements(patterns: Sequence[Indices]) -> list[Indices]:
    """Sets of indices with equal values in each array of *patterns*, in order of the first index of each set."""
    which = np.zeros(len(patterns[0]), np.int64)
    for one in patterns:
        _, number = np.unique(one, return_inverse=True)
        _, which = np.unique(which * (number.max() + 1) + number, return_inverse=True)
    order = np.argsort(which, kind="stable")
    sets = np.split(order, np.flatnonzero(np.diff(which[order])) + 1)
    return sorted(sets, key=lambda indices: int(indices[0]))


def _label(one: Isomorphic) -> Hashable:
    """The label of communications that must be equal before their placement is looked at."""
    plans = tuple(
        (name, p.algorithm, p.protocol, p.sms, p.delivery, _phases_without_links(p)) for name, p in one.plans.items()
    )
    # the coordinates distinguish messages of one rank to several peers, as its ops do
    return one.group_class.axis, type(one.group_class.ops[0]), one.group_class.ends, plans


def _phases_without_links(plan: TransferPlan) -> Hashable:
    """The phases of *plan* without links. Latencies are rounded to 1e-16 s, since sums over equal routes may differ."""
    counts = Counter(plan.phases)
    return tuple((round(p.latency, 16), p.nbytes, len(p.flows), n) for p, n in counts.items())


def _each(one: Isomorphic, values: Sequence[float], kind: type[np.generic]) -> NDArray[Any]:
    """*values* of the flows of one communication, repeated for all communications of *one*."""
    return np.tile(np.array(values, kind), len(one.numbers))


def _digest(*arrays: NDArray[Any]) -> bytes:
    """A digest of *arrays*, which are large: with 128 bits it is as good as equal."""
    found = blake2b(digest_size=16)
    for array in arrays:
        found.update(np.ascontiguousarray(array).data)
    return found.digest()


def _joined(kind: type[np.generic], parts: Iterable[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, kind), *parts])
