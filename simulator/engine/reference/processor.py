"""A processor is shared by the computations that it executes at once, and by the SMs that collectives hold."""

from __future__ import annotations

from math import prod

from simpy import Event

from simulator.engine.reference.clock import Clock, Work


class Processor:
    """A GPU or the processor of a host.

    Each of n computations gets the n-th part of what collectives leave: the product of (1 - share) over the shares of
    the streaming multiprocessors (SMs) that collectives hold. One that represents a crowd counts as many.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._crowds: dict[Work, int] = {}
        self._reserved: list[float] = []

    def compute(self, seconds: float, crowd: int = 1) -> Event:
        """Execute what takes *seconds* alone. The event returned happens at the end."""
        if not seconds:
            return self.clock.timeout(0)
        work = Work(self.clock, seconds)
        self._crowds[work] = crowd
        work.done.callbacks.append(lambda _: self._leave(work))
        self.clock.at_end_of_instant(self._share)
        return work.done

    def reserve(self, share: float) -> None:
        """A collective holds *share* (0 to 1) of the SMs from now on."""
        self._reserved.append(share)
        self.clock.at_end_of_instant(self._share)

    def release(self, share: float) -> None:
        """A collective gives back *share*."""
        self._reserved.remove(share)
        self.clock.at_end_of_instant(self._share)

    def _leave(self, work: Work) -> None:
        del self._crowds[work]
        self.clock.at_end_of_instant(self._share)

    def _share(self) -> None:
        free = prod(1.0 - share for share in self._reserved)
        present = sum(self._crowds.values())
        for work in self._crowds:
            work.set_rate(free / present)
