"""Execution of a lowered schedule by the compiled event loop: allocate its state, run it, read the outcome.

Of a run too large to keep every span, the outcome has the totals that the loop accumulates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from clustersim.simulator.analysis.timeline import Columns, LinkBins, RateIntervals, Totals
from clustersim.simulator.engine.compiled import arrays, event_loop
from clustersim.simulator.engine.compiled.arrays import NONE, Array, Lowered, State
from clustersim.simulator.engine.compiled.lowering import Lowering, lower
from clustersim.simulator.engine.outcome import Executed, Outcome, Waiting
from clustersim.simulator.engine.setup import Setup
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.plan import Flow
from clustersim.simulator.schedule.ops import CATEGORIES
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule

Floats = npt.NDArray[np.float64]

MOST_BINS = 2048
"""The most bins of link use over time: about as many as a chart has pixels."""

Watch = Callable[[float], Any]
"""A function that is called with the fraction of ops that have ended, 0 to 1."""

PAUSE = 0.2
"""Seconds after which the loop returns to Python, so that progress is shown and Ctrl-C works."""


def run(setup: Setup, watch: Watch | None = None, kept: Collection[int] | None = None) -> Outcome:
    """Run *setup* on the compiled engine. *kept*: the representatives that keep their spans; None: all."""
    return CompiledExecution(lower(setup, kept=kept), watch).run()


class CompiledExecution:
    """One run of *lowering*; *watch* is called with its progress."""

    def __init__(self, lowering: Lowering, watch: Watch | None = None) -> None:
        self.lowering, self.low = lowering, lowering.arrays
        self.watch = watch
        self.state = _state(lowering)
        self.intervals: list[Array] = []
        self.first_step = 0.0, np.zeros(0)
        accumulates = bool(self.low.options["accumulate"][0])
        multiplicity = lowering.setup.classes.link_multiplicity
        cluster = lowering.setup.pricing.cluster
        self.link_bins = LinkBinner(cluster, lowering.flows, multiplicity) if accumulates else None

    def run(self) -> Outcome:
        """Run until all ops have ended, or until no event is left."""
        low = self.low
        widest = int(np.diff(low.phases["first_flow"]).max(initial=1))
        budget = 10_000
        while True:
            begin = perf_counter()
            status = event_loop.advance(low, self.state, budget, widest)
            if status == event_loop.CONTINUE:
                budget = int(budget * np.clip(PAUSE / max(perf_counter() - begin, 1e-9), 0.5, 2.0))
                if self.watch is not None:
                    self.watch(self.state.counts[arrays.ENDED] / max(1, int(low.options["ops"][0])))
            elif status == event_loop.MORE_COMMUNICATIONS:
                self._grow("communications", "free_communications", arrays.FREE_COMMUNICATIONS)
            elif status == event_loop.MORE_TRANSFERS:
                self._grow("transfers", "free_transfers", arrays.FREE_TRANSFERS)
            elif status == event_loop.MORE_INTERVALS:
                self._take_intervals(widest)
            elif status == event_loop.FIRST_STEP_ENDED:
                now = float(self.state.clock[0])
                self.first_step = now, seconds_until(self.state, now)
            else:
                return self._outcome()

    def _grow(self, name: str, free: str, height: int) -> None:
        """Double the records of the state array *name*, and grow the arrays of their events.

        *free*: the name of the stack of free records, *height*: the index of its height in `State.counts`.
        """
        old = getattr(self.state, name)
        size, count = len(old), self.state.counts
        stack = np.zeros(2 * size, np.int64)
        stack[: count[height]] = getattr(self.state, free)[: count[height]]
        stack[count[height] : count[height] + size] = np.arange(2 * size - 1, size - 1, -1)
        count[height] += size
        state = self.state._replace(**{name: np.concatenate([old, np.zeros_like(old)]), free: stack})
        entities = len(state.streams) + 2 * max(len(state.communications), len(state.transfers))
        places = np.full(entities, NONE, np.int32)
        places[: len(state.places)] = state.places
        heap = _no_events(entities)
        heap[: len(state.heap)] = state.heap
        starting = np.zeros(len(state.communications) + 1, np.int64)
        starting[: len(state.starting)] = state.starting
        ending = np.zeros(len(state.streams) + len(starting), np.int64)
        ending[: len(state.ending)] = state.ending
        self.state = state._replace(places=places, heap=heap, starting=starting, ending=ending)

    def _take_intervals(self, widest: int) -> None:
        """Move the recorded intervals to a list, or add them to the bins, and make room for more."""
        count = self.state.counts
        recorded = self.state.intervals[: count[arrays.INTERVALS]]
        if self.link_bins is not None:
            self.link_bins.add(recorded)
        else:
            self.intervals.append(recorded.copy())
        count[arrays.INTERVALS] = 0
        needed = 4 * len(self.state.transfers) + widest
        if len(self.state.intervals) < needed:
            self.state = self.state._replace(intervals=np.zeros(needed, arrays.INTERVAL))

    def _outcome(self) -> Outcome:
        self._take_intervals(0)
        low, state = self.low, self.state
        intervals = np.concatenate([np.zeros(0, arrays.INTERVAL), *self.intervals])
        executed = (
            Executed(name, op, times)
            for (name, op), times in zip(self.lowering.plans, state.plan_count.tolist(), strict=True)
            if times
        )
        return Outcome(
            columns=self._columns(),
            flows=self.lowering.flows,
            flow_bytes=state.flows["nbytes"],
            intervals=RateIntervals(*(np.ascontiguousarray(intervals[name]) for name in RateIntervals._fields)),
            communications=tuple(executed),
            waiting=tuple(self._waiting()) if state.counts[arrays.ENDED] < low.options["ops"][0] else (),
            totals=self._totals(),
        )

    def _totals(self) -> Totals | None:
        if self.link_bins is None:
            return None
        bins = self.link_bins.bins(float(self.state.clock[0]))
        lowering = self.lowering
        schedule = lowering.setup.schedule
        return totals(schedule, lowering.ranks, lowering.parts, self.low, self.state, self.first_step, bins)

    def _columns(self) -> dict[int, Columns]:
        """The spans of the ranks that keep them, by rank. Ranks of one program share the columns of ops and steps."""
        ops, steps = self.low.programs["ops"], int(self.low.options["steps"][0])
        shared: dict[int, tuple[Array, Array]] = {}
        found = {}
        for place, rank in enumerate(self.lowering.ranks):
            first, program = self.low.ranks["first_span"][place], int(self.low.ranks["program"][place])
            if first == NONE:
                continue
            if program not in shared:
                count = int(ops[program])
                shared[program] = np.tile(np.arange(count), steps), np.repeat(np.arange(steps), count)
            own = slice(first, first + len(shared[program][0]))
            ready, begin, end = self.state.spans[:, own]
            found[rank] = Columns(*shared[program], ready, begin, end, self.state.span_communication[own])
        return found

    def _waiting(self) -> list[Waiting]:
        """The unfinished streams, each with what it waits for."""
        low, state, steps = self.low, self.state, self.low.options["steps"][0]
        arrived = self._arrived()
        found = []
        for number, stream in enumerate(state.streams):
            rank = low.ranks[stream["rank"]]
            first_queue = low.programs["first_queue"][rank["program"]] - rank["first_stream"]
            first, after = low.queues["first"][first_queue + number : first_queue + number + 2]
            step, position = divmod(int(stream["done"]) + int(stream["posted"]), int(after - first) - 1)
            if step == steps:
                continue
            awaited = None
            if stream["awaits"] != NONE:
                begin, end = low.queues["first"][first_queue + stream["awaits"] :][:2]
                awaited = int(low.ops["index"][begin + (stream["awaited"] - 1) % (end - begin - 1)])
            name = self.lowering.streams[rank["program"]][number - rank["first_stream"]]
            op = int(low.ops["index"][first + position])
            partners = arrived.get(number, ())
            found.append(Waiting(self.lowering.ranks[stream["rank"]], name, op, step, awaited, partners))
        return found

    def _arrived(self) -> dict[int, tuple[int, ...]]:
        """For each stream that waits for partners: the ranks that have arrived at its communication."""
        communications, streams = self.state.communications, self.state.streams
        found = {}
        for head in self.state.channels.tolist():
            place = head
            while place != NONE:
                members, number = [], int(communications["head"][place])
                while number != NONE:
                    members.append(number)
                    number = int(streams["next"][number])
                ranks = tuple(self.lowering.ranks[streams["rank"][member]] for member in reversed(members))
                found.update(dict.fromkeys(members, ranks))
                place = int(communications["next"][place])
        return found


def _state(lowering: Lowering) -> State:
    """The state at the begin of a run: all streams advance to their first op."""
    low, flows = lowering.arrays, len(lowering.flows)
    program = low.ranks["program"][:-1]
    each = np.diff(low.programs["first_queue"])[program]
    streams, rows = int(each.sum()), len(lowering.setup.classes.capacity)
    communications, transfers = streams + 64, 1024
    entities = streams + 2 * max(communications, transfers)
    parts, pools = len(lowering.parts), len(lowering.ranks) + lowering.host_pools
    kept = low.ranks["first_span"][:-1] != NONE
    lengths = low.programs["ops"][program].astype(np.int64) * int(low.options["steps"][0])
    made: dict[str, Array] = {
        "clock": np.array([0.0, np.inf]),
        "counts": np.zeros(arrays.COUNTS, np.int64),
        "ending": np.zeros(streams + communications + 1, np.int64),
        "advancing": np.zeros(2 * streams + 1, np.int64),
        "starting": np.zeros(communications + 1, np.int64),
        "streams": _by_line(np.zeros(streams, arrays.STREAM_STATE)),
        "heads": np.full(streams, np.array((NONE, np.nan, np.nan), arrays.HEAD_STATE)),
        "ranks": np.zeros(len(lowering.ranks), arrays.RANK_STATE),
        "under_way": np.zeros((len(lowering.ranks), parts), np.int32),
        "seconds": np.zeros((len(lowering.ranks), parts)),
        "hosts": np.zeros(lowering.hosts, arrays.HOST_STATE),
        "servers": np.full(lowering.servers, NONE, arrays.SERVER_STATE),
        "channels": np.full(lowering.channels, NONE, np.int64),
        "communications": np.zeros(communications, arrays.COMMUNICATION_STATE),
        "free_communications": np.arange(communications - 1, -1, -1),
        "transfers": np.zeros(transfers, arrays.TRANSFER_STATE),
        "free_transfers": np.arange(transfers - 1, -1, -1),
        "flows": np.zeros(flows, arrays.FLOW_STATE),
        "dirty": np.zeros(flows, np.int64),
        "entries": np.zeros(len(low.entries), arrays.ENTRY_STATE),
        "rows": np.zeros(rows, arrays.ROW_STATE),
        "solved": np.zeros(flows + 1, np.int64),
        "filled": np.zeros(rows + 1, np.int64),
        "levels": np.zeros(flows + rows + 2, arrays.LEVEL),
        "heap": _no_events(entities),
        "places": np.full(entities, NONE, np.int32),
        "span_communication": np.full(lengths[kept].sum(), NONE, np.int32),
        "spans": np.full((3, lengths[kept].sum()), np.nan),
        "plan_count": np.zeros(len(lowering.plans), np.int64),
        "intervals": np.zeros(1 << 16, arrays.INTERVAL),
        "pools": np.zeros(pools, arrays.POOL_STATE),
        "held": np.zeros((pools, len(CATEGORIES))),
        "peak_held": np.zeros((pools, len(CATEGORIES))),
    }
    return _begun(State(**made), lowering)


def _begun(state: State, lowering: Lowering) -> State:
    """*state*, whose tables are empty, with all streams at their first op and all lists empty."""
    low = lowering.arrays
    program = low.ranks["program"][:-1]
    each = np.diff(low.programs["first_queue"])[program]
    streams = len(state.streams)
    state.counts[arrays.FREE_COMMUNICATIONS] = len(state.communications)
    state.counts[arrays.FREE_TRANSFERS] = len(state.transfers)
    state.counts[arrays.HEAP] = arrays.ROOT
    state.counts[arrays.FIRST_STEP] = low.options["first_step_ops"][0] if low.options["steps"][0] > 1 else NONE
    for name in ("awaits", "waiting", "next", "task"):
        state.streams[name] = NONE
    state.streams["rank"] = np.repeat(np.arange(len(each)), each)
    queue = np.arange(streams) + (low.programs["first_queue"][program] - low.ranks["first_stream"][:-1]).repeat(each)
    state.streams["head"] = low.queues["first"][queue]
    state.ranks["head"], state.ranks["free"] = NONE, 1.0
    state.under_way[:, -1] = 1
    state.hosts["head"] = NONE
    for name in ("head", "previous", "next"):
        for table in (state.flows, state.rows, state.entries):
            if name in (table.dtype.names or ()):
                table[name] = NONE
    state.rows["capacity"] = lowering.setup.classes.capacity
    # the stack is read from its end, and streams are to advance in order
    state.advancing[:streams] = np.arange(streams - 1, -1, -1)
    state.counts[arrays.ADVANCING] = streams
    return state


def _no_events(entities: int) -> Array:
    """A heap that has room for the events of all *entities*."""
    heap = _by_line(np.zeros(arrays.ROOT + entities + 3, arrays.EVENT))
    heap["time"] = np.inf
    return heap


def _by_line(table: Array) -> Array:
    """*table* at an address at which a line of the cache begins."""
    line = 64
    room = np.zeros(table.nbytes + line, np.uint8)
    begin = -room.ctypes.data % line
    made: Array = room[begin : begin + table.nbytes].view(table.dtype)
    made[:] = table
    return made


def totals(
    schedule: Schedule,
    ranks: Sequence[int],
    parts: Sequence[str],
    low: Lowered,
    state: State,
    first_step: tuple[float, Floats],
    link_bins: LinkBins,
) -> Totals:
    """The totals of a finished run.

    *first_step*: when the first step ended (s), and `seconds_until` then.
    """
    makespan = float(state.clock[0])
    programs = schedule.program_numbers[list(ranks)]
    resident = np.array([[_resident(program, "", name) for name in CATEGORIES] for program in schedule.programs])
    on_host = np.array([[_resident(program, "host.", name) for name in CATEGORIES] for program in schedule.programs])
    count = len(ranks)
    host_pools = low.ranks["host_pool"][:-1] - count
    host = state.pools["peak"][count:] + np.bincount(
        host_pools, on_host[programs].sum(axis=1), len(state.pools) - count
    )
    begin, before = first_step if schedule.steps > 1 else (0.0, np.zeros(1))
    return Totals(
        makespan=makespan,
        window_begin=begin,
        ranks=np.array(ranks, np.int64),
        parts=tuple(parts),
        seconds=seconds_until(state, makespan) - before,
        peak_bytes=state.pools["peak"][:count] + resident[programs].sum(axis=1),
        peak_time=state.pools["time"][:count].copy(),
        peak_by_category=state.peak_held[:count] + resident[programs],
        host_peak_bytes=float(host.max(initial=0.0)),
        link_bins=link_bins,
    )


def seconds_until(state: State, now: float) -> Floats:
    """The time that each rank has spent in each part of the breakdown until *now*, s, of shape ``(ranks, parts)``."""
    seconds = state.seconds.copy()
    seconds[np.arange(len(seconds)), (state.under_way > 0).argmax(axis=1)] += now - state.ranks["since"]
    return seconds


def _resident(program: Program, prefix: str, category: str) -> float:
    """Bytes of *category* that are resident in the memory of the GPU; with the *prefix* ``host.``, of the host."""
    amounts = program.resident
    if program.on == "host":
        return amounts.get(category, 0.0) + amounts.get(f"host.{category}", 0.0) if prefix else 0.0
    return amounts.get(prefix + category, 0.0)


class LinkBinner:
    """The mean use of the links of each kind, in time bins of equal length.

    The length of the bins doubles when the simulated time passes the last bin. *multiplicity*: how many equal links a
    link of *flows* represents, by its number; 1 if not given.
    """

    def __init__(self, cluster: Cluster, flows: Sequence[Flow], multiplicity: Mapping[int, int]) -> None:
        self.kinds = tuple(cluster.links.kinds)
        kind_of = cluster.links.each(lambda link: self.kinds.index(link.kind)).astype(np.int64)
        sizes = [len(flow.links) for flow in flows]
        links = np.concatenate([np.zeros(0, np.int64), *(flow.links for flow in flows)])
        crossings = np.concatenate([np.zeros(0), *(flow.crossings for flow in flows)])
        crossings *= [multiplicity.get(link, 1) for link in links.tolist()]
        shares = crossings / (cluster.bandwidths * np.bincount(kind_of)[kind_of])[links]
        cells = np.repeat(np.arange(len(flows)), sizes) * len(self.kinds) + kind_of[links]
        shape = len(flows), len(self.kinds)
        self._shares = np.bincount(cells, shares, shape[0] * shape[1]).reshape(shape)
        self._width = 1e-6
        self._used = np.zeros((len(self.kinds), MOST_BINS))  # share of the bandwidth, times seconds

    def add(self, intervals: Array) -> None:
        """Add *intervals* of constant rate, records of `arrays.INTERVAL`."""
        if not len(intervals):
            return
        self._widen(float(intervals["end"].max()))
        begin, end = intervals["begin"] / self._width, intervals["end"] / self._width
        first, last = begin.astype(np.int64), np.minimum(end.astype(np.int64), MOST_BINS - 1)
        for kind in range(len(self.kinds)):
            rate = intervals["rate"] * self._shares[intervals["flow"], kind] * self._width
            # first count the first and the last bin of an interval as full, then subtract what lies outside of it
            change = np.bincount(first, rate, MOST_BINS + 1) - np.bincount(last + 1, rate, MOST_BINS + 1)
            filled = np.cumsum(change)[:MOST_BINS]
            filled -= np.bincount(first, rate * (begin - first), MOST_BINS)
            filled -= np.bincount(last, rate * (last + 1 - end), MOST_BINS)
            self._used[kind] += filled

    def _widen(self, time: float) -> None:
        """Double the length of the bins until they reach *time* (s)."""
        while time > self._width * MOST_BINS:
            self._used[:, : MOST_BINS // 2] = self._used.reshape(len(self.kinds), -1, 2).sum(axis=2)
            self._used[:, MOST_BINS // 2 :] = 0.0
            self._width *= 2

    def bins(self, makespan: float) -> LinkBins:
        """The bins from 0 to *makespan* (s)."""
        self._widen(makespan)
        used = max(1, min(MOST_BINS, int(np.ceil(makespan / self._width))))
        edges = np.minimum(np.arange(used + 1) * self._width, makespan)
        return LinkBins(edges, self.kinds, self._used[:, :used] / np.diff(edges) if makespan else self._used[:, :1])
