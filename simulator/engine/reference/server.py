"""A server executes the ops of all ranks one at a time."""

from __future__ import annotations

from dataclasses import dataclass

from simpy import Event

from simulator.engine.reference.clock import CHOICES, Clock
from simulator.engine.setup import ONE_INSTANT


@dataclass(eq=False)
class Service:
    """The op of index *op* of *rank* at a server: *arrived* and *begin* (of its service) in s, *done* its end.

    *holds*: the server stays busy until it is released.
    """

    priority: int
    arrived: float
    rank: int
    op: int
    seconds: float
    done: Event
    holds: bool = False
    begin: float = 0.0


class Server:
    """A resource of the whole schedule. It executes one op at a time, at full speed, and never interrupts it.

    The next op is the one of the lowest priority number, then the first to arrive. Arrivals of one instant
    (`ONE_INSTANT`) are ordered by rank, then by index of the op. So the server chooses when the instant is over. The
    recorded begin of service is earlier: when the op had arrived and the server was free.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._waiting: list[Service] = []
        self._busy, self._free_since = False, 0.0

    def request(self, priority: int, rank: int, op: int, seconds: float, *, holds: bool = False) -> Service:
        """Queue the op of index *op* of *rank*; its service takes *seconds*."""
        service = Service(priority, self.clock.now, rank, op, seconds, self.clock.event(), holds)
        self._waiting.append(service)
        self._choose_soon()
        return service

    def _choose_soon(self) -> None:
        """Choose the next op when this instant is over."""
        over = self.clock.timeout(ONE_INSTANT * self.clock.now)
        over.callbacks.append(lambda _: self.clock.at_end_of_instant(self._choose, CHOICES))

    def _choose(self) -> None:
        if self._busy or not self._waiting:
            return
        now, least = self.clock.now, min(one.priority for one in self._waiting)
        urgent = [one for one in self._waiting if one.priority == least]
        first = min(one.arrived for one in urgent)
        earliest = [one for one in urgent if one.arrived - first <= ONE_INSTANT * now]
        service = min(earliest, key=lambda one: (one.rank, one.op))
        self._waiting.remove(service)
        self._busy, service.begin = True, max(service.arrived, self._free_since)
        end = self.clock.timeout(max(0.0, service.begin + service.seconds - now))
        end.callbacks.append(lambda _: self._end(service))

    def release(self) -> None:
        """End what an op holds: the next one may be served."""
        self._busy, self._free_since = False, self.clock.now
        self._choose_soon()

    def _end(self, service: Service) -> None:
        service.done.succeed()
        if not service.holds:
            self.release()
