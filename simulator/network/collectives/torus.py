"""Rings along every dimension of a torus, in both directions at once, so that all links of a chip carry data.

The vector is divided into two parts for each dimension, one for each direction. Part j goes along dimensions j, j + 1
and so on: a reduce-scatter along one dimension leaves less to the next, and an all-gather runs backwards. On a torus of
equal sides with k dimensions and links of W bytes/s one way, V bytes are gathered in V (1 - 1/p) / (2 k W) seconds, as
Google tells of its TPUs (Austin et al. 2025, "How to Scale Your Model", part 3; Sack and Gropp 2015, "Collective
algorithms for multiported torus networks"). Dimensions of unequal length take turns. Slices are joined by a ring among
the chips of equal place. How XLA orders the dimensions is not published.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from clustersim.simulator.network.collectives import hierarchical, ring
from clustersim.simulator.network.step import Group, Step


def all_reduce(group: Group, nbytes: float) -> list[Step]:
    """The sum at every position: a reduce-scatter, then an all-gather."""
    return reduce_scatter(group, nbytes) + all_gather(group, nbytes)


def reduce_scatter(group: Group, nbytes: float) -> list[Step]:
    """Position i ends with the sum of block i. Slices of unequal size: one ring."""
    if len({len(server) for server in group.servers}) > 1:
        return hierarchical.reduce_scatter(group, nbytes)
    return [*_along(group, nbytes, reduces=True), *hierarchical.across(group, nbytes, reduces=True)]


def all_gather(group: Group, nbytes: float) -> list[Step]:
    """Every position ends with every block. Slices of unequal size: one ring."""
    if len({len(server) for server in group.servers}) > 1:
        return hierarchical.all_gather(group, nbytes)
    return [*hierarchical.across(group, nbytes, reduces=False), *_along(group, nbytes, reduces=False)]


def _along(group: Group, nbytes: float, *, reduces: bool) -> Iterator[Step]:
    """Rings inside the slices, stage by stage; in a stage each part has a dimension of its own."""
    torus = _Torus(group)
    stages = range(len(torus.dims))
    for stage in stages if reduces else reversed(stages):
        for parts in torus.equal_parts(stage):
            yield from torus.rotation(parts, stage, nbytes, reduces=reduces)


class _Torus:
    """The chips of each slice of *group* by their coordinates, and the parts of the vector."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.dims = [size for size in group.dims or (len(group.servers[0]),) if size > 1]
        self.coordinates = list(product(*map(range, self.dims)))
        self.place = {position: number for server in group.servers for number, position in enumerate(server)}

    @property
    def count(self) -> int:
        """How many parts: two for each dimension."""
        return 2 * len(self.dims)

    def order(self, part: int) -> list[int]:
        """The dimensions in the order in which *part* goes along them."""
        first = part // 2
        return [(first + turn) % len(self.dims) for turn in range(len(self.dims))]

    def left(self, part: int, stage: int) -> int:
        """The chips that share what one chip has of *part* after *stage*."""
        return prod(self.dims[axis] for axis in self.order(part)[stage + 1 :])

    def equal_parts(self, stage: int) -> list[list[int]]:
        """The parts by the length of their dimension in *stage*: these rotate together."""
        alike: dict[tuple[int, int], list[int]] = {}
        for part in range(self.count):
            key = self.dims[self.order(part)[stage]], self.left(part, stage)
            alike.setdefault(key, []).append(part)
        return list(alike.values())

    def rotation(self, parts: Sequence[int], stage: int, nbytes: float, *, reduces: bool) -> list[Step]:
        """The rings of *parts* along their dimensions in *stage*, in all slices."""
        lanes = [(part, line) for part in parts for line in self._lines(self.order(part)[stage], part % 2 == 1)]
        count, servers = self.group.size * self.count, self.group.servers

        def owned(number: int, position: int) -> Sequence[int]:
            part = lanes[number][0]
            return [
                server[place] * self.count + part
                for place in self._sharing(part, stage, position)
                for server in servers
            ]

        each = nbytes / count * self.left(parts[0], stage) * len(servers)
        return ring.rotation([line for _, line in lanes], each, count, owned, reduces=reduces)

    def _lines(self, axis: int, backwards: bool) -> Iterator[tuple[int, ...]]:
        """The positions along *axis*, for each slice and all other coordinates."""
        stride = prod(self.dims[axis + 1 :])
        for server in self.group.servers:
            for begin, coordinates in enumerate(self.coordinates):
                if not coordinates[axis]:
                    line = tuple(server[begin + turn * stride] for turn in range(self.dims[axis]))
                    yield line[::-1] if backwards else line

    def _sharing(self, part: int, stage: int, position: int) -> list[int]:
        """The places with the coordinates of *position* in the dimensions that *part* has passed up to *stage*."""
        passed = self.order(part)[: stage + 1]
        own = self.coordinates[self.place[position]]
        return [
            place for place, other in enumerate(self.coordinates) if all(other[axis] == own[axis] for axis in passed)
        ]
