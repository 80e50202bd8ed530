"""Direct algorithms send every block straight to its receiver, in one round.

The cost of a parameter server follows from the shared port of its host; no term of it stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clustersim.simulator.network.step import Group, Step, Transfer


def broadcast(group: Group, nbytes: float, root: int) -> list[Step]:
    """The root's vector to each other position at once."""
    return _step([(root, i) for i in range(group.size) if i != root], nbytes, 1, lambda _: (0,))


def reduce(group: Group, nbytes: float, root: int) -> list[Step]:
    """The vector of each other position to the root, which adds them."""
    return _step([(i, root) for i in range(group.size) if i != root], nbytes, 1, lambda _: (0,), reduces=True)


def gather(group: Group, nbytes: float, root: int) -> list[Step]:
    """The block of nbytes / p of each position to the root, which ends with nbytes."""
    pairs = [(i, root) for i in range(group.size) if i != root]
    return _step(pairs, nbytes / group.size, group.size, lambda pair: (pair[0],))


def scatter(group: Group, nbytes: float, root: int) -> list[Step]:
    """To each position its block of nbytes / p of the root's vector."""
    pairs = [(root, i) for i in range(group.size) if i != root]
    return _step(pairs, nbytes / group.size, group.size, lambda pair: (pair[1],))


def all_gather(group: Group, nbytes: float) -> list[Step]:
    """The block of nbytes / p of each position to all others."""
    return _step(_all_pairs(group.size), nbytes / group.size, group.size, lambda pair: (pair[0],))


def reduce_scatter(group: Group, nbytes: float) -> list[Step]:
    """To each position its block of every other vector; the receiver adds them."""
    return _step(_all_pairs(group.size), nbytes / group.size, group.size, lambda pair: (pair[1],), reduces=True)


def all_reduce(group: Group, nbytes: float) -> list[Step]:
    """The sum at every position in two rounds: each position adds up its own block, then sends the sum to all."""
    return reduce_scatter(group, nbytes) + all_gather(group, nbytes)


def all_to_all(group: Group, nbytes: float) -> list[Step]:
    """Block j of every vector to position j."""
    size = group.size
    return _step(_all_pairs(size), nbytes / size, size * size, lambda pair: (pair[0] * size + pair[1],))


def _all_pairs(size: int) -> list[Transfer]:
    return [(i, (i + distance) % size) for distance in range(1, size) for i in range(size)]


def _step(
    pairs: Sequence[Transfer],
    nbytes: float,
    parts: int,
    carried: Callable[[Transfer], Sequence[int]],
    *,
    reduces: bool = False,
) -> list[Step]:
    if not pairs:
        return []
    transfers = tuple(pairs)
    return [
        Step(transfers, nbytes, coupled=False, reduces=reduces, parts=parts, blocks=lambda _, i: carried(transfers[i]))
    ]
