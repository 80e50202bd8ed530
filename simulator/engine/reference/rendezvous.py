"""A communication begins when all partners have arrived, and executes its plan on the network."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping
from dataclasses import dataclass, field

from simpy import Event

from simulator.engine.outcome import Executed
from simulator.engine.rank_classes import Communication
from simulator.engine.reference.clock import Clock
from simulator.engine.reference.network import Network
from simulator.engine.reference.processor import Processor
from simulator.engine.setup import Setup
from simulator.network.plan import TransferPlan
from simulator.schedule import Op, Send
from simulator.schedule.matching import asked


@dataclass(eq=False)
class Pending:
    """Communication number *number*: the ranks that have *arrived*, its *begin* (s; None: not yet), its end."""

    number: int
    done: Event
    arrived: list[int] = field(default_factory=list)
    begin: float | None = None


class Rendezvous:
    """Where partners meet. Collectives hold SMs of *gpus*, the GPU of each representative, while they execute."""

    def __init__(self, clock: Clock, setup: Setup, network: Network, gpus: Mapping[int, Processor]) -> None:
        self.clock, self.setup, self.network, self.gpus = clock, setup, network, gpus
        self._open: dict[Hashable, Pending] = {}
        self._executed: dict[Hashable, tuple[Communication, Op, int]] = {}
        self._count = 0

    def arrive(self, rank: int, index: int, step: int) -> Pending:
        """*rank* is ready for its op of that *index* in training step *step*.

        All partners get the same answer. The last to arrive begins the communication; a buffered send does at once.
        """
        matching, program = self.setup.matching, self.setup.schedule.program_of[rank]
        op = matching.requests[program][matching.request[program][index]]
        name = self.setup.classes.communication(rank, op)
        key = name, int(matching.key[program][index]), step
        if key not in self._open:
            self._open[key] = Pending(self._count, self.clock.event())
            self._count += 1
        pending = self._open[key]
        pending.arrived.append(rank)
        complete = len(pending.arrived) == self.setup.classes.partners(name, op)
        if complete:
            del self._open[key]
        if pending.begin is None and (complete or (isinstance(op, Send) and op.buffered)):
            self._begin(pending, name, op)
        return pending

    def executed(self) -> tuple[Executed, ...]:
        """What has begun so far."""
        return tuple(Executed(*one) for one in self._executed.values())

    def _begin(self, pending: Pending, name: Communication, op: Op) -> None:
        pending.begin = self.clock.now
        _, first, times = self._executed.get((name, asked(op)), (name, op, 0))
        self._executed[name, asked(op)] = name, first, times + 1
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
                    self.network.uncontended(flow, phase.nbytes, begin)
        for gpu in gpus:
            gpu.release(plan.sms)
        pending.done.succeed()
