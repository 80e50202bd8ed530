"""Measurements, which need no torch: a timed communication of one size, the sizes to time as in nccl-tests, and the
matrix products, copies and launches of a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from clustersim.simulator.analysis import metrics
from clustersim.simulator.reading.dataclass import dataclass

SEND = "send"
"""A message from one rank to another, half of a ping-pong. Its bus bandwidth is its algorithm bandwidth."""

MEASURED = (SEND, "all_reduce", "all_gather", "reduce_scatter", "broadcast")
"""The kinds that are measured by default."""

DISTURBED = 1.5
"""A row that takes so many times as long as one of more bytes was disturbed: fewer bytes never take longer."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """*kind* of collective, or ``send``, among *ranks* (a message goes from the first to the second).

    *nbytes*: the full vector. *seconds*: the least of several batches, because other work only lengthens a time.
    *spread*: by what share of *seconds* the median batch took longer (0 if only one is known).
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
class SizeSweep:
    """Each of *kinds* over *sizes* (bytes), messages between each of *pairs*.

    A time is the least of several batches, each the mean of *iterations* in a row, after *warmup* iterations that do
    not count. All cases are visited in turn, up to *visits* times with *batches* each, so that other work on the
    machine that lasts a while disturbs only some of the batches of a case. After the first visit no case begins later
    than *budget* s. Long cases have fewer iterations and batches, on every rank alike, so that they take their share.
    """

    sizes: tuple[int, ...]
    kinds: tuple[str, ...] = MEASURED
    pairs: tuple[tuple[int, int], ...] = ((0, 1),)
    iterations: int = 20
    warmup: int = 5
    batches: int = 5
    visits: int = 5
    budget: float = 30.0

    @property
    def cases(self) -> int:
        """The number of measurements."""
        return sum(len(self.sizes) * (len(self.pairs) if kind == SEND else 1) for kind in self.kinds)

    @property
    def share(self) -> float:
        """The seconds of one visit to one case."""
        return self.budget / (self.cases * self.visits)


def of_batches(kind: str, ranks: tuple[int, ...], nbytes: float, times: Sequence[float]) -> Measurement:
    """Return the measurement of batches that took *times*, in s for each communication.

    >>> of_batches("send", (0, 1), 8, [2.0, 1.0, 9.0])
    Measurement(kind='send', ranks=(0, 1), nbytes=8, seconds=1.0, spread=1.0)
    """
    least = min(times)
    return Measurement(kind, ranks, nbytes, least, median(times) / least - 1.0)


def undisturbed(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Return *measurements* without those that took `DISTURBED` times as long as one of the same kind with more bytes.

    >>> rows = [Measurement("send", (0, 1), nbytes, time) for nbytes, time in ((8, 1.0), (16, 9.0), (32, 2.0))]
    >>> [one.nbytes for one in undisturbed(rows)]
    [8, 32]
    """
    return [one for one in measurements if one.seconds <= DISTURBED * _least_of_more(one, measurements)]


def _least_of_more(one: Measurement, measurements: Sequence[Measurement]) -> float:
    same = (
        (other.nbytes, other.seconds) for other in measurements if (other.kind, other.ranks) == (one.kind, one.ranks)
    )
    return min(seconds for nbytes, seconds in same if nbytes >= one.nbytes)


def sizes(begin: int, end: int, factor: int = 0, step: int = 0) -> tuple[int, ...]:
    """Return the bytes from *begin* to *end*, times *factor*, or plus *step* without a factor.

    >>> sizes(8, 100, factor=2), sizes(8, 20, step=6)
    ((8, 16, 32, 64), (8, 14, 20))
    """
    found = [begin]
    while (following := found[-1] * factor if factor else found[-1] + step) <= end:
        found.append(following)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class TimedProduct:
    """A product of m x k by k x n in *seconds*. *shape*: (m, n, k)."""

    precision: str
    shape: tuple[int, int, int]
    seconds: float

    @property
    def flops(self) -> float:
        """A multiplication and an addition for each term."""
        m, n, k = self.shape
        return 2.0 * m * n * k


@dataclass(frozen=True, slots=True)
class TimedCopy:
    """*nbytes* read or written in *seconds*."""

    nbytes: float
    seconds: float


@dataclass(frozen=True)
class DeviceMeasurements:
    """Measurements of the device *name*. The bytes of copies in its memory are bytes read plus bytes written.

    *launch*: s of the host for each kernel of eager training. *to_host* and *to_device* are empty if the device is the
    host. *memory* (bytes) and *sms* are as the device reports them.
    """

    name: str
    products: tuple[TimedProduct, ...]
    copies: tuple[TimedCopy, ...]
    launch: float
    to_host: tuple[TimedCopy, ...] = ()
    to_device: tuple[TimedCopy, ...] = ()
    memory: float | None = None
    sms: int | None = None
