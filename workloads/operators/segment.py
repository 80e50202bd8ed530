"""A segment is a run of kernels, and what the ranks exchange before, beside and after it.

An operator gives one or more segments for each phase. `lowering` turns them into ops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.kernel import Kernel
from simulator.schedule.ops import PerPeer, scaled_bytes

SHIFT = "shift"
"""The kind of a ring exchange: each rank sends to the rank *distance* further on, and receives from the one before."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A communication of *kind* over the axis *over*: a collective of `simulator.schedule.COLLECTIVES`, or `SHIFT`.

    *nbytes*: of a collective the full vector, of a shift what one rank sends. *divisible*: the segment is a product,
    and a share of the exchange may run beside it, piece by piece; in a backward pass the weight gradient of the product
    is the next segment. *distance*: on the axis, of a shift. *per_peer*: bytes for each coordinate, of an all-to-all.
    *root*: a coordinate, of a broadcast or a reduce. *of_weights*: as many bytes for any number of samples. *wraps*: a
    shift from the last coordinate goes to the first one; otherwise the last one sends nothing.
    """

    kind: str
    nbytes: float
    over: str
    divisible: bool = False
    distance: int = 1
    per_peer: PerPeer | None = None
    root: int = 0
    of_weights: bool = False
    wraps: bool = True

    def times(self, factor: float) -> Exchange:
        """The exchange with its bytes multiplied by *factor*."""
        return replace(self, nbytes=self.nbytes * factor, per_peer=scaled_bytes(self.per_peer, factor))


@dataclass(frozen=True, slots=True)
class Segment:
    """*kernels* in order, with the exchanges *before* the first and *after* the last kernel.

    Exchanges *within* begin together with the kernels. The next segment waits for the kernels and for all exchanges.
    """

    kernels: tuple[Kernel, ...]
    before: tuple[Exchange, ...] = ()
    within: tuple[Exchange, ...] = ()
    after: tuple[Exchange, ...] = ()

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """All exchanges of the segment."""
        return self.before + self.within + self.after
