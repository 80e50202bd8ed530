"""Slots: the unit in which the programmes count memory.

Stored sizes are rounded up to whole slots, so a sequence never needs more than its budget. If all stored sizes are
multiples of a number of bytes, and the budget has few of these, that number is the slot and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, gcd

from workloads.memory.chains.chain import Chain

PER_MICRO_BATCH = 500
"""Slots for each micro-batch in flight, as in the paper (Beaumont et al. 2019, arXiv:1911.13214, section 5.2)."""

ALONE = 4000
"""Slots if one micro-batch is in flight: as long as the chain is short, more cost little."""

MOST, MOST_EXACT = 4_000_000, 10_000_000
"""Slots of all segments of a chain together, if sizes are rounded and if none is: the tables take 18 bytes for each."""

EXACT = 1e-9
"""Slots by which a size may exceed a whole number of slots, so that rounding errors take no slot."""


@dataclass(frozen=True, slots=True)
class Slots:
    """*count* slots of *nbytes*, and *spare*: the part of a slot, below 1, that the budget has beyond them."""

    nbytes: float
    count: int
    spare: float = 0.0

    def stored(self, nbytes: float) -> int:
        """Slots that a stored tensor takes; more than all for what does not fit."""
        return min(ceil(nbytes / self.nbytes - EXACT), self.count + 1)

    def peak(self, nbytes: float) -> int:
        """Slots that must be left where *nbytes* are needed beside what is stored."""
        return max(0, min(ceil(nbytes / self.nbytes - self.spare - EXACT), self.count + 1))


def slots_of(chains: Sequence[Chain], budget: float, in_flight: int = 1) -> Slots:
    """Return the slots for *budget* bytes, which *in_flight* passes over *chains* share."""
    length = max(map(len, chains))
    wanted = ALONE if in_flight == 1 else PER_MICRO_BATCH * in_flight
    segments = length * (length + 1) // 2
    count = max(PER_MICRO_BATCH, min(wanted, MOST // segments))
    unit = _unit(chains)
    if unit and budget / unit < max(count, MOST_EXACT // segments):
        whole = int(budget / unit + EXACT)
        return Slots(unit, whole, max(0.0, budget / unit - whole))
    return Slots(budget / count, count)


def _unit(chains: Sequence[Chain]) -> int:
    """Return the largest number of bytes that divides all stored sizes; 0 if there is none."""
    sizes = [chain.input_bytes for chain in chains]
    sizes += [size for chain in chains for layer in chain.layers for size in (layer.activation, layer.tape)]
    if any(size != int(size) for size in sizes):
        return 0
    return gcd(*map(int, sizes))
