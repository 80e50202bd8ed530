"""A ring that passes each block in two halves. Between two ranks the halves cannot all be sent at once.

Gloo gathers so (facebookincubator/gloo, allgather.cc). A receiver requests every half before it is sent. Around a ring
of three or more ranks the requests go against the direction of the data. Between two ranks both go over one connection:
when the later rank arrives, both its halves have been requested, so it sends the first half, and its own requests queue
behind that half. Two ranks that arrive within some 20 us of each other avoid this.
"""

from __future__ import annotations

from clustersim.simulator.network.collectives import ring
from clustersim.simulator.network.step import Group, Step


def all_gather(group: Group, nbytes: float) -> list[Step]:
    """Every position ends with every block, in p - 1 rounds of nbytes / p. Two ranks take three times half a block."""
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
