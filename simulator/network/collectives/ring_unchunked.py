"""A ring that does not cut the vector: every rank's whole vector passes all others, and each adds up what comes by.

The naive ring, p - 1 rounds of d: (p - 1)(alpha + d beta), against 2 (p - 1)(alpha + d / p beta) of the ring with
chunks (Patarasuk and Yuan 2009). It has half of the latency and p / 2 times the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from clustersim.simulator.network.step import Group, Step


def all_reduce(group: Group, nbytes: float) -> list[Step]:
    """Sum everywhere, in p - 1 rounds of nbytes. Each channel carries an equal part of every vector."""
    if group.size == 1:
        return []
    size, lanes = group.size, len(group.channels)

    def blocks(_: int, transfer: int) -> Sequence[int]:
        return (transfer // size,)

    return [
        Step(
            group.around, nbytes / lanes, size - 1, lanes=lanes, reduces=True, parts=lanes, blocks=blocks, forwards=True
        )
    ]
