"""An all-to-all of direct messages in which the last rank to arrive receives half of its blocks late.

Gloo exchanges so (facebookincubator/gloo, alltoall.cc): in round i rank r sends to r + i, then requests the block of r
- i, and each pair has one connection for both directions. When the last rank arrives, all its blocks have been
requested, so it sends them at once. From round p / 2 on it requests blocks from ranks that it is sending to already,
and those requests queue behind its own data. So an exchange takes p - 1 + floor(p / 2) block times instead of p - 1.
"""

from __future__ import annotations

from clustersim.simulator.network.collectives import direct
from clustersim.simulator.network.step import Group, Step, Transfer


def all_to_all(group: Group, nbytes: float) -> list[Step]:
    """Block j of every vector to position j. The last position is the last to arrive."""
    size, last = group.size, group.size - 1
    late = {((last - distance) % size, last) for distance in range((size + 1) // 2, size)}
    everything = [transfer for step in direct.all_to_all(group, nbytes) for transfer in step.transfers]
    at_once = tuple(transfer for transfer in everything if transfer not in late)
    return [_step(transfers, nbytes, size) for transfers in (at_once, tuple(sorted(late))) if transfers]


def _step(transfers: tuple[Transfer, ...], nbytes: float, size: int) -> Step:
    def blocks(_: int, index: int) -> tuple[int]:
        sender, receiver = transfers[index]
        return (sender * size + receiver,)

    return Step(transfers, nbytes / size, coupled=False, parts=size * size, blocks=blocks)
