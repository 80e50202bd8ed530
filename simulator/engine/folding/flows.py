"""The flows of all communications as arrays: the links that each flow crosses, and the weight on each link.

Groups of a class that are placed isomorphically on the cluster (`simulator.network.placing.isomorphic_groups`) share
one plan: that of the first group, with relabelled links. So a plan is made once for each set of isomorphic groups and
each request, and the links of its flows are found for all groups together. Within a communication, flows of several
requests are one flow if their links, weights and bounds are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustersim.simulator.engine.folding.communications import CommunicationTable, GroupClass
from clustersim.simulator.hardware.hashing import Colours, Indices, hashed
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.placing.isomorphic_groups import relabelled_links
from clustersim.simulator.network.plan import Flow, Phase, TransferPlan
from clustersim.simulator.schedule.matching import Request, request_of

Floats = NDArray[np.float64]
Short = NDArray[np.int32]

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
    many crossings. There are some fifty entries for each rank, so they are int32.
    """

    flows: Short
    links: Short
    coefficients: Short
    weights: Floats
    crossings: Floats

    def chosen(self, entries: NDArray[Any]) -> Incidence:
        """The *entries* alone: flags or numbers."""
        return self._replace(
            flows=self.flows[entries], links=self.links[entries], coefficients=self.coefficients[entries]
        )


class Flows:
    """The flows of the communications of *table*, as *communicator* plans them.

    By communication: *isomorphic_of*, its index in *isomorphic*; *labels*, the colour of its requests. By flow:
    *made_of*, its communication; *uses*, the colour of its use there; *bounds*, the bound of its rate, bytes/s.
    """

    def __init__(self, table: CommunicationTable, communicator: Communicator) -> None:
        self._communicator = communicator
        self.isomorphic: list[Isomorphic] = []
        contents: list[_Contents] = []
        start = 0
        for group_class in table.group_classes:
            for numbers, content in self._of(group_class):
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
        self.incidence = _incidence(pairs)

    def take_incidence(self) -> Incidence:
        """Return the incidence and forget it: some seventy entries for each rank, which are read once."""
        incidence = self.incidence
        del self.incidence
        return incidence

    def _of(self, group_class: GroupClass) -> Iterator[tuple[Indices, _Contents]]:
        """The sets of isomorphic communications of *group_class*: their indices, and their plans and flows."""
        ops = group_class.ops[:1] if self._communicator.regular else group_class.ops
        how = [self._communicator.placement(op, group_class.ranks) for op in ops]
        for rows in _equal_placements([one.patterns for one in how]):
            content, ranks = _Contents(), tuple(group_class.ranks[rows[0]].tolist())
            for op, one in zip(group_class.ops, how * len(group_class.ops), strict=False):
                content.add(request_of(op), self._communicator.plan(op, ranks), one.slots[rows])
            yield group_class.start + rows, content


class _Contents:
    """The flows of isomorphic communications, each with its links in every communication."""

    def __init__(self) -> None:
        self.plans: dict[Request, TransferPlan] = {}
        self.parts: dict[Request, Parts] = {}
        self.flows: list[Flow] = []
        self._links: list[Indices] = []
        self._used: list[list[tuple[int, int]]] = []
        self._known: dict[Hashable, int] = {}

    def add(self, request: Request, plan: TransferPlan, slots: Indices) -> None:
        """Add the *plan* of the first communication for *request*. *slots*: the link slots of all communications."""
        number = len(self.plans)
        self.plans[request] = plan
        self.parts[request] = {
            phase: tuple(self._part((number, place), *flow) for flow in _distinct_flows(phase, slots))
            for place, phase in enumerate(dict.fromkeys(plan.phases))
        }

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
    def coefficients(self) -> tuple[list[float], list[float]]:
        """The weights and the crossings of all flows, one flow and one link after the other."""
        weights = [weight for flow in self.flows for weight in flow.weights]
        return weights, [number for flow in self.flows for number in flow.crossings]

    def write(self, one: Isomorphic, first: int, entries: Short) -> None:
        """Write the *entries* of the communications of *one*: flows, links, coefficients, which count from *first*.

        The links are not kept.
        """
        count, width = len(one.numbers), sum(len(flow.links) for flow in self.flows)
        flows, links, coefficients = entries.reshape(3, count, width)
        begins = one.start + one.flows * np.arange(count, dtype=np.int32)[:, None]
        np.add(begins, np.repeat(np.arange(one.flows), [len(flow.links) for flow in self.flows]), out=flows)
        np.concatenate([np.zeros((count, 0), np.int32), *self._links], axis=1, out=links)
        coefficients[:] = first + np.arange(width)
        self._links.clear()


def _incidence(pairs: Sequence[tuple[Isomorphic, _Contents]]) -> Incidence:
    """The incidence of all flows, from each set of isomorphic communications and its contents."""
    coefficients = [content.coefficients for _, content in pairs]
    starts = accumulate((len(weights) for weights, _ in coefficients), initial=0)
    sizes = [len(one.numbers) * len(weights) for (one, _), (weights, _) in zip(pairs, coefficients, strict=True)]
    entries = np.empty((3, sum(sizes)), np.int32)
    begins = accumulate(sizes, initial=0)
    for (one, content), start, begin, size in zip(pairs, starts, begins, sizes, strict=False):
        content.write(one, start, entries[:, begin : begin + size])
    flows, links, which = entries
    weights = np.array([weight for own, _ in coefficients for weight in own], np.float64)
    crossings = np.array([number for _, own in coefficients for number in own], np.float64)
    return Incidence(flows, links, which, weights, crossings)


def _distinct_flows(phase: Phase, slots: Indices) -> Iterator[tuple[Hashable, Flow, Indices]]:
    """The flows of *phase*, each with its key and with its links in every communication.

    Flows of several phases with equal keys are one flow. Flows of one phase never are: equal ones are counted.
    """
    count: Counter[Hashable] = Counter()
    for flow in phase.flows:
        links = relabelled_links(flow.links, slots[0], slots)
        # the links of all communications are many; a digest of 128 bits is as good as equal
        carried = blake2b(links.tobytes(), digest_size=16).digest(), flow.weights, flow.bound
        count[carried] += 1
        yield (carried, count[carried]), flow, links


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


def _joined(kind: type[np.generic], parts: Iterable[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, kind), *parts])
