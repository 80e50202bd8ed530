"""The topology of a cluster as arrays: vertices, and links numbered by the vertex that they leave.

The links that leave vertex 0 have the first numbers, then come those that leave vertex 1, and so on. The links of one
vertex are in the order in which they were added. A million links take a few arrays and no Python object each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

import numpy as np

from simulator.cluster.links import Link, Links
from simulator.cluster.vertices import Vertices
from simulator.hashing import Indices


@dataclass(frozen=True, eq=False)
class Topology:
    """*vertices* and *links*. Link i leads from vertex ``source[i]`` to ``target[i]``; *source* is ascending."""

    vertices: Vertices
    links: Links
    source: Indices
    target: Indices
    _rows: dict[int, dict[int, int]] = field(default_factory=dict)

    @cached_property
    def first(self) -> Indices:
        """By vertex the number of the first link that leaves it; last, the number of links."""
        first = np.zeros(len(self.vertices) + 1, np.int64)
        np.cumsum(np.bincount(self.source, minlength=len(self.vertices)), out=first[1:])
        return first

    @property
    def degrees(self) -> Indices:
        """By vertex the number of links that leave it."""
        return np.diff(self.first)

    def leaving(self, vertex: int) -> dict[int, int]:
        """Return the links that leave *vertex*: target vertex -> number of the link."""
        row = self._rows.get(vertex)
        if row is None:
            begin, end = self.first[vertex : vertex + 2].tolist()
            row = dict(zip(self.target[begin:end].tolist(), range(begin, end), strict=True))
            self._rows[vertex] = row
        return row


def sorted_topology(
    vertices: Vertices, distinct: Sequence[Link], source: Indices, target: Indices, which: Indices
) -> Topology:
    """Return the topology of links in any order. *which*: for each link, its place in *distinct*."""
    order = np.argsort(source, kind="stable")
    return Topology(vertices, Links(tuple(distinct), which[order]), source[order], target[order])


class Ends(Sequence[tuple[str, str]]):
    """The names of the ends of each link, made on demand."""

    def __init__(self, topology: Topology) -> None:
        self._names, self._source, self._target = topology.vertices.names, topology.source, topology.target

    def __len__(self) -> int:
        return len(self._source)

    @overload
    def __getitem__(self, number: int) -> tuple[str, str]: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[tuple[str, str]]: ...

    def __getitem__(self, number: int | slice) -> tuple[str, str] | Sequence[tuple[str, str]]:
        if isinstance(number, slice):
            ends = self._names.of(self._source[number]), self._names.of(self._target[number])
            return tuple(zip(*ends, strict=True))
        return self._names[self._source[number]], self._names[self._target[number]]
