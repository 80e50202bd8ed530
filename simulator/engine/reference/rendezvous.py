"""A communication begins when all its partners have arrived. Then its plan is executed on the network."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping
from dataclasses import dataclass, field

from simpy import Event

from clustersim.simulator.engine.interface.outcome import Executed
from clustersim.simulator.engine.interface.setup import Communication, Setup
from clustersim.simulator.engine.reference.clock import Clock
from clustersim.simulator.engine.reference.network import Network
from clustersim.simulator.engine.reference.resources import Processor
from clustersim.simulator.network.plan import TransferPlan
from clustersim.simulator.schedule.matching import request_of
from clustersim.simulator.schedule.ops import Op, Send


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

    def __init__(self, clock: Clock, setup: Setup, network: Network, gpus: Mapping[int, Processor]) -> None:
        self.clock, self.setup, self.network, self.gpus = clock, setup, network, gpus
        self._pending: dict[Hashable, Pending] = {}
        self._executed: dict[Hashable, tuple[Communication, Op, int]] = {}
        self._count = 0

    def arrive(self, rank: int, index: int, step: int) -> Pending:
        """Register that *rank* is ready for its op of index *index* in training step *step*.

        Return the communication, the same object for all partners. It begins with the last arrival, or at once with a
        buffered send.
        """
        matching, program = self.setup.matching, self.setup.schedule.program_of[rank]
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
