"""The simulated time, and work that is executed at a rate that changes."""

from __future__ import annotations

from collections.abc import Callable

from simpy import Environment, Event
from simpy.events import NORMAL, EventPriority

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
