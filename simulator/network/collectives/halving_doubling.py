"""Exchanges of blocks over distances that halve, then double. The number of rounds is logarithmic.

For p = 2^k this is the recursive halving of Thakur, Rabenseifner and Gropp, "Optimization of collective communication
operations in MPICH", 2005: k rounds that move (p - 1) / p of the vector. For other p it is the circulant graph of
Träff, arXiv:2410.14234: ceil(log2 p) rounds and still (p - 1) / p. Ranks are in the order of the group's first channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from clustersim.simulator.network.step import Group, Step

Round = tuple[int, Callable[[int], int], Callable[[int], Sequence[int]]]
"""One round of a reduce-scatter: number of blocks moved, rank -> receiving rank, rank -> blocks that it sends."""


def all_reduce(group: Group, nbytes: float) -> list[Step]:
    """The sum at every position: a reduce-scatter, then an all-gather; 2 log2(p) rounds for a power of two."""
    return reduce_scatter(group, nbytes) + all_gather(group, nbytes)


def reduce_scatter(group: Group, nbytes: float) -> list[Step]:
    """Position i ends with the sum of block i, in ceil(log2 p) rounds."""
    return [_step(group, nbytes, each, reduces=True) for each in _rounds(group.size)]


def all_gather(group: Group, nbytes: float) -> list[Step]:
    """Every position ends with every block: the rounds of the reduce-scatter in reverse."""
    return [_step(group, nbytes, each, reduces=False) for each in reversed(list(_rounds(group.size)))]


def _rounds(size: int) -> Iterator[Round]:
    return _halving(size) if size & (size - 1) == 0 else _circulant(size)


def _halving(size: int) -> Iterator[Round]:
    distance = size // 2
    while distance:

        def partner(rank: int, distance: int = distance) -> int:
            return rank ^ distance

        def blocks(rank: int, distance: int = distance) -> Sequence[int]:
            begin = (rank ^ distance) // distance * distance
            return range(begin, begin + distance)

        yield distance, partner, blocks
        distance //= 2


def _circulant(size: int) -> Iterator[Round]:
    far = size
    while far > 1:
        near = (far + 1) // 2

        def partner(rank: int, near: int = near) -> int:
            return (rank + near) % size

        def blocks(rank: int, near: int = near, far: int = far) -> Sequence[int]:
            return [(rank + i) % size for i in range(near, far)]

        yield far - near, partner, blocks
        far = near


def _step(group: Group, nbytes: float, each: Round, *, reduces: bool) -> Step:
    moved, partner, sent = each
    order, ranks = group.channels[0], range(group.size)
    pairs = [(order[rank], order[partner(rank)]) for rank in ranks]

    def blocks(_: int, rank: int) -> Sequence[int]:
        return [order[block] for block in sent(rank)]

    transfers = tuple(pairs if reduces else [(receiver, sender) for sender, receiver in pairs])
    return Step(transfers, nbytes * moved / group.size, reduces=reduces, parts=group.size, blocks=blocks)
