"""A ring passes blocks from neighbour to neighbour: optimal in bandwidth, with latency linear in the number of ranks.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009. An all-reduce takes 2
(p - 1) rounds of d / p. Every channel of the group is a ring of its own and carries an equal part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from clustersim.simulator.hardware.array_rows import Rows
from clustersim.simulator.network.step import Group, Step, Transfer, around

CHUNKS = 8
"""Parts in which a vector passes along a chain: slots of a channel's buffer (NCCL_STEPS, NCCL
src/include/devcomm.h).
"""

Order = Sequence[int]
"""Positions in the order in which a ring or chain visits them."""


def all_reduce(group: Group, nbytes: float) -> list[Step]:
    """The sum at every position, in 2 (p - 1) rounds of nbytes / p: a reduce-scatter, then an all-gather."""
    return reduce_scatter(group, nbytes) + all_gather(group, nbytes)


def reduce_scatter(group: Group, nbytes: float) -> list[Step]:
    """Position i ends with the sum of block i, in p - 1 rounds of nbytes / p."""
    return _by_channel(group, nbytes, reduces=True)


def all_gather(group: Group, nbytes: float) -> list[Step]:
    """Every position ends with every block, in p - 1 rounds of nbytes / p."""
    return _by_channel(group, nbytes, reduces=False)


def broadcast(group: Group, nbytes: float, root: int) -> list[Step]:
    """The root's vector to all positions, as a pipelined chain that begins at the root."""
    return chain([[rotated(ring, root)] for ring in group.channels], nbytes, reduces=False)


def reduce(group: Group, nbytes: float, root: int) -> list[Step]:
    """The sum to the root, as a pipelined chain that ends there."""
    return chain([[(*rotated(ring, root)[1:], root)] for ring in group.channels], nbytes, reduces=True)


def rotation(
    rings: Sequence[Order],
    nbytes: float,
    parts: int,
    owned: Callable[[int, int], Sequence[int]],
    *,
    reduces: bool,
    transfers: Rows[Transfer] | None = None,
) -> list[Step]:
    """Rotate the blocks around all *rings* (equally long) at once, until every block has passed all but one position.

    *nbytes*: bytes of each transfer. *owned* (ring, position): the blocks, out of *parts*, that start (all-gather) or
    end (reduce-scatter) at the position. *transfers*: those around the rings, if they are known.
    """
    size = len(rings[0])
    if size == 1:
        return []
    # a reduce-scatter starts each block one position after its owner, where it ends; an all-gather starts it there
    behind = 1 if reduces else 0

    def blocks(turn: int, transfer: int) -> Sequence[int]:
        number, place = divmod(transfer, size)
        return owned(number, rings[number][(place - behind - turn) % size])

    transfers = transfers or around(rings)
    return [Step(transfers, nbytes, size - 1, lanes=len(rings), reduces=reduces, parts=parts, blocks=blocks)]


def chain(lanes: Sequence[Sequence[Order]], nbytes: float, *, reduces: bool) -> list[Step]:
    """Pass an equal part of the vector in each lane along each of its chains, from first position to last.

    The chains of a lane share no position. All lanes have the same number of transfers.
    """
    ends = [np.zeros((0, 2), np.int64), *(np.array([c[:-1], c[1:]], np.int64).T for chains in lanes for c in chains)]
    return pipeline(Rows(np.concatenate(ends)), len(lanes), nbytes, reduces=reduces)


def pipeline(
    transfers: tuple[Transfer, ...] | Rows[Transfer], lanes: int, nbytes: float, *, reduces: bool
) -> list[Step]:
    """Pass a part of the vector along each of *lanes* equal runs of *transfers*, chunk after chunk."""
    if not transfers:
        return []
    length, parts = len(transfers) // lanes, lanes * CHUNKS

    def blocks(chunk: int, transfer: int) -> Sequence[int]:
        return (transfer // length * CHUNKS + chunk,)

    return [Step(transfers, nbytes / parts, CHUNKS, True, lanes, True, reduces, parts, blocks)]


def rotated(order: Order, first: int) -> tuple[int, ...]:
    """Return the same cyclic order, beginning at position *first*."""
    place = order.index(first)
    return (*order[place:], *order[:place])


def _by_channel(group: Group, nbytes: float, *, reduces: bool) -> list[Step]:
    channels = len(group.channels)
    parts = group.size * channels
    return rotation(
        group.channels,
        nbytes / parts,
        parts,
        lambda ring, i: (i * channels + ring,),
        reduces=reduces,
        transfers=group.around,
    )
