"""Communications begin when all partners have come: a meeting counts arrivals, and the last one sets it going."""

from __future__ import annotations

from collections.abc import Collection, Generator, Hashable
from dataclasses import dataclass, field

from simpy import Environment, Event

from simulator.engine.cast import Communication, Everyone
from simulator.engine.folding import Folding
from simulator.engine.issue import Run, Turn
from simulator.engine.network import Network
from simulator.engine.processor import Processor
from simulator.matching import Asked, asked
from simulator.plan import Plan
from simulator.schedule import Op


@dataclass(slots=True)
class Meeting:
    """One communication: how many partners are *missing*, which ranks *came*, when it *began*, the event of its end."""

    missing: int
    done: Event
    came: list[int] = field(default_factory=list)
    began: float = 0.0


@dataclass(slots=True, eq=False)
class Encounter:
    """The meetings over *name* of partners, *size* in number, who ask for the same, as *op* does.

    So far *count* have begun, each as *plan* says. Open ones are known by what their partners have in common.
    """

    name: Communication
    op: Op
    size: int
    plan: Plan
    count: int = 0
    open: dict[Hashable, Meeting] = field(default_factory=dict)


@dataclass
class Rendezvous:
    """Sets meetings going on *network*.

    *cast* knows who meets whom, and *processors* are by rank the GPUs that collectives take SMs of.
    """

    env: Environment
    network: Network
    cast: Everyone | Folding
    processors: dict[int, Processor]
    _encounters: dict[tuple[Communication, Asked], Encounter] = field(default_factory=dict)
    _of: dict[tuple[int, Run], Encounter] = field(default_factory=dict)

    @property
    def encounters(self) -> Collection[Encounter]:
        """All that there were."""
        return self._encounters.values()

    def arrive(self, rank: int, turn: Turn, step: int) -> Meeting:
        """*rank* comes to the meeting of its communication; the last to come sets it going."""
        encounter = self._of.get((rank, turn.run))
        if encounter is None:
            encounter = self._of[rank, turn.run] = self._encounter(rank, turn.run.op)
        key = turn.meeting, step
        meeting = encounter.open.get(key)
        if meeting is None:
            meeting = encounter.open[key] = Meeting(encounter.size, self.env.event())
        meeting.missing -= 1
        meeting.came.append(rank)
        if not meeting.missing:
            del encounter.open[key]
            encounter.count += 1
            meeting.began = self.env.now
            self._begin(meeting, encounter.plan)
        return meeting

    def _encounter(self, rank: int, op: Op) -> Encounter:
        """That of *rank* and its partners for what *op* asks."""
        name = self.cast.communication(rank, op)
        key = name, asked(op)
        if key not in self._encounters:
            partners, plan = self.cast.partners(name, op), self.cast.plan(name, op)
            self._encounters[key] = Encounter(name, op, partners, plan)
        return self._encounters[key]

    def _begin(self, meeting: Meeting, plan: Plan) -> None:
        busy = [self.processors[r] for r in meeting.came if r in self.processors] if plan.sms else []
        if not plan.phases:
            meeting.done.succeed()
        elif len(plan.phases) > 1 or len(plan.phases[0].flows) > 1 or not plan.phases[0].contended:
            self.env.process(self._carry_out(meeting, plan, busy))
        else:
            self._carry_across(meeting, plan, busy)

    def _carry_across(self, meeting: Meeting, plan: Plan, busy: list[Processor]) -> None:
        """One phase of one flow, such as a message: no process is needed for it."""
        (phase,) = plan.phases

        def release(_event: Event) -> None:
            for processor in busy:
                processor.release(plan.sms)

        for processor in busy:
            processor.reserve(plan.sms)
        if busy:
            # before anyone goes on
            meeting.done.callbacks.insert(0, release)
        self.network.transfer(phase.flows[0], phase.nbytes, meeting.done, phase.latency)

    def _carry_out(self, meeting: Meeting, plan: Plan, busy: list[Processor]) -> Generator[Event, None, None]:
        for processor in busy:
            processor.reserve(plan.sms)
        for phase in plan.phases:
            begin = self.env.now
            if phase.latency:
                yield self.env.timeout(phase.latency)
            if not phase.contended:
                for flow in phase.flows:
                    self.network.uncontended(flow, phase.nbytes, begin)
            elif phase.nbytes:
                # all begin before the first is waited for
                yield from [self.network.transfer(flow, phase.nbytes) for flow in phase.flows]
        for processor in busy:
            processor.release(plan.sms)
        meeting.done.succeed()
