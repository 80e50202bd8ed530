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

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from simulator.engine.cast import Communication, asked, communication, partners, planned
from simulator.engine.issue import enclosed
from simulator.engine.redundancy import binding, redundant
from simulator.engine.refinement import Colours, Edges, Indices, hashed, mixed, refine, told_apart
from simulator.engine.variation import Variation
from simulator.plan import Flow, Phase, Plan
from simulator.schedule import Collective, Copy, Op, Program, Recv, Schedule, Send
from simulator.transport.communicator import Communicator

RANK, COMMUNICATION, FLOW, LINK, HOST = range(5)
MEMBER, SENDER, RECEIVER = range(3)


class Folding:
    """The partition of *schedule* on the devices of *communicator*, and what its representatives do.

    *hosts* is by rank the host that it computes on, where it does.
    """

    def __init__(
        self, schedule: Schedule, communicator: Communicator, variation: Variation, hosts: Mapping[int, str]
    ) -> None:
        self.schedule, self.communicator = schedule, communicator
        self._names: list[tuple[object, ...]] = []
        self._ops: list[tuple[Op, ...]] = []
        self._flows: list[Flow] = []
        self._contents: list[Hashable] = []
        self._parts: list[tuple[int, int, int]] = []  # communication, rank, role
        self._made_of: list[tuple[int, object]] = []  # by flow: its communication, where it is used in it
        self._collect()
        self._number = {name: number for number, name in enumerate(self._names)}
        self._refine(variation, hosts)
        self._plans: dict[tuple[int, Hashable], Plan] = {}
        self._member_sets: dict[int, frozenset[int]] = {}
        self._enclosed: dict[tuple[int, str], bool] = {}

    def _collect(self) -> None:
        """Every communication with its partners and its flows."""
        schedule = self.schedule
        self._labels: list[Hashable] = []
        for name, ops in _communications(schedule):
            number = len(self._names)
            self._names.append(name)
            self._ops.append(ops)
            roles = [SENDER, RECEIVER] if isinstance(ops[0], Send) else None
            for place, rank in enumerate(partners(schedule, name)):
                self._parts.append((number, rank, roles[place] if roles else MEMBER))
            label: list[Hashable] = []
            used: dict[Hashable, list[tuple[int, int]]] = {}
            for index, op in enumerate(ops):
                plan = planned(schedule, self.communicator, name, op)
                label.append((asked(op), plan.algorithm, plan.protocol, plan.sms, _outline(plan)))
                for place, phase in enumerate(dict.fromkeys(plan.phases)):
                    for content, flow in _told_apart(phase.flows):
                        if content not in used:
                            self._flows.append(flow)
                            self._contents.append(content)
                        used.setdefault(content, []).append((index, place))
            bounds = (flow.bound for flow in self._flows[len(self._made_of) :])
            self._made_of += [(number, what) for what in zip(map(tuple, used.values()), bounds, strict=True)]
            # a rank's messages to several peers are told apart by the coordinates, as its ops tell them
            self._labels.append((getattr(ops[0], "over", ""), type(ops[0]), name[2:], tuple(label)))

    def _refine(self, variation: Variation, hosts: Mapping[int, str]) -> None:
        cluster, devices, schedule = self.communicator.cluster, self.communicator.devices, self.schedule
        ranks = [
            (index, cluster.accelerator(devices[rank]), variation.stragglers.get(rank, 1.0))
            for rank, index in enumerate(schedule.program_of)
        ]
        places = {host: number for number, host in enumerate(dict.fromkeys(hosts.values()))}
        sizes = np.array([len(flow.links) for flow in self._flows], np.int64)
        self._flow_at = np.repeat(np.arange(len(sizes)), sizes)
        numbers = np.fromiter(chain.from_iterable(flow.links for flow in self._flows), np.int64, sizes.sum())
        self._weights = np.fromiter(chain.from_iterable(f.weights for f in self._flows), np.float64, sizes.sum())
        self._crossings = np.fromiter(chain.from_iterable(f.crossings for f in self._flows), np.int64, sizes.sum())
        self._links, self._link_at = np.unique(numbers, return_inverse=True)
        transport = self.communicator.transport
        self._free = np.array(redundant(cluster, self._links.tolist(), transport.link_efficiency), np.bool_)
        binds = ~self._free[self._link_at]
        labels = mixed(self._weights.view(np.uint64)) ^ self._crossings.astype(np.uint64)
        colours = [
            hashed(ranks),
            hashed(self._labels),
            hashed([what for _, what in self._made_of]),
            hashed([cluster.links[number].bandwidth for number in self._links]),
            hashed([cluster.accelerator(host) for host in places]),
        ]
        edges = [
            _edges(COMMUNICATION, RANK, [(c, r) for c, r, _ in self._parts], [role for _, _, role in self._parts]),
            _edges(COMMUNICATION, FLOW, [(c, f) for f, (c, _) in enumerate(self._made_of)]),
            Edges(FLOW, LINK, self._flow_at[binds], self._link_at[binds], labels[binds]),
            _edges(RANK, HOST, [(rank, places[host]) for rank, host in hosts.items()]),
        ]
        self.classes = refine(colours, edges)
        self.classes[LINK] = self._with_free_links(labels)
        self._crowds(hosts)

    def _with_free_links(self, labels: Colours) -> Indices:
        """The classes of links; those that never bind are told apart by what lies on them, and tell nothing apart."""
        classes = self.classes[LINK]
        free = self._free[self._link_at]
        seen = Edges(LINK, FLOW, self._link_at[free], self._flow_at[free], labels[free])
        apart = told_apart(classes, self.classes[FLOW], seen)
        return np.unique(np.where(self._free, len(classes) + apart, classes), return_inverse=True)[1]

    def _crowds(self, hosts: Mapping[int, str]) -> None:
        count: dict[tuple[str, int], int] = defaultdict(int)
        classes = self.classes[RANK].tolist()
        for rank, host in hosts.items():
            count[host, classes[rank]] += 1
        self._crowd = {rank: count[host, classes[rank]] for rank, host in hosts.items()}

    @cached_property
    def stands_for(self) -> Sequence[int]:
        """By rank: the first of its class."""
        first = _firsts(self.classes[RANK])
        return [int(rank) for rank in first[self.classes[RANK]]]

    def crowd(self, rank: int) -> int:
        """How many ranks of the class of *rank* compute on its host."""
        return self._crowd.get(rank, 1)

    def communication(self, rank: int, op: Op) -> Communication:
        """The class of what *rank* takes part in with *op*."""
        return int(self.classes[COMMUNICATION][self._number[communication(self.schedule, rank, op)]])

    @cached_property
    def _partners(self) -> list[set[tuple[int, int]]]:
        """By class of communication: the (class, role) of those who take part."""
        kinds: list[set[tuple[int, int]]] = [set() for _ in range(len(self._first_communications))]
        ranks, classes = self.classes[RANK].tolist(), self.classes[COMMUNICATION].tolist()
        for number, rank, role in self._parts:
            kinds[classes[number]].add((ranks[rank], role))
        return kinds

    @cached_property
    def _first_communications(self) -> Indices:
        return _firsts(self.classes[COMMUNICATION])

    @cached_property
    def _copies(self) -> list[int]:
        return [int(count) for count in np.bincount(self.classes[COMMUNICATION])]

    def partners(self, name: Communication, op: Op) -> int:
        """How many representatives come: one for each class among the partners, in each role."""
        assert isinstance(name, int)
        return len(self._partners[name])

    def copies(self, name: Communication) -> int:
        """How many communications the class has."""
        assert isinstance(name, int)
        return self._copies[name]

    def private_axes(self, rank: int) -> frozenset[str]:
        """The axes whose collectives *rank* runs with nobody but ranks that it stands for, over links of their own.

        Whatever else lies on such a link stands in turn with them on the compute stream of a rank, or `enclosed` beside
        it, so that it is never there at the same time. How long these collectives take is known beforehand.
        """
        axes = (name for name, axis in self.schedule.mesh.axes.items() if axis.place(rank) is not None)
        numbers = {axis: self._number.get((axis, self._group(axis, rank))) for axis in axes}
        classes = self.classes[COMMUNICATION]
        return frozenset(
            axis for axis, number in numbers.items() if number is not None and self._private[classes[number]]
        )

    def _group(self, axis: str, rank: int) -> int:
        place = self.schedule.mesh.axes[axis].place(rank)
        assert place is not None
        return place[0]

    @cached_property
    def _private(self) -> list[bool]:
        """By class of communication: whether it is of one class of ranks alone, and nothing ever shares its links."""
        alone = [self._of_one_class(number) for number in range(len(self._first_communications))]
        classes = self.classes[COMMUNICATION].tolist()
        for together in self._together():
            ours = [number for number in together if alone[classes[number]]]
            if ours and not self._in_turn(together):
                for number in ours:
                    alone[classes[number]] = False
        return alone

    def _together(self) -> list[tuple[int, ...]]:
        """The communications that share a link, each set once."""
        made_of = np.array([number for number, _ in self._made_of], np.int64)
        link, number = np.divmod(np.unique(self._link_at * len(self._names) + made_of[self._flow_at]), len(self._names))
        sets = np.split(number, np.flatnonzero(np.diff(link)) + 1)
        return list(dict.fromkeys(tuple(numbers.tolist()) for numbers in sets if len(numbers) > 1))

    def _of_one_class(self, number: int) -> bool:
        """Whether a class of collectives has ranks of one class only, and plans of one flow at a time."""
        ops = self._ops[int(self._first_communications[number])]
        if not isinstance(ops[0], Collective) or len(self._partners[number]) != 1:
            return False
        phases = (phase for op in ops for phase in dict.fromkeys(self.plan(number, op).phases))
        first = int(self._first_communications[number])
        return self._in_turn({first}) and all(len(phase.flows) < 2 for phase in phases)

    def _in_turn(self, together: Collection[int]) -> bool:
        """Whether some rank takes part in all communications of *together*, in turn.

        That is always on its compute stream, or one alone enclosed by it.
        """
        names = [self._names[number] for number in together]
        smallest = min((partners(self.schedule, name) for name in names), key=len)
        groups = [self._members(number) for number in together]
        return any(
            all(rank in group for group in groups)
            and self._one_by_one(self.schedule.program_of[rank], {name[0] for name in names})
            for rank in smallest
        )

    def _members(self, number: int) -> frozenset[int]:
        if number not in self._member_sets:
            self._member_sets[number] = frozenset(partners(self.schedule, self._names[number]))
        return self._member_sets[number]

    def _one_by_one(self, number: int, axes: Collection[object]) -> bool:
        """Whether a program communicates over *axes* on its compute stream alone, but for one that is enclosed."""
        beside = [axis for axis in axes if axis not in self._blocking[number]]
        return not beside or (len(beside) == 1 and self._is_enclosed(number, str(beside[0])))

    def _is_enclosed(self, number: int, axis: str) -> bool:
        if (number, axis) not in self._enclosed:
            self._enclosed[number, axis] = enclosed(self.schedule.programs[number], axis)
        return self._enclosed[number, axis]

    @cached_property
    def _blocking(self) -> list[set[object]]:
        """By program: the axes over which it communicates on its compute stream and no other."""
        found = []
        for program in self.schedule.programs:
            streams: dict[object, set[str]] = defaultdict(set)
            for op in program.distinct():
                if isinstance(op, Collective | Send | Recv):
                    streams[op.over].add(op.stream)
            found.append({axis for axis, used in streams.items() if used == {"compute"}})
        return found

    def plan(self, name: Communication, op: Op) -> Plan:
        """The plan of the class's first communication, its flows given way to those of their classes."""
        assert isinstance(name, int)
        key = name, asked(op)
        if key not in self._plans:
            number = int(self._first_communications[name])
            plan = planned(self.schedule, self.communicator, self._names[number], op)
            again: dict[Phase, Phase] = {}
            for phase in plan.phases:
                if phase not in again:
                    contents = (content for content, _ in _told_apart(phase.flows))
                    flows = dict.fromkeys(self._folded[self._class_of[number, content]] for content in contents)
                    again[phase] = Phase(phase.latency, tuple(flows), phase.nbytes, phase.contended)
            phases = tuple(again[phase] for phase in plan.phases)
            self._plans[key] = Plan(plan.algorithm, plan.protocol, phases, plan.sent_bytes, plan.sms)
        return self._plans[key]

    @cached_property
    def _class_of(self) -> dict[tuple[int, Hashable], int]:
        """By communication and content of a flow: the class of the flow."""
        classes = self.classes[FLOW].tolist()
        numbers = (number for number, _ in self._made_of)
        return dict(zip(zip(numbers, self._contents, strict=True), classes, strict=True))

    @cached_property
    def alike(self) -> Mapping[int, int]:
        """By number of the first link of a class: how many links are in it."""
        first, count = _firsts(self.classes[LINK]), np.bincount(self.classes[LINK])
        return {int(self._links[link]): int(n) for link, n in zip(first, count, strict=True)}

    @cached_property
    def capacity(self) -> Sequence[float]:
        """What each row can carry: one row for each class of links, by the capacity of its first."""
        links = self.communicator.cluster.links
        return [links[self._links[link]].bandwidth for link in _firsts(self.classes[LINK])]

    @cached_property
    def _folded(self) -> list[Flow]:
        """By class of flows: what all of them together lay on the first link of each class."""
        classes = self.classes[FLOW]
        first = _firsts(self.classes[LINK])
        row = self.classes[LINK][self._link_at]
        on: list[dict[int, list[float]]] = [defaultdict(lambda: [0.0, 0.0]) for _ in range(len(_firsts(classes)))]
        for place in np.flatnonzero(first[row] == self._link_at).tolist():
            laid = on[int(classes[self._flow_at[place]])][int(row[place])]
            laid[0] += self._weights[place]
            laid[1] += self._crossings[place]
        free = self._free[first]
        laid_on = [{row: laid for row, laid in flow.items() if not free[row]} for flow in on]
        kept = binding(laid_on, self.capacity)
        return [self._flow(int(flow), laid, kept) for flow, laid in zip(_firsts(classes), on, strict=True)]

    def _flow(self, member: int, laid: Mapping[int, Sequence[float]], kept: set[int]) -> Flow:
        first = _firsts(self.classes[LINK])
        rows = tuple(row for row in laid if row in kept)
        weights = tuple(laid[row][0] for row in rows)
        bound = self._flows[member].bound
        alone = min((self.capacity[row] / w for row, w in zip(rows, weights, strict=True)), default=bound)
        links = tuple(int(self._links[first[row]]) for row in laid)
        return Flow(links, tuple(int(laid[row][1]) for row in laid), rows, weights, min(alone, bound), bound)


def _communications(schedule: Schedule) -> Iterator[tuple[tuple[object, ...], tuple[Op, ...]]]:
    """Every communication there is, and its distinct operations, as the first of its ranks or its sender has them."""
    distinct = [_distinct(program) for program in schedule.programs]
    for axis_name, axis in schedule.mesh.axes.items():
        for number, group in enumerate(axis.groups):
            ops = distinct[schedule.program_of[group[0]]].get((axis_name,))
            if ops:
                yield (axis_name, number), ops
    for rank, index in enumerate(schedule.program_of):
        for where, ops in distinct[index].items():
            if isinstance(ops[0], Send | Copy):
                assert len(where) != 1
                yield communication(schedule, rank, ops[0]), ops


def _distinct(program: Program) -> dict[tuple[Hashable, ...], tuple[Op, ...]]:
    """The operations of a program that ask for different things, by axis, by axis and peer, or of copies."""
    found: dict[tuple[Hashable, ...], dict[Hashable, Op]] = defaultdict(dict)
    for op in program.distinct():
        if isinstance(op, Collective):
            found[op.over,].setdefault(asked(op), op)
        elif isinstance(op, Send):
            found[op.over, op.peer].setdefault(asked(op), op)
        elif isinstance(op, Copy):
            found["copies", program.role].setdefault(asked(op), op)
    return {where: tuple(ops.values()) for where, ops in found.items()}


def _told_apart(flows: Iterable[Flow]) -> Iterator[tuple[Hashable, Flow]]:
    """Flows side by side, each with what it is known by in its communication, whoever made it."""
    count: dict[Hashable, int] = defaultdict(int)
    for flow in flows:
        content = flow.links, flow.weights, flow.bound
        count[content] += 1
        yield (content, count[content]), flow


def _outline(plan: Plan) -> Hashable:
    """A plan's phases without its links; latencies to 1e-16 s, since sums over other routes round otherwise."""
    counts: dict[Phase, int] = {}
    for phase in plan.phases:
        counts[phase] = counts.get(phase, 0) + 1
    return tuple((round(p.latency, 16), p.nbytes, len(p.flows), n) for p, n in counts.items())


def _edges(one: int, other: int, pairs: Sequence[tuple[int, int]], labels: Sequence[Hashable] | None = None) -> Edges:
    flat = np.array(pairs, np.int64).reshape(-1, 2)
    return Edges(one, other, flat[:, 0], flat[:, 1], hashed(labels if labels is not None else [0] * len(pairs)))


def _firsts(classes: Indices) -> Indices:
    """The first vertex of each class."""
    return np.unique(classes, return_index=True)[1]
