"""A transfer plan is a sequence of phases. A phase is a set of flows over links.

The transport makes plans and the engine executes them, so the engine knows neither algorithms nor libraries.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from clustersim.simulator.hardware.hashing import Indices
from clustersim.simulator.hardware.links import Floats
from clustersim.simulator.reading.dataclass import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """Transfers that advance together at one common rate: one variable of the fluid system.

    *links*: numbers of the links that the transfers pass. *crossings*: for each link, the number of transfers that pass
    it; traffic is counted by it. *rows*: numbers of the rows of the fluid system (links, or classes of links) that the
    flow shares with others. *weights*: for each row, the capacity (bytes/s) that 1 byte/s of rate takes, which is the
    crossings over the protocol's efficiency. *bound*: the highest rate that the protocol allows. *alone*: the rate when
    nothing else uses the rows. Both are in bytes/s.

    Flows are compared by identity. The same flow object stands for the same transfers every time, so the engine can
    reuse solutions.
    """

    links: Indices
    crossings: Floats
    rows: Indices
    weights: Floats
    alone: float
    bound: float = inf


@dataclass(frozen=True, slots=True)
class Phase:
    """A delay of *latency* seconds, then *nbytes* by each transfer of each of the concurrent *flows*.

    A phase that is not *contended* (the alpha-beta model) does not share its links: *latency* is its whole duration,
    and the flows only count the traffic.
    """

    latency: float
    flows: tuple[Flow, ...] = ()
    nbytes: float = 0.0
    contended: bool = True


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """The *phases* of one communication, and its properties.

    *algorithm* and *protocol*: the tuner's choice. *sent_bytes*: bytes of all transfers together. *sms*: the share of
    each GPU's streaming multiprocessors that the communication occupies.

    *delivery*, of a message: seconds from the last byte sent to the last byte received. The phases occupy the sender,
    the delivery does not. So messages follow each other without waiting for the latency of the links (LogGP: Alexandrov
    et al. 1995).
    """

    algorithm: str
    protocol: str
    phases: tuple[Phase, ...]
    sent_bytes: float
    sms: float = 0.0
    delivery: float = 0.0

    def moments(self, begin: float) -> Iterator[tuple[float, float, Phase]]:
        """Yield (begin, end, phase) of each phase's transfers if the plan begins at *begin* on idle links."""
        for phase in self.phases:
            start = begin + phase.latency if phase.contended else begin
            begin += phase.latency
            if phase.contended and phase.nbytes:
                begin += max((phase.nbytes / flow.alone for flow in phase.flows), default=0.0)
            yield start, begin, phase

    @property
    def alone(self) -> float:
        """Seconds that the plan takes on idle links, if each phase has one flow."""
        return max((end for _, end, _ in self.moments(0.0)), default=0.0) + self.delivery
