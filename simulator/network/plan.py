"""A plan is what a communication asks of the network: phases, one after the other, of flows over links.

The transport makes plans, the engine carries them out; so the network knows neither algorithms nor libraries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """Transfers that advance together, at one rate each: one variable of the fluid system.

    Of the links numbered *links*, *crossings* says how many of the transfers pass each: what is accounted for. Of the
    rows of the system (links, or classes of them) that the flow shares with others, *rows* are the numbers, and
    *weights* the capacity (in bytes/s) that each takes for 1 byte/s of rate: the crossings over the protocol's
    efficiency. The rate is at most *bound*, which the protocol sets, and *alone* when nothing else is on the rows, all
    in bytes/s. Flows are compared by identity, and the same flow object stands for the same transfers every time, so
    that the network can remember what it solved.
    """

    links: tuple[int, ...]
    crossings: tuple[int, ...]
    rows: tuple[int, ...]
    weights: tuple[float, ...]
    alone: float
    bound: float = inf


@dataclass(frozen=True, slots=True)
class Phase:
    """*latency* seconds in which nothing flows, then *nbytes* by each transfer of each of the *flows*, side by side.

    A phase that is not *contended* (the alpha-beta model) has the links to itself: *latency* is all of its time, flow
    included, and the flows only say what was carried.
    """

    latency: float
    flows: tuple[Flow, ...] = ()
    nbytes: float = 0.0
    contended: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """The *phases* of one communication, and what is told of it.

    *algorithm* and *protocol* as the tuner chose them; *sent_bytes*: all its transfers together; *sms*: the share of
    each GPU's streaming multiprocessors that it takes while it runs. *delivery*: s from the last byte sent to the last
    byte received, of a message. Its sender is occupied by its phases only, so that messages follow each other on a long
    link without waiting for each other's arrival (LogGP: Alexandrov et al. 1995).
    """

    algorithm: str
    protocol: str
    phases: tuple[Phase, ...]
    sent_bytes: float
    sms: float = 0.0
    delivery: float = 0.0

    def moments(self, begin: float) -> Iterator[tuple[float, float, Phase]]:
        """Begin and end of what each phase moves, where the plan begins at *begin* and has its links to itself."""
        for phase in self.phases:
            start = begin + phase.latency if phase.contended else begin
            begin += phase.latency
            if phase.contended and phase.nbytes:
                begin += max((phase.nbytes / flow.alone for flow in phase.flows), default=0.0)
            yield start, begin, phase

    @property
    def alone(self) -> float:
        """Seconds that it takes with its links to itself, if each phase has one flow."""
        return max((end for _, end, _ in self.moments(0.0)), default=0.0) + self.delivery
