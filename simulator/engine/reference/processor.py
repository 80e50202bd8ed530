"""A processor is shared by concurrent computations. Collectives reserve a part of it."""

from __future__ import annotations

from math import prod

from simpy import Event

from simulator.engine.reference.clock import Clock, Work


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
