"""A server executes one op at a time, whichever rank it is from; the others wait."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from simpy import Event

from simulator.engine.reference.clock import Clock


@dataclass(order=True)
class Service:
    """A request for a server, in order of service; *begin* is when service began, s."""

    priority: int
    arrived: float
    rank: int
    op: int
    seconds: float = field(compare=False)
    done: Event = field(compare=False)
    begin: float = field(compare=False, default=0.0)


class Server:
    """One resource of the whole schedule that executes one op at a time, at full speed, and never interrupts it.

    Lowest priority number first, then first come, first served. Arrivals of one instant are ordered by (priority, rank,
    op), so the next op is chosen at the end of the instant.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._waiting: list[Service] = []
        self._busy = False

    def request(self, priority: int, rank: int, op: int, seconds: float) -> Service:
        """Queue the op of index *op* of *rank*, which takes *seconds*."""
        service = Service(priority, self.clock.now, rank, op, seconds, self.clock.event())
        heappush(self._waiting, service)
        self.clock.at_end_of_instant(self._choose, order=2)
        return service

    def _choose(self) -> None:
        if self._busy or not self._waiting:
            return
        service = heappop(self._waiting)
        self._busy, service.begin = True, self.clock.now
        self.clock.timeout(service.seconds).callbacks.append(lambda _: self._end(service))

    def _end(self, service: Service) -> None:
        self._busy = False
        service.done.succeed()
        self.clock.at_end_of_instant(self._choose, order=2)
