"""Two binary trees carry half of the vector each. Every rank is a leaf in one tree and an inner vertex in one at most.

Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009. The numbering is
NCCL's (src/graph/trees.cc). Chunks follow one another through the trees, so latency is paid once along the depth. In an
all-reduce the first chunks go down while later ones still come up (src/device/all_reduce.h, runTreeSplit), so a link
that carries the vector once each way is busy for one vector, not two. If the transport found rings, each server is a
chain in the order of its ring and the trees join the first ranks of the chains, as in NCCL. Otherwise the trees join
the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from clustersim.simulator.network.collectives.ring import pipeline, rotated
from clustersim.simulator.network.step import Group, Step, Transfer


def all_reduce(group: Group, nbytes: float) -> list[Step]:
    """The sum at every position: up the trees to the first rank of every channel, then down."""
    trees = _forest(group, [ring[0] for ring in group.channels])
    edges = [(*_upward(tree), *tree) for tree in trees]
    length = max(map(len, edges), default=0)
    adds = tuple(place % length < length // 2 for place in range(length * len(edges)))
    steps = pipeline(tuple(edge for tree in edges for edge in tree), len(edges), nbytes, reduces=False)
    return [replace(step, reduces=adds) for step in steps]


def broadcast(group: Group, nbytes: float, root: int) -> list[Step]:
    """The root's vector to all positions, down the trees."""
    return _pass(group, nbytes, [root] * len(group.channels), up=False)


def reduce(group: Group, nbytes: float, root: int) -> list[Step]:
    """The sum to the root, up the trees."""
    return _pass(group, nbytes, [root] * len(group.channels), up=True)


def double_tree(size: int) -> tuple[list[Transfer], list[Transfer]]:
    """Return the edges (parent, child) of two binary trees on 0 .. size - 1. Both have root 0; parents precede
    children.

    >>> double_tree(4)
    ([(0, 2), (2, 1), (2, 3)], [(0, 3), (3, 2), (3, 1)])
    """
    first = list(_binary_tree(size))
    # odd places are leaves; mirroring (odd size) or shifting (even size) makes them even places of the second tree
    places = [0, *range(size - 1, 0, -1)] if size % 2 else [0, *range(2, size), 1]
    return first, [(places[parent], places[child]) for parent, child in first]


def _binary_tree(size: int) -> Iterator[Transfer]:
    """In-order numbering: the lowest set bit of a place is its height, so odd places are leaves."""
    bit = 1
    while bit < size:
        bit *= 2
    while bit > 1:
        bit //= 2
        for child in range(bit, size, 2 * bit):
            parent = (child ^ bit) | (bit << 1)
            yield (parent if parent < size else child ^ bit), child


def _pass(group: Group, nbytes: float, roots: Sequence[int], *, up: bool) -> list[Step]:
    trees = _forest(group, roots)
    if up:
        trees = [_upward(tree) for tree in trees]
    return pipeline(tuple(edge for tree in trees for edge in tree), len(trees), nbytes, reduces=up)


def _forest(group: Group, roots: Sequence[int]) -> list[list[Transfer]]:
    """The two trees of each channel, which begin at its root."""
    return [tree for ring, root in zip(group.channels, roots, strict=True) for tree in _trees(group, ring, root)]


def _upward(tree: Sequence[Transfer]) -> list[Transfer]:
    """The edges (child, parent) of *tree*, children first."""
    return [(child, parent) for parent, child in reversed(tree)]


def _trees(group: Group, ring: Sequence[int], root: int) -> Iterator[list[Transfer]]:
    """The two trees of one channel. Parents precede children; the chains inside servers follow the tree."""
    server_of = {position: number for number, server in enumerate(group.servers) for position in server}
    chains: dict[int, list[int]] = {}
    for position in rotated(ring, root):
        chains.setdefault(server_of[position] if group.rings else position, []).append(position)
    heads = [chain[0] for chain in chains.values()]
    inside = [edge for chain in chains.values() for edge in pairwise(chain)]
    for tree in double_tree(len(heads)):
        yield [(heads[parent], heads[child]) for parent, child in tree] + inside
