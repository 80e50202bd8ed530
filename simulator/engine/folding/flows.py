"""The flows of all communications, as arrays: which links each flow crosses, and with which weight.

Groups of a class with isomorphic placement on the cluster (`simulator.network.transport.placement`) share one plan:
that of the first group, relabelled. So a plan is made once for each set of isomorphic groups and request, and the
links of its flows are found for all groups at once. Within a communication, flows are distinguished by what they carry;
one flow may serve several requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.engine.folding.communications import CommunicationTable, GroupClass
from simulator.engine.rank_classes import placements, plan_of
from simulator.hashing import Colours, Indices, hashed
from simulator.network.plan import Flow, Phase, TransferPlan
from simulator.network.transport.communicator import Communicator
from simulator.network.transport.placement import relabelled_links
from simulator.schedule.matching import Asked, asked

Floats = NDArray[np.float64]
Short = NDArray[np.int32]

Parts = Mapping[Phase, tuple[int, ...]]
"""By distinct phase of a plan: which flows of the communication flow in it."""


@dataclass(frozen=True, eq=False)
class Isomorphic:
    """The communications *numbers* of one *group_class*, isomorphic in placement; the plans of the first by request.

    Each has as many *flows*, numbered from *start* on, communication after communication. *parts* are the flows of
    each phase of a plan.
    """

    group_class: GroupClass
    numbers: Indices
    plans: Mapping[Asked, TransferPlan]
    parts: Mapping[Asked, Parts]
    flows: int
    start: int

    def first_flow(self, number: int) -> int:
        """The number of the first flow of the communication of that *number*."""
        return self.start + int(np.searchsorted(self.numbers, number)) * self.flows

    def flow_numbers(self) -> Indices:
        """Those of all flows, of shape ``(communications, flows)``."""
        return self.start + np.arange(len(self.numbers) * self.flows).reshape(len(self.numbers), self.flows)


class Placed(NamedTuple):
    """The links under all flows. By entry: the flow, the link, and the number of its *terms*; flow after flow.

    By number of terms: the *weights* and the *crossings* of a flow on a link. There are some fifty entries for each
    rank, so they are int32.
    """

    flows: Short
    links: Short
    terms: Short
    weights: Floats
    crossings: Indices


class Flows:
    """The flows of the communications of *table*, as *communicator* plans them.

    By communication: *isomorphic_of*, its place in *isomorphic*, and *labels*, a colour for its requests. By flow:
    *made_of*, its communication, *uses*, a colour for its use there, and *bounds*, of its rate in bytes/s.
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
        self.placed = _laid(pairs)

    def _of(self, group_class: GroupClass) -> Iterator[tuple[Indices, _Contents]]:
        """The numbers of communications of *group_class* that lie alike, and what they ask of the network."""
        ops = group_class.ops[:1] if self._communicator.regular else group_class.ops
        how = [placements(self._communicator, op, group_class.ranks) for op in ops]
        for rows in _alike([one.patterns for one in how]):
            content, ranks = _Contents(), tuple(group_class.ranks[rows[0]].tolist())
            for op, one in zip(group_class.ops, how * len(group_class.ops), strict=False):
                content.add(asked(op), plan_of(self._communicator, op, ranks), one.slots[rows])
            yield group_class.start + rows, content


class _Contents:
    """The flows of isomorphic communications, each with its links in all of them."""

    def __init__(self) -> None:
        self.plans: dict[Asked, TransferPlan] = {}
        self.parts: dict[Asked, Parts] = {}
        self.flows: list[Flow] = []
        self._links: list[Indices] = []
        self._used: list[list[tuple[int, int]]] = []
        self._known: dict[Hashable, int] = {}

    def add(self, what: Asked, plan: TransferPlan, slots: Indices) -> None:
        """*plan* is that of the first communication for *what* is asked; *slots* are those of all."""
        number = len(self.plans)
        self.plans[what] = plan
        self.parts[what] = {
            phase: tuple(self._part((number, place), *told) for told in _told_apart(phase, slots))
            for place, phase in enumerate(dict.fromkeys(plan.phases))
        }

    def _part(self, where: tuple[int, int], key: Hashable, flow: Flow, links: Indices) -> int:
        part = self._known.setdefault(key, len(self.flows))
        if part == len(self.flows):
            self.flows.append(flow)
            self._links.append(links)
            self._used.append([])
        self._used[part].append(where)
        return part

    @property
    def uses(self) -> list[Hashable]:
        """By flow in which phases of which operations it flows, and its bound."""
        return [(tuple(where), flow.bound) for where, flow in zip(self._used, self.flows, strict=True)]

    @property
    def terms(self) -> tuple[list[float], list[int]]:
        """The weights and the crossings of all flows, link by link."""
        weights = [weight for flow in self.flows for weight in flow.weights]
        return weights, [number for flow in self.flows for number in flow.crossings]

    def entries(self, one: Isomorphic, first: int) -> tuple[Short, Short, Short]:
        """Flow, link and terms of all that the communications of *one* lay; the first terms have that number."""
        count = len(one.numbers)
        links = np.concatenate([np.zeros((count, 0), np.int64), *self._links], axis=1)
        flows = one.flow_numbers().repeat([len(flow.links) for flow in self.flows], axis=1)
        terms = np.broadcast_to(first + np.arange(links.shape[1]), links.shape)
        return _short(flows), _short(links), _short(terms)


def _laid(pairs: Sequence[tuple[Isomorphic, _Contents]]) -> Placed:
    """What the flows of all isomorphic, each with its contents, lay on links."""
    terms = [content.terms for _, content in pairs]
    starts = accumulate((len(weights) for weights, _ in terms), initial=0)
    entries = [content.entries(one, start) for (one, content), start in zip(pairs, starts, strict=False)]
    none = np.zeros(0, np.int32)
    flows, links, which = (np.concatenate(column) for column in zip((none, none, none), *entries, strict=True))
    weights = np.array([weight for own, _ in terms for weight in own], np.float64)
    return Placed(flows, links, which, weights, np.array([number for _, own in terms for number in own], np.int64))


def _short(values: Indices) -> Short:
    return values.ravel().astype(np.int32)


def _told_apart(phase: Phase, slots: Indices) -> Iterator[tuple[Hashable, Flow, Indices]]:
    """Flows side by side, each with what it is known by in its communication, whoever made it, and with its links."""
    count: Counter[Hashable] = Counter()
    for flow in phase.flows:
        links = relabelled_links(flow.links, slots[0], slots)
        carried = links.tobytes(), flow.weights, flow.bound
        count[carried] += 1
        yield (carried, count[carried]), flow, links


def _alike(patterns: Sequence[Indices]) -> list[Indices]:
    """The places that have all *patterns* in common, set by set in order of first place."""
    which = np.zeros(len(patterns[0]), np.int64)
    for one in patterns:
        _, number = np.unique(one, return_inverse=True)
        _, which = np.unique(which * (number.max() + 1) + number, return_inverse=True)
    order = np.argsort(which, kind="stable")
    sets = np.split(order, np.flatnonzero(np.diff(which[order])) + 1)
    return sorted(sets, key=lambda places: int(places[0]))


def _label(one: Isomorphic) -> Hashable:
    """What tells communications apart before it is known where they lie."""
    asks = tuple((what, p.algorithm, p.protocol, p.sms, _outline(p)) for what, p in one.plans.items())
    # a rank's messages to several peers are told apart by the coordinates, as its ops tell them
    return one.group_class.axis, type(one.group_class.ops[0]), one.group_class.ends, asks


def _outline(plan: TransferPlan) -> Hashable:
    """A plan's phases without its links; latencies to 1e-16 s, since sums over other routes round otherwise."""
    counts = Counter(plan.phases)
    return tuple((round(p.latency, 16), p.nbytes, len(p.flows), n) for p, n in counts.items())


def _each(one: Isomorphic, values: Sequence[float], kind: type[np.generic]) -> NDArray[Any]:
    """*values*, one for each flow of a communication, for all communications of *one*."""
    return np.tile(np.array(values, kind), len(one.numbers))


def _joined(kind: type[np.generic], parts: Iterable[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, kind), *parts])
