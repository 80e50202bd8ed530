"""The resources on which ops execute, and the simulated time.

A processor is shared by concurrent computations, and collectives reserve a part of it; a server executes the ops of all
ranks one at a time. Work is executed at a rate that changes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from simpy import Environment, Event
from simpy.events import NORMAL, EventPriority

from clustersim.simulator.engine.setup import ONE_INSTANT
from clustersim.simulator.reading.dataclass import dataclass

RATES, CHOICES = 1, 2
"""What happens at the end of an instant, in this order: rates are solved, and servers choose their next op."""


class EndOfInstant(Event):
    """An event that follows all ordinary events of its time; *order* is `RATES` or `CHOICES`."""

    def __init__(self, clock: Clock, order: int) -> None:
        super().__init__(clock)
        self.order = order


class Clock(Environment):
    """SimPy's environment, in which each instant has an end.

    Within an instant, ops end, resources are released and ops begin. At the end of the instant, rates are solved once
    for all of these changes. Then each server chooses among all ops that arrived in the instant.
    """

    def schedule(self, event: Event, priority: EventPriority = NORMAL, delay: float = 0) -> None:
        """Schedule *event* as SimPy does, but an `EndOfInstant` after all other events of its time."""
        if isinstance(event, EndOfInstant):
            priority = EventPriority(NORMAL + event.order)
        super().schedule(event, priority, delay)

    def at_end_of_instant(self, call: Callable[[], None], order: int = RATES) -> None:
        """Call *call* once all ordinary events of the present time have happened."""
        event = EndOfInstant(self, order)
        event.callbacks.append(lambda _: call())
        event.succeed()


class Work:
    """An *amount* (seconds or bytes) that is executed at a rate; the event *done* happens when nothing is left.

    Whenever the rate changes, a new end is predicted from it.
    """

    def __init__(self, clock: Clock, amount: float) -> None:
        self.clock, self.left, self.rate, self.since = clock, amount, 0.0, clock.now
        self.done = clock.event()
        self._end: Event | None = None

    def set_rate(self, rate: float) -> None:
        """Continue at *rate* per second. A rate of 0 pauses the work, an infinite rate ends it now."""
        if rate == self.rate:
            return
        self.advance()
        self.rate, self._end = rate, None
        if rate:
            self._end = self.clock.timeout(self.left / rate)
            self._end.callbacks.append(self._finish)

    def advance(self) -> None:
        """Subtract from `left` what was executed since the last call."""
        now = self.clock.now
        if now > self.since and self.rate:
            self.left = max(0.0, self.left - self.rate * (now - self.since))
            self.record(self.since, now)
        self.since = now

    def record(self, begin: float, end: float) -> None:
        """Record that the rate was `rate` from *begin* to *end* (s). Nothing is recorded unless a subclass does it."""

    def _finish(self, end: Event) -> None:
        # an end that was predicted from an earlier rate is void
        if end is self._end:
            self.advance()
            self.done.succeed()


class Processor:
    """A GPU or the processor of a host.

    Collectives reserve shares of the streaming multiprocessors (SMs) of a GPU. Each of n concurrent computations runs
    at 1/n of the speed that is left, the product of (1 - share) over all reserved shares. A computation of a
    representative counts as often as its *multiplicity*: once for each equal rank on the same host.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._multiplicity: dict[Work, int] = {}
        self._reserved: list[float] = []

    def compute(self, seconds: float, multiplicity: int = 1) -> Event:
        """Begin a computation that takes *seconds* if it runs alone. Return the event of its end."""
        if not seconds:
            return self.clock.timeout(0)
        work = Work(self.clock, seconds)
        self._multiplicity[work] = multiplicity
        work.done.callbacks.append(lambda _: self._remove(work))
        self.clock.at_end_of_instant(self._share)
        return work.done

    def reserve(self, share: float) -> None:
        """Reserve *share* (0 to 1) of the SMs for a collective that begins."""
        self._reserved.append(share)
        self.clock.at_end_of_instant(self._share)

    def release(self, share: float) -> None:
        """Release the *share* of a collective that has ended."""
        self._reserved.remove(share)
        self.clock.at_end_of_instant(self._share)

    def _remove(self, work: Work) -> None:
        del self._multiplicity[work]
        self.clock.at_end_of_instant(self._share)

    def _share(self) -> None:
        """Give all computations equal rates, in seconds of work per second."""
        free = prod(1.0 - share for share in self._reserved)
        computations = sum(self._multiplicity.values())
        for work in self._multiplicity:
            work.set_rate(free / computations)


@dataclass(eq=False)
class ServiceRequest:
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


class OpServer:
    """A resource of the whole schedule. It executes one op at a time, at full speed, and never interrupts it.

    The next op is the one of the lowest priority number, then the first to arrive. Arrivals of one instant
    (`ONE_INSTANT`) are ordered by rank, then by index of the op. So the server chooses when the instant is over. The
    recorded begin of service is earlier: when the op had arrived and the server was free.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._waiting: list[ServiceRequest] = []
        self._busy, self._free_since = False, 0.0

    def request(self, priority: int, rank: int, op: int, seconds: float, *, holds: bool = False) -> ServiceRequest:
        """Queue the op of index *op* of *rank*; its service takes *seconds*."""
        service = ServiceRequest(priority, self.clock.now, rank, op, seconds, self.clock.event(), holds)
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

    def _end(self, service: ServiceRequest) -> None:
        service.done.succeed()
        if not service.holds:
            self.release()
