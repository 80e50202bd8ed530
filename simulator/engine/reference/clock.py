"""The clock of a simulation, and work that is done at a rate which changes."""

from __future__ import annotations

from collections.abc import Callable

from simpy import Environment, Event
from simpy.events import NORMAL, EventPriority


class EndOfInstant(Event):
    """An event that follows all ordinary events of its time; of several, a lower *order* (from 1) comes first."""

    def __init__(self, clock: Clock, order: int) -> None:
        super().__init__(clock)
        self.order = order


class Clock(Environment):
    """SimPy's environment, with an end of each instant.

    Within an instant, ops end, resources are released and ops begin. Rates are shared out at its end (order 1), and
    servers choose when all who arrive at this instant have arrived (order 2).
    """

    def schedule(self, event: Event, priority: EventPriority = NORMAL, delay: float = 0) -> None:
        """Schedule *event* as SimPy does, but an `EndOfInstant` behind everything else."""
        if isinstance(event, EndOfInstant):
            priority = EventPriority(NORMAL + event.order)
        super().schedule(event, priority, delay)

    def at_end_of_instant(self, call: Callable[[], None], order: int = 1) -> None:
        """Call *call* when nothing else is left to do at this time."""
        event = EndOfInstant(self, order)
        event.callbacks.append(lambda _: call())
        event.succeed()


class Work:
    """An *amount* (seconds or bytes) that is done at a rate; *done* happens when nothing is left.

    The end is predicted from the rate whenever that changes.
    """

    def __init__(self, clock: Clock, amount: float) -> None:
        self.clock, self.left, self.rate, self.since = clock, amount, 0.0, clock.now
        self.done = clock.event()
        self._end: Event | None = None

    def set_rate(self, rate: float) -> None:
        """Go on at *rate* per second; at 0 it stands still, at infinity it ends at once."""
        if rate == self.rate:
            return
        self.advance()
        self.rate, self._end = rate, None
        if rate:
            self._end = self.clock.timeout(self.left / rate)
            self._end.callbacks.append(self._finish)

    def advance(self) -> None:
        """Account for what has been done at the present rate."""
        now = self.clock.now
        if now > self.since and self.rate:
            self.left = max(0.0, self.left - self.rate * (now - self.since))
            self.book(self.since, now)
        self.since = now

    def book(self, begin: float, end: float) -> None:
        """Note that it went on at the present rate from *begin* to *end*; for those who want to know."""

    def _finish(self, end: Event) -> None:
        # an end that was predicted from an earlier rate is void
        if end is self._end:
            self.advance()
            self.done.succeed()
