"""Everyone sends every other its block at once, but who comes last asks for half of its blocks behind its own data.

Gloo exchanges so (facebookincubator/gloo, alltoall.cc): in round i rank r sends to r + i, then asks r - i for its
block, and each pair has one connection for both. The last to come finds all its blocks asked for and sends them at
once; those that it asks from round p / 2 on it has already sent to, and its question follows that. So an exchange takes
p - 1 + floor(p / 2) times what a block does, not p - 1.
"""

from __future__ import annotations

from simulator.network.collectives import direct
from simulator.network.step import Group, Step, Transfer


def all_to_all(group: Group, nbytes: float) -> list[Step]:
    """Block j of each one's vector to position j; the last position is the last to come."""
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
