"""A ring that passes each block in two halves, of which two ranks alone cannot send both at once.

Gloo gathers so (facebookincubator/gloo, allgather.cc). A receiver asks for every half before it is sent. Around a ring
of three and more the questions go against the data. Between two ranks they go along with it, on one connection: the
rank that comes later finds both its halves asked for, sends the first, and its own questions follow behind. Two that
come within some 20 us of each other escape that.
"""

from __future__ import annotations

from simulator.network.collectives import ring
from simulator.network.step import Group, Step


def all_gather(group: Group, nbytes: float) -> list[Step]:
    """Everyone ends with every block, in p - 1 rounds of nbytes / p; two ranks take three times half a block."""
    if group.size != 2:
        return ring.all_gather(group, nbytes)
    early, late = group.channels[0]
    rounds = (((late, early),), ((late, early), (early, late)), ((early, late),))
    return [_half(transfers, nbytes / 4, number, late) for number, transfers in enumerate(rounds)]


def _half(transfers: tuple[tuple[int, int], ...], nbytes: float, number: int, late: int) -> Step:
    def blocks(_: int, index: int) -> tuple[int]:
        sender = transfers[index][0]
        half = number if sender == late else number - 1
        return (2 * sender + half,)

    return Step(transfers, nbytes, parts=4, blocks=blocks)
