"""Lowering makes the arrays of a simulation from a schedule and its network, by template and with numpy, not op by op.

Structure (kind, stream, dependencies, key) is stored once for each program and shared by its ranks. Requests and
durations are stored by rank. `simulator.engine.compiled.arrays` says what the arrays hold.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from clustersim.simulator.analysis.metrics import keys, part_of
from clustersim.simulator.engine.compiled.arrays import (
    ABREAST,
    AMOUNT,
    BACKGROUND_BEGIN,
    BACKGROUND_END,
    BUFFERED_SEND,
    CAPACITY,
    CHANGE,
    COMMUNICATION,
    DELAY,
    DEPENDENCY,
    END,
    ENTRY,
    FLOW,
    GPU,
    HOST,
    NONE,
    OP,
    OPTIONS,
    PHASE,
    PLAN,
    PROGRAM,
    QUEUE,
    RANK,
    RECEIVE,
    REQUEST,
    SERVER,
    Array,
    Lowered,
)
from clustersim.simulator.engine.pricing import Pricing
from clustersim.simulator.engine.setup import Communication, Setup
from clustersim.simulator.hardware.hashing import distinct, representatives_of
from clustersim.simulator.network.plan import Flow, TransferPlan
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.dependencies import dependencies
from clustersim.simulator.schedule.matching import request_of
from clustersim.simulator.schedule.ops import CATEGORIES, Compute, Delay, Op, Recv, Send
from clustersim.simulator.schedule.program import Program

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lowering:
    """A *setup* lowered to *arrays*, and the meaning of the indices in them.

    *ranks*: the simulated ranks. *streams*: by program the names of its streams. *flows*: by number. *plans*: by number
    the name of the communication and its op. *parts*: the names of the parts of the breakdown. *channels*, *servers*,
    *hosts* and *host_pools*: how many there are.
    """

    setup: Setup
    arrays: Lowered
    ranks: Sequence[int]
    streams: Sequence[Sequence[str]]
    flows: tuple[Flow, ...]
    plans: Sequence[tuple[Communication, Op]]
    channels: int
    servers: int
    hosts: int
    host_pools: int
    parts: tuple[str, ...]

    def with_pricing(self, pricing: Pricing) -> Lowering:
        """The same with the durations of *pricing*. All other arrays are shared."""
        setup, ranks = replace(self.setup, pricing=pricing), self.arrays.ranks.copy()
        durations = _durations(setup, self.ranks, ranks)
        return replace(self, setup=setup, arrays=self.arrays._replace(ranks=ranks, durations=durations))


def lower(setup: Setup, *, kept: Iterable[int] | None = None, totals: bool = True, record: bool = True) -> Lowering:
    """Lower *setup*.

    *kept*: the representatives that keep their spans; None: all. *totals*: if not all spans are kept, accumulate totals
    of time and memory. *record*: record the rates of flows over time.
    """
    return _Lowerer(setup).lower(None if kept is None else set(kept), totals, record)


_FIELDS = ("kind", "server", "holds", "priority", "part")
"""Of an op in the arrays: those that follow from the op of its template alone."""


class _Lowerer:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.schedule = setup.schedule
        self.ranks = representatives_of(setup.classes.representative).tolist()
        self.used = sorted({self.schedule.program_of[rank] for rank in self.ranks})
        self.programs = [self.schedule.programs[number] for number in self.used]
        self.parts = {name: number for number, name in enumerate(keys(self.schedule))}
        self.server_names: dict[str, int] = {}
        self.streams = [list(dict.fromkeys(op.stream for op in program.distinct())) for program in self.programs]

    def lower(self, kept: set[int] | None, totals: bool, record: bool) -> Lowering:
        structure = self._structure()
        requests, plans, channels = self._requests()
        table, flows = plan_arrays([self.setup.classes.plan(*which) for which in plans], self.setup)
        ranks, durations, hosts = self._ranks(structure["programs"], kept)
        ops = int(structure["programs"]["ops"][ranks["program"][:-1]].sum())
        options, steps = np.zeros(1, OPTIONS), self.schedule.steps
        options[0] = (steps, totals and kept is not None, record, ops * steps, ops)
        arrays = Lowered(
            **structure,
            ranks=ranks,
            durations=durations,
            requests=requests,
            **table,
            changes=change_array(self.setup, flows),
            options=options,
        )
        return Lowering(
            *(self.setup, arrays, self.ranks, self.streams, tuple(flows), plans),
            *(channels, len(self.server_names), hosts, self.host_pools, tuple(self.parts)),
        )

    # Structure, by program.

    def _structure(self) -> dict[str, Array]:
        """The arrays of programs, queues, ops, dependencies and amounts of memory, by name."""
        # a queue has a record more than ops, which marks its end, and so has the last one
        records_ = [len(one.ops) + len(streams) for one, streams in zip(self.programs, self.streams, strict=True)]
        ops = np.zeros(sum(records_) + 1, OP)
        dependencies_, amounts, queues = [], [], [0]
        sizes = {"dependencies": 0, "amounts": 0}
        *parts, last = np.split(ops, np.cumsum(records_))
        for place, own in enumerate(parts):
            lengths, waits, held = self._of_program(place, own)
            queues += list(accumulate((length + 1 for length in lengths), initial=queues[-1]))[1:]
            own["first_dependency"] += sizes["dependencies"]
            own["first_allocation"] += sizes["amounts"]
            own["first_free"] += sizes["amounts"]
            sizes["dependencies"] += len(waits)
            sizes["amounts"] += len(held)
            dependencies_.append(waits)
            amounts.append(held)
        last["first_dependency"], last["first_allocation"] = sizes["dependencies"], sizes["amounts"]
        programs = np.zeros(len(self.programs) + 1, PROGRAM)
        programs["ops"][:-1] = [len(program.ops) for program in self.programs]
        programs["first_queue"] = list(accumulate(map(len, self.streams), initial=0))
        return {
            "programs": programs,
            "queues": np.array(queues, np.int64).astype(QUEUE),
            "ops": ops,
            "dependencies": np.concatenate([np.zeros(0, DEPENDENCY), *dependencies_]),
            "amounts": np.concatenate([np.zeros(0, AMOUNT), *amounts]),
        }

    def _of_program(self, number: int, ops: Array) -> tuple[list[int], Array, Array]:
        """Of one of the programs: the lengths of its queues, its dependencies, its amounts of memory.

        *ops*: its ops by queue, which are filled in.
        """
        program, names, count = self.programs[number], self.streams[number], len(self.programs[number].ops)
        stream = program.column(lambda op: names.index(op.stream), np.int64)
        issued = np.argsort(stream, kind="stable")
        lengths = np.bincount(stream, minlength=len(names))
        position = np.empty(count, np.int64)
        position[issued] = np.arange(count) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        place = (np.cumsum(lengths + 1) - lengths - 1)[stream] + position
        ops["kind"] = END
        for name, values in self._ops(program, self.used[number]).items():
            ops[name][place] = values
        waiting, awaited = dependencies(program)
        ops["watched"][place[awaited]] = 1
        order = np.argsort(place[waiting], kind="stable")
        waits = np.zeros(len(waiting), DEPENDENCY)
        waits["queue"], waits["position"] = stream[awaited][order], position[awaited][order]
        ops["first_dependency"] = np.searchsorted(place[waiting][order], np.arange(len(ops)))
        held, ops["first_allocation"], ops["first_free"] = _amounts(program, place, len(ops))
        return lengths.tolist(), waits, held

    def _ops(self, program: Program, number: int) -> dict[str, Any]:
        """By name the fields of the ops of *program*, in its order, without dependencies and memory."""
        templated = program.templated
        of_templates = [self._fields(op) for template in templated.templates for op in template]
        found = np.array(of_templates, np.int32).reshape(-1, len(_FIELDS))[templated.places]
        fields = dict(zip(_FIELDS, found.T, strict=True))
        timed, matching = fields["kind"] < COMMUNICATION, self.setup.schedule.matching
        return {
            **fields,
            "index": np.arange(len(found)),
            "duration": np.where(timed, np.cumsum(timed) - 1, NONE),
            "request": matching.request[number],
            "key": matching.key[number],
        }

    def _fields(self, op: Op) -> tuple[int, ...]:
        """The `_FIELDS` of *op*."""
        part = self.parts[part_of(op)]
        if not isinstance(op, Compute):
            return _kind(op), self._server(op), 0, 0, part
        return _kind(op), self._server(op), int(op.holds), op.priority, part

    def _server(self, op: Op) -> int:
        if op.at_server is None:
            return NONE
        return self.server_names.setdefault(op.at_server, len(self.server_names))

    # By rank.

    def _requests(self) -> tuple[Array, list[tuple[Communication, Op]], int]:
        """The requests of all ranks, the plans that they need, and the number of channels."""
        classes, matching = self.setup.classes, self.setup.schedule.matching
        plans: dict[tuple[Hashable, Hashable], int] = {}
        channels: dict[Hashable, int] = {}
        which: list[tuple[Communication, Op]] = []
        rows = []
        requests = {number: [(op, request_of(op)) for op in matching.requests[number]] for number in self.used}
        for rank in self.ranks:
            for op, request in requests[self.schedule.program_of[rank]]:
                name = classes.communication(rank, op)
                plan = plans.setdefault((name, request), len(plans))
                if plan == len(which):
                    which.append((name, op))
                rows.append((channels.setdefault(name, len(channels)), plan, classes.partners(name, op)))
        return records(REQUEST, rows), which, len(channels)

    def _ranks(self, programs: Array, kept: set[int] | None) -> tuple[Array, npt.NDArray[np.float64], int]:
        """The ranks, the durations of their timed ops, and the number of hosts."""
        steps, pricing, classes = self.schedule.steps, self.setup.pricing, self.setup.classes
        program = np.searchsorted(self.used, self.schedule.program_numbers[self.ranks])
        ranks = np.zeros(len(self.ranks) + 1, RANK)
        ranks["program"][:-1] = program
        ranks["first_stream"][1:] = np.cumsum(np.diff(programs["first_queue"])[program])
        of_program = np.array([len(self.setup.schedule.matching.requests[number]) for number in self.used])
        ranks["first_request"][1:] = np.cumsum(of_program[program])
        spans = programs["ops"][program].astype(np.int64) * steps
        keeps = np.array([kept is None or rank in kept for rank in self.ranks], np.bool_)
        ranks["first_span"][:-1] = np.where(keeps, np.cumsum(spans * keeps) - spans * keeps, NONE)
        hosts: dict[Hashable, int] = {}
        for place, rank in enumerate(self.ranks):
            host = pricing.host(rank)
            ranks["host"][place] = NONE if host is None else hosts.setdefault(classes.host(host), len(hosts))
        ranks["multiplicity"][:-1] = [classes.ranks_on_host(rank) for rank in self.ranks]
        ranks["gpu_pool"][:-1] = np.arange(len(self.ranks))
        ranks["host_pool"][:-1], self.host_pools = self._host_pools()
        return ranks, _durations(self.setup, self.ranks, ranks), len(hosts)

    def _host_pools(self) -> tuple[list[int], int]:
        """By rank the memory pool of its node's host, numbered after the GPUs' pools; and how many nodes there are."""
        cluster, devices = self.setup.pricing.cluster, self.setup.pricing.devices
        nodes: dict[int | str, int] = {}
        where = [nodes.setdefault(cluster.node_of(devices[rank]), len(nodes)) for rank in self.ranks]
        return [len(self.ranks) + node for node in where], len(nodes)


def _durations(setup: Setup, simulated: Sequence[int], ranks: Array) -> npt.NDArray[np.float64]:
    """The durations of the timed ops of *simulated* ranks, s. Ranks with equal durations share them.

    Up to `ABREAST` ranks of a program lie side by side. Where the durations of each are is written to *ranks*.
    """
    schedule, pricing = setup.schedule, setup.pricing
    of_rank = schedule.program_numbers[simulated]
    abreast = min(ABREAST, int(np.bincount(of_rank).max()))
    used = distinct(of_rank).tolist()
    timed = {number: schedule.programs[number].column(_kind, np.int32) < COMMUNICATION for number in used}
    number_of = {number: int(one.sum()) for number, one in timed.items()}
    counts = np.array([number_of[number] for number in of_rank.tolist()], np.int64)
    varies = pricing.variation.changes
    lengths = abreast * counts * (schedule.steps if varies else 1)
    # the size for ranks that share nothing; what is not written to takes no memory
    durations = np.empty(sum(int(lengths[of_rank == number][::abreast].sum()) for number in used))
    known: dict[Hashable, int] = {}
    free: dict[int, list[int]] = {number: [] for number in used}
    size = 0
    for place, (rank, program) in enumerate(zip(simulated, of_rank.tolist(), strict=True)):
        key = pricing.durations_key(rank)
        if key not in known:
            if not free[program]:
                free[program] = list(range(size, size + abreast))[::-1]
                size += int(lengths[place])
            own = pricing.durations(rank)[:, timed[program]]
            known[key] = free[program].pop()
            durations[known[key] : known[key] + lengths[place] : abreast] = (own if varies else own[:1]).ravel()
        ranks["first_duration"][place] = known[key]
    ranks["duration_step"][:-1], ranks["abreast"] = counts if varies else 0, abreast
    return durations[:size]


def _kind(op: Op) -> int:
    match op:
        case Compute():
            return SERVER if op.server is not None else HOST if op.on == "host" else GPU
        case Delay():
            return DELAY
        case Send():
            return BUFFERED_SEND if op.buffered else COMMUNICATION
        case Recv():
            return RECEIVE
    return COMMUNICATION


def _amounts(program: Program, place: Integers, count: int) -> tuple[Array, Integers, Integers]:
    """What ops allocate and free, op after op; and by op the index of its first allocation and of its first free.

    *place*: of each op of *program* among *count* records.
    """
    ops = program.templated
    allocations, frees = (
        [*(_held(program, getattr(op, name)) for template in ops.templates for op in template), []]
        for name in ("allocates", "frees")
    )
    both = [[*a, *f] for a, f in zip(allocations, frees, strict=True)]
    sizes = np.array(list(map(len, both)), np.int64)
    flat = records(AMOUNT, [row for rows in both for row in rows], last=False)
    # by record its op of a template; the last has no amounts
    which = np.full(count, len(both) - 1)
    which[place] = ops.places
    begins, counts = (np.cumsum(sizes) - sizes)[which], sizes[which]
    ends = np.cumsum(counts)
    entries = np.arange(counts.sum()) + np.repeat(begins - ends + counts, counts)
    first = ends - counts
    return flat[entries], first, first + np.array(list(map(len, allocations)), np.int64)[which]


def _held(program: Program, amounts: Any) -> list[tuple[int, int, float]]:
    """(pool, category, bytes) of each of the *amounts* that an op allocates or frees, those of the GPU first."""
    if not amounts:
        return []
    rows = []
    for name, nbytes in amounts.items():
        on_host = program.on == "host" or name.startswith("host.")
        rows.append((int(on_host), CATEGORIES.index(name.removeprefix("host.")), nbytes))
    return sorted(rows)


def records(dtype: np.dtype[Any], rows: Sequence[tuple[Any, ...]], last: bool = True) -> Array:
    """*rows* as records of *dtype*; with *last*, one record more, which marks the end
    (`simulator.engine.compiled.arrays`).
    """
    made = np.zeros(len(rows) + last, dtype)
    made[: len(rows)] = rows
    return made


def plan_arrays(plans: Sequence[TransferPlan], setup: Setup) -> tuple[dict[str, Array], list[Flow]]:
    """The arrays of *plans*, their phases, flows and entries, by name; and the flows by number, background last."""
    numbers: dict[int, int] = {}
    flows: list[Flow] = []

    def number(flow: Flow) -> int:
        found = numbers.setdefault(id(flow), len(flows))
        if found == len(flows):
            flows.append(flow)
        return found

    plan_table = np.zeros(len(plans) + 1, PLAN)
    plan_table["sms"][:-1] = [plan.sms for plan in plans]
    plan_table["delivery"][:-1] = [plan.delivery for plan in plans]
    plan_table["first_phase"][1:] = np.cumsum([len(plan.phases) for plan in plans])
    every_phase = [phase for plan in plans for phase in plan.phases]
    phases = np.zeros(len(every_phase) + 1, PHASE)
    phases["contended"][:-1] = [phase.contended for phase in every_phase]
    phases["latency"][:-1] = [phase.latency for phase in every_phase]
    phases["nbytes"][:-1] = [phase.nbytes for phase in every_phase]
    phases["first_flow"][1:] = np.cumsum([len(phase.flows) for phase in every_phase])
    phase_flows = np.array([number(flow) for phase in every_phase for flow in phase.flows], np.int64)
    for traffic in setup.background:
        number(traffic.flow)
    flow_table = np.zeros(len(flows) + 1, FLOW)
    flow_table["bound"][:-1] = [flow.bound for flow in flows]
    sizes = np.array([len(flow.rows) for flow in flows], np.int64)
    flow_table["first_entry"][1:] = np.cumsum(sizes)
    entries = np.zeros(int(sizes.sum()), ENTRY)
    entries["flow"] = np.repeat(np.arange(len(flows)), sizes)
    entries["row"] = np.concatenate([np.zeros(0, np.int64), *(flow.rows for flow in flows)])
    entries["weight"] = np.concatenate([np.zeros(0), *(flow.weights for flow in flows)])
    return {
        "plans": plan_table,
        "phases": phases,
        "phase_flows": phase_flows,
        "flows": flow_table,
        "entries": entries,
    }, flows


def change_array(setup: Setup, flows: Sequence[Flow]) -> Array:
    """The changes of the network from outside, ascending in time; *flows* are by number."""
    number = {id(flow): index for index, flow in enumerate(flows)}
    changes = [(CAPACITY, change.row, change.time, change.capacity) for change in setup.capacity_changes]
    for traffic in setup.background:
        changes.append((BACKGROUND_BEGIN, number[id(traffic.flow)], traffic.begin, 0.0))
        changes.append((BACKGROUND_END, number[id(traffic.flow)], traffic.end, 0.0))
    return records(CHANGE, sorted(changes, key=lambda change: change[2]), last=False)
