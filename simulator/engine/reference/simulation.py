"""One simulation: make the processes of all representatives, process events, and collect the outcome.

A rank has one process for each of its streams, which executes the ops of the stream in order. A communication begins
when all its partners have arrived; then its plan is executed on the network.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import field
from math import inf
from typing import NamedTuple

import numpy as np
from simpy import Event

from clustersim.simulator.analysis.timeline import NO_COMMUNICATION, Columns
from clustersim.simulator.engine.outcome import Executed, Outcome, Waiting
from clustersim.simulator.engine.reference.network import FluidNetwork
from clustersim.simulator.engine.reference.resources import Clock, OpServer, Processor
from clustersim.simulator.engine.setup import Communication, Setup
from clustersim.simulator.hardware.hashing import representatives_of
from clustersim.simulator.network.plan import TransferPlan
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.matching import request_of
from clustersim.simulator.schedule.ops import Compute, Delay, Op, Recv, Send

EVENTS_BETWEEN_REPORTS = 10_000
"""SimPy processes some hundred thousand events a second, so progress is reported many times a second."""


class TooManyRatesError(Exception):
    """The network solved more rates than a simulation in SimPy should; the compiled engine is faster."""


def run(setup: Setup, watch: Callable[[float], None] | None = None, most_rates: float = inf) -> Outcome:
    """Simulate *setup*. *watch* is called from time to time with the fraction of ops that have ended, 0 to 1.

    Raises `TooManyRatesError` if the network solves more than *most_rates*.
    """
    clock = Clock()
    network = FluidNetwork(clock, setup.classes.capacity)
    gpus = {rank: Processor(clock) for rank in representatives_of(setup.classes.representative).tolist()}
    hosts: dict[Hashable, Processor] = {}
    servers = {name: OpServer(clock) for program in setup.schedule.programs for name in program.servers()}
    rendezvous = Rendezvous(clock, setup, network, gpus)
    ranks = []
    for number, gpu in gpus.items():
        name = setup.pricing.host(number)
        host = None if name is None else hosts.setdefault(setup.classes.host(name), Processor(clock))
        ranks.append(Rank(clock, number, setup, Resources(rendezvous, gpu, host, servers)))
    for change in setup.capacity_changes:
        clock.process(network.change_capacity(change))
    for traffic in setup.background:
        clock.process(network.background(traffic))
    _run(clock, ranks, watch, network, most_rates)
    return Outcome(
        columns={rank.number: rank.columns() for rank in ranks},
        intervals=network.rate_intervals(),
        flows=tuple(network.flows),
        flow_bytes=np.array(network.flow_bytes, np.float64),
        communications=rendezvous.executed(),
        waiting=tuple(one for rank in ranks for one in rank.waiting()),
    )


def _run(
    clock: Clock, ranks: list[Rank], watch: Callable[[float], None] | None, network: FluidNetwork, most_rates: float
) -> None:
    """Process events until all ranks have finished, or until there is no event left (a deadlock)."""
    total, unfinished = sum(rank.unended for rank in ranks), list(ranks)
    events = 0
    while unfinished and clock.peek() < inf:
        clock.step()
        # the last rank of the list is looked at alone, so that an event costs the same for any number of ranks
        while unfinished and not unfinished[-1].unended:
            unfinished.pop()
        events += 1
        if network.solved > most_rates:
            raise TooManyRatesError
        if watch and not events % EVENTS_BETWEEN_REPORTS:
            watch(1.0 - sum(rank.unended for rank in unfinished) / total)


class Resources(NamedTuple):
    """The resources on which the ops of one rank execute; *host*: None if the rank computes on none."""

    rendezvous: Rendezvous
    gpu: Processor
    host: Processor | None
    servers: Mapping[str, OpServer]


@dataclass(eq=False)
class Cursor:
    """The head of a stream: the op of index *op* in training step *step*.

    It waits for the op of index *awaited* of its own rank, or for the partners of *pending*, or it executes.
    """

    step: int = 0
    op: int = 0
    awaited: int | None = None
    pending: Pending | None = None
    finished: bool = False


class Rank:
    """Rank *number* of *setup*; its streams begin when it is made.

    *unended*: how many of its ops, all steps together, have not ended. *times*, of shape ``(3, steps, ops)``: when each
    op was ready, began and ended (s), NaN until then. *communication*, of shape ``(steps, ops)``: as in `Columns`.
    """

    def __init__(self, clock: Clock, number: int, setup: Setup, resources: Resources) -> None:
        self.clock, self.number, self.resources = clock, number, resources
        self.ops: Sequence[Op] = list(setup.schedule.program(number).ops)
        self.steps = setup.schedule.steps
        self.unended = self.steps * len(self.ops)
        self.seconds = setup.pricing.durations(number)
        self.ranks_on_host = setup.classes.ranks_on_host(number)
        self.times = np.full((3, self.steps, len(self.ops)), np.nan)
        self.communication = np.full((self.steps, len(self.ops)), NO_COMMUNICATION)
        self._index = {op.name: index for index, op in enumerate(self.ops)}
        self._watched = {self._index[name] for op in self.ops for name in op.after}
        self._ended: dict[tuple[int, int], Event] = {}
        streams: dict[str, list[int]] = {}
        for index, op in enumerate(self.ops):
            streams.setdefault(op.stream, []).append(index)
        self._cursors = {name: Cursor() for name in streams}
        for name, ops in streams.items():
            clock.process(self._stream(self._cursors[name], ops))

    def _stream(self, cursor: Cursor, ops: Sequence[int]) -> Generator[Event, object, None]:
        """The process of a stream: in each step wait for dependencies, execute, and record the times of each op."""
        last: Event | None = None
        for step in range(self.steps):
            for place, index in enumerate(ops):
                cursor.step, cursor.op = step, index
                for name in self.ops[index].after:
                    cursor.awaited = self._index[name]
                    yield self._end_of(step, cursor.awaited)
                cursor.awaited = None
                ready = self.clock.now
                begin, pending = yield from self._execute(cursor)
                if pending is None or not isinstance(self.ops[index], Recv):
                    self._end(step, index, ready, begin)
                    continue
                last = self.clock.process(self._deliver(step, index, ready, begin, pending.done, last))
                if pending.buffered or not isinstance(self.ops[ops[(place + 1) % len(ops)]], Recv):
                    yield last
        if last is not None:
            yield last
        cursor.finished = True

    def _deliver(
        self, step: int, index: int, ready: float, begin: float, done: Event, last: Event | None
    ) -> Generator[Event, object, None]:
        """End a receive when its bytes are delivered, and not before the *last* receive of the stream has ended."""
        if last is not None:
            yield last
        yield done
        self._end(step, index, ready, begin)

    def _end(self, step: int, index: int, ready: float, begin: float) -> None:
        """Write the span of an op that ends now, and let go on what waits for it."""
        self.times[:, step, index] = ready, begin, self.clock.now
        released = self.ops[index].releases
        if released is not None:
            self.resources.servers[released].release()
        if index in self._watched:
            self._end_of(step, index).succeed()
        self.unended -= 1

    def _execute(self, cursor: Cursor) -> Generator[Event, object, tuple[float, Pending | None]]:
        """Execute the op of *cursor*, which is ready; return when it began, and its communication if it is one.

        A receive is executed when its bytes have been sent: the next receive of the stream is posted then, while the
        bytes are on their way.
        """
        ready, step, index = self.clock.now, cursor.step, cursor.op
        op, seconds = self.ops[index], float(self.seconds[step, index])
        match op:
            case Delay():
                yield self.clock.timeout(seconds)
            case Compute(server=str(name)):
                queue = self.resources.servers[name]
                service = queue.request(op.priority, self.number, index, seconds, holds=op.holds)
                yield service.done
                return service.begin, None
            case Compute(on="host"):
                assert self.resources.host is not None, "the pricing names a host for a rank that computes on it"
                yield self.resources.host.compute(seconds, self.ranks_on_host)
            case Compute():
                yield self.resources.gpu.compute(seconds)
            case _:
                pending = cursor.pending = self.resources.rendezvous.arrive(self.number, index, step)
                self.communication[step, index] = pending.number
                if not (isinstance(op, Send) and op.buffered):
                    yield pending.sent if isinstance(op, Send | Recv) else pending.done
                cursor.pending = None
                assert pending.begin is not None
                return max(ready, pending.begin), pending
        return ready, None

    def _end_of(self, step: int, index: int) -> Event:
        """The event of the end of op *index* in *step*, for an op that other ops wait for."""
        if (step, index) not in self._ended:
            self._ended[step, index] = self.clock.event()
        return self._ended[step, index]

    def waiting(self) -> Iterator[Waiting]:
        """What each unfinished stream waits for."""
        for name, one in self._cursors.items():
            if self.unended and not one.finished:
                arrived = tuple(one.pending.arrived) if one.pending else ()
                yield Waiting(self.number, name, one.op, one.step, one.awaited, arrived)

    def columns(self) -> Columns:
        """The spans of all ops, step after step."""
        op = np.tile(np.arange(len(self.ops)), self.steps)
        step = np.repeat(np.arange(self.steps), len(self.ops))
        ready, begin, end = self.times.reshape(3, -1)
        return Columns(op, step, ready, begin, end, self.communication.ravel())


@dataclass(eq=False)
class Pending:
    """Communication *number*: the ranks that have *arrived*, its *begin* (s; None before it), the events of its end.

    *sent*: all bytes are on their way, which ends a send. *done*: all bytes are delivered. *buffered*: the send did not
    wait for its receive.
    """

    number: int
    sent: Event
    done: Event
    arrived: list[int] = field(default_factory=list)
    begin: float | None = None
    buffered: bool = False


class Rendezvous:
    """Brings the partners of each communication together and executes it.

    *gpus*: by representative its GPU; a collective reserves SMs of the GPUs of its members while it executes.
    """

    def __init__(self, clock: Clock, setup: Setup, network: FluidNetwork, gpus: Mapping[int, Processor]) -> None:
        self.clock, self.setup, self.network, self.gpus = clock, setup, network, gpus
        self._pending: dict[Hashable, Pending] = {}
        self._executed: dict[Hashable, tuple[Communication, Op, int]] = {}
        self._count = 0

    def arrive(self, rank: int, index: int, step: int) -> Pending:
        """Register that *rank* is ready for its op of index *index* in training step *step*.

        Return the communication, the same object for all partners. It begins with the last arrival, or at once with a
        buffered send.
        """
        matching, program = self.setup.schedule.matching, self.setup.schedule.program_of[rank]
        op = matching.requests[program][matching.request[program][index]]
        name = self.setup.classes.communication(rank, op)
        key = name, int(matching.key[program][index]), step
        if key not in self._pending:
            self._pending[key] = Pending(self._count, self.clock.event(), self.clock.event())
            self._count += 1
        pending = self._pending[key]
        pending.arrived.append(rank)
        complete = len(pending.arrived) == self.setup.classes.partners(name, op)
        if complete:
            del self._pending[key]
        pending.buffered |= isinstance(op, Send) and op.buffered
        if pending.begin is None and (complete or pending.buffered):
            self._begin(pending, name, op)
        return pending

    def executed(self) -> tuple[Executed, ...]:
        """The communications that have begun, counted by name and request."""
        return tuple(Executed(*one) for one in self._executed.values())

    def _begin(self, pending: Pending, name: Communication, op: Op) -> None:
        pending.begin = self.clock.now
        _, first, times = self._executed.get((name, request_of(op)), (name, op, 0))
        self._executed[name, request_of(op)] = name, first, times + 1
        self.clock.process(self._execute(pending, self.setup.classes.plan(name, op)))

    def _execute(self, pending: Pending, plan: TransferPlan) -> Generator[Event, object, None]:
        """Execute the phases of *plan* one after the other: latency, then all flows at once."""
        gpus = [self.gpus[rank] for rank in pending.arrived] if plan.sms else []
        for gpu in gpus:
            gpu.reserve(plan.sms)
        for phase in plan.phases:
            begin = self.clock.now
            yield self.clock.timeout(phase.latency)
            if phase.contended:
                yield self.clock.all_of([self.network.transfer(flow, phase.nbytes) for flow in phase.flows])
            else:
                for flow in phase.flows:
                    self.network.record_uncontended(flow, phase.nbytes, begin)
        for gpu in gpus:
            gpu.release(plan.sms)
        pending.sent.succeed()
        if plan.delivery:
            yield self.clock.timeout(plan.delivery)
        pending.done.succeed()
