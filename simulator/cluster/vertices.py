"""Vertices by number: the kind, server, accelerator and name of each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from simulator.accelerator import Accelerator
from simulator.hashing import Indices, counted

NONE = -1
"""Stands for a missing number."""


class Names(Sequence[str]):
    """The names of vertices by number, and the number by name."""

    @abstractmethod
    def find(self, name: str) -> int | None:
        """Return the number of the vertex *name*; None if there is none."""

    def of(self, vertices: Indices) -> tuple[str, ...]:
        """Return the names of *vertices*."""
        return tuple(self[vertex] for vertex in vertices.tolist())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None


class ExplicitNames(Names):
    """Names listed one by one."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._numbers = {name: number for number, name in enumerate(self._names)}

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, vertex: int) -> str: ...

    @overload
    def __getitem__(self, vertex: slice) -> Sequence[str]: ...

    def __getitem__(self, vertex: int | slice) -> str | Sequence[str]:
        return self._names[vertex]

    def find(self, name: str) -> int | None:
        """Return the number of the vertex *name*; None if there is none."""
        return self._numbers.get(name)


class Numbered(Names):
    """Names like ``gpu 17``, made on demand. *kinds*: the words. *kind*: of each vertex. *number*: of each within its
    kind.

    >>> names = Numbered(("gpu", "switch"), np.array([0, 1, 0]), np.array([0, 0, 1]))
    >>> list(names), names.find("gpu 1"), names.find("gpu 2")
    (['gpu 0', 'switch 0', 'gpu 1'], 2, None)
    """

    def __init__(self, kinds: Sequence[str], kind: Indices, number: Indices) -> None:
        self._kinds, self._kind, self._number = tuple(kinds), kind, number
        self._vertices: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._kind)

    @overload
    def __getitem__(self, vertex: int) -> str: ...

    @overload
    def __getitem__(self, vertex: slice) -> Sequence[str]: ...

    def __getitem__(self, vertex: int | slice) -> str | Sequence[str]:
        if isinstance(vertex, slice):
            return self.of(np.arange(len(self))[vertex])
        return f"{self._kinds[self._kind[vertex]]} {self._number[vertex]}"

    def __iter__(self) -> Iterator[str]:
        return iter(self.of(np.arange(len(self))))

    def of(self, vertices: Indices) -> tuple[str, ...]:
        """Return the names of *vertices*."""
        kinds, numbers = self._kind[vertices].tolist(), self._number[vertices].tolist()
        return tuple([f"{self._kinds[kind]} {number}" for kind, number in zip(kinds, numbers, strict=True)])

    def find(self, name: str) -> int | None:
        """Return the number of the vertex *name*; None if there is none."""
        kind, _, number = name.rpartition(" ")
        return self._of_kind(kind).get(number) if kind in self._kinds else None

    def _of_kind(self, kind: str) -> Mapping[str, int]:
        """The vertices of *kind* by their number within it, as text."""
        if kind not in self._vertices:
            found = np.flatnonzero(self._kind == self._kinds.index(kind))
            numbers = map(str, self._number[found].tolist())
            self._vertices[kind] = dict(zip(numbers, found.tolist(), strict=True))
        return self._vertices[kind]


@dataclass(frozen=True, eq=False)
class Vertices:
    """Arrays over vertices: the places of each vertex's *kind* in *kinds*, of its *node* (server) in *nodes*, and of
    its *accelerator* in *accelerators*. `NONE` for a vertex without a server or without an accelerator.
    """

    kinds: tuple[str, ...]
    kind: Indices
    nodes: Sequence[int | str]
    node: Indices
    accelerators: tuple[Accelerator, ...]
    accelerator: Indices
    names: Names

    def __len__(self) -> int:
        return len(self.kind)

    def of_kind(self, kind: str) -> Indices:
        """Return the vertices of *kind* in order."""
        if kind not in self.kinds:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.kind == self.kinds.index(kind))

    def node_of(self, vertex: int) -> int | str:
        """Return the server of a vertex. A vertex without one is a server of its own, with the vertex's name."""
        node = int(self.node[vertex])
        return self.names[vertex] if node == NONE else self.nodes[node]

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """The number of vertices of each kind, in order of first occurrence."""
        return dict(zip(*counted(self.kinds, self.kind), strict=True))
