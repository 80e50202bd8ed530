"""A measurement is one timed communication of one size.

A sweep lists communications to time, over sizes as in nccl-tests.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.analysis import metrics

SEND = "send"
"""A message from one rank to another, half of a ping-pong. Its bus bandwidth is its algorithm bandwidth."""

MEASURED = (SEND, "all_reduce", "all_gather", "reduce_scatter", "broadcast")
"""The kinds that are measured by default."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """*kind* of collective, or ``send``, among *ranks* (a message goes from the first to the second).

    *nbytes*: the full vector. *seconds*: the lower quartile of several batches, because other work only lengthens a
    time. *spread*: the standard deviation between the batches over *seconds* (0 if only one is known).
    """

    kind: str
    ranks: tuple[int, ...]
    nbytes: float
    seconds: float
    spread: float = 0.0

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth in bytes/s."""
        return metrics.algbw(self.nbytes, self.seconds)

    @property
    def busbw(self) -> float:
        """Bus bandwidth in bytes/s."""
        if self.kind == SEND:
            return self.algbw
        return metrics.busbw(self.kind, self.nbytes, len(self.ranks), self.seconds)


@dataclass(frozen=True)
class Sweep:
    """Each of *kinds* over *sizes* (bytes), messages between each of *pairs*.

    A time is the lower quartile of *batches*, each the mean of *iterations* in a row, after *warmup* iterations that do
    not count. Long cases have fewer iterations, on every rank alike: no batch should take more than *batch_seconds*.
    """

    sizes: tuple[int, ...]
    kinds: tuple[str, ...] = MEASURED
    pairs: tuple[tuple[int, int], ...] = ((0, 1),)
    iterations: int = 20
    warmup: int = 5
    batches: int = 5
    batch_seconds: float = 0.5


def sizes(begin: int, end: int, factor: int = 0, step: int = 0) -> tuple[int, ...]:
    """Return the bytes from *begin* to *end*, times *factor*, or plus *step* without a factor.

    >>> sizes(8, 100, factor=2), sizes(8, 20, step=6)
    ((8, 16, 32, 64), (8, 14, 20))
    """
    found = [begin]
    while (following := found[-1] * factor if factor else found[-1] + step) <= end:
        found.append(following)
    return tuple(found)
