"""Communications begin when all partners have come: a meeting counts arrivals, and the last one sets it going."""

from __future__ import annotations

from collections.abc import Generator, Hashable
from dataclasses import dataclass, field

from simpy import Environment, Event

from simulator.engine.network import Network
from simulator.engine.processor import Processor
from simulator.plan import Plan


@dataclass(slots=True)
class Meeting:
    """One communication: how many partners are *missing*, which ranks *came*, when it *began*, the event of its end."""

    missing: int
    done: Event
    came: list[int] = field(default_factory=list)
    began: float = 0.0


@dataclass(slots=True, eq=False)
class Encounter:
    """The meetings of the same *size* partners who ask for the same; so far *count* have begun, each as *plan* says.

    Open ones are known by what their partners have in common.
    """

    size: int
    plan: Plan
    count: int = 0
    open: dict[Hashable, Meeting] = field(default_factory=dict)


@dataclass
class Rendezvous:
    """Sets meetings going on *network*; *processors* are by rank the GPUs that collectives take SMs of."""

    env: Environment
    network: Network
    processors: dict[int, Processor]

    def arrive(self, encounter: Encounter, key: Hashable, rank: int) -> Meeting:
        """*rank* comes to the meeting *key* of an encounter; the last to come sets it going."""
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
