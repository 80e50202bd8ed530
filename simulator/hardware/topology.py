"""The topology of a cluster as arrays: vertices by number, and links numbered by the vertex that they leave; conversion
to and from a networkx graph.

The links that leave vertex 0 have the first numbers, then come those that leave vertex 1, and so on. The links of one
vertex are in the order in which they were added. A million links take a few arrays and no Python object each.

Vertices of the graph have `kind` (gpu, host, nvswitch, pcie_switch, nic, leaf, spine ...) and `node`, their server
(absent on switches of the fabric). GPUs and hosts have `accelerator`. Edges have `link`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.hashing import Indices, Numbering, Numbers, T, counted
from clustersim.simulator.hardware.links import Link, Links
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ClusterError

if TYPE_CHECKING:
    import networkx as nx

NONE = -1
"""Stands for a missing number."""

LONGEST_NUMBER = 18
"""Digits of the largest number of a vertex: those that every int64 has."""


class VertexNames(Sequence[str]):
    """The names of vertices by number, and the number by name."""

    @abstractmethod
    def find(self, name: str) -> int | None:
        """Return the number of the vertex *name*; None if there is none."""

    def of(self, vertices: Numbers) -> tuple[str, ...]:
        """Return the names of *vertices*."""
        return tuple(self[vertex] for vertex in vertices.tolist())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None


class NamesOf(Sequence[str]):
    """The names of *vertices*, made when they are read: most readers of a million devices want their numbers alone.

    >>> gpus = NamesOf(ExplicitNames(("gpu 0", "nic 0", "gpu 1")), np.array([0, 2]))
    >>> gpus[1], gpus[:1] == ("gpu 0",), "nic 0" in gpus
    ('gpu 1', True, False)
    """

    def __init__(self, names: VertexNames, vertices: Indices) -> None:
        self.names, self.vertices = names, vertices

    def __len__(self) -> int:
        return len(self.vertices)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> NamesOf: ...

    def __getitem__(self, place: int | slice) -> str | NamesOf:
        if isinstance(place, slice):
            # all of them are the same object, as of a tuple: a dictionary finds it without a comparison
            whole = place.indices(len(self)) == (0, len(self), 1)
            return self if whole else NamesOf(self.names, self.vertices[place])
        return self.names[int(self.vertices[place])]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __contains__(self, name: object) -> bool:
        vertex = self.names.find(name) if isinstance(name, str) else None
        return vertex is not None and bool((self.vertices == vertex).any())

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if isinstance(other, NamesOf) and other.names is self.names:
            return np.array_equal(self.vertices, other.vertices)
        return isinstance(other, NamesOf | tuple) and self._all == tuple(other)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self._all)  # equal to that of an equal tuple

    def __repr__(self) -> str:
        return repr(self._all)

    @cached_property
    def _all(self) -> tuple[str, ...]:
        return self.names.of(self.vertices)


def unchanging(names: Sequence[str]) -> NamesOf | tuple[str, ...]:
    """Return *names* as a sequence that does not change."""
    return names if isinstance(names, NamesOf) else tuple(names)


class ExplicitNames(VertexNames):
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


class Numbered(VertexNames):
    """Names like ``gpu 17``, made on demand. *kinds*: the words. *kind*: of each vertex. *number*: of each within its
    kind.

    >>> names = Numbered(("gpu", "switch"), np.array([0, 1, 0]), np.array([0, 0, 1]))
    >>> list(names), names.find("gpu 1"), names.find("gpu 2")
    (['gpu 0', 'switch 0', 'gpu 1'], 2, None)
    """

    def __init__(self, kinds: Sequence[str], kind: Numbers, number: Numbers) -> None:
        self._kinds, self._kind, self._number = tuple(kinds), kind, number
        self._vertices: dict[str, Indices] = {}

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

    def of(self, vertices: Numbers) -> tuple[str, ...]:
        """Return the names of *vertices*."""
        kinds, numbers = self._kind[vertices].tolist(), self._number[vertices].tolist()
        return tuple([f"{self._kinds[kind]} {number}" for kind, number in zip(kinds, numbers, strict=True)])

    def find(self, name: str) -> int | None:
        """Return the number of the vertex *name*; None if there is none."""
        kind, _, number = name.rpartition(" ")
        plain = number.isdecimal() and number.isascii() and len(number) <= LONGEST_NUMBER
        if kind not in self._kinds or not plain or str(int(number)) != number:
            return None
        vertices, wanted = self._of_kind(kind), int(number)
        place = min(wanted, len(vertices) - 1)
        if place < 0 or self._number[vertices[place]] != wanted:
            found = np.flatnonzero(self._number[vertices] == wanted)
            return int(vertices[found[-1]]) if len(found) else None
        return int(vertices[place])

    def _of_kind(self, kind: str) -> Indices:
        """The vertices of *kind*, mostly in order of their numbers within it."""
        if kind not in self._vertices:
            self._vertices[kind] = np.flatnonzero(self._kind == self._kinds.index(kind))
        return self._vertices[kind]


@dataclass(frozen=True, eq=False)
class Vertices:
    """Arrays over vertices: the places of each vertex's *kind* in *kinds*, of its *node* (server) in *nodes*, and of
    its *accelerator* in *accelerators*. `NONE` for a vertex without a server or without an accelerator.
    """

    kinds: tuple[str, ...]
    kind: Numbers
    nodes: Sequence[int | str]
    node: Numbers
    accelerators: tuple[Accelerator, ...]
    accelerator: Numbers
    names: VertexNames

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


@dataclass(frozen=True, eq=False)
class Topology:
    """*vertices* and *links*. Link i leads from vertex ``source[i]`` to ``target[i]``; *source* is ascending."""

    vertices: Vertices
    links: Links
    source: Numbers
    target: Numbers
    _rows: dict[int, dict[int, int]] = field(default_factory=dict)

    def first(self, vertex: int) -> int:
        """Return the number of the first link that leaves *vertex* or a later vertex."""
        return int(np.searchsorted(self.source, self.source.dtype.type(vertex)))

    @property
    def degrees(self) -> Indices:
        """By vertex the number of links that leave it."""
        return np.bincount(self.source, minlength=len(self.vertices))

    @cached_property
    def leaving_fabric(self) -> Indices:
        """The numbers of the links that leave vertices of no server."""
        links = np.arange(self.first(self._first_outside), len(self.source))
        return np.asarray(links[self.vertices.node[self.source[links]] == NONE])

    @cached_property
    def entering_fabric(self) -> Indices:
        """The numbers of the links that lead to vertices of no server."""
        links = np.flatnonzero(self.target >= self._first_outside)
        return np.asarray(links[self.vertices.node[self.target[links]] == NONE])

    @cached_property
    def _first_outside(self) -> int:
        """The first vertex of no server, 0 if there is none. Mostly those of servers come before all others."""
        return int((self.vertices.node == NONE).argmax())

    @cached_property
    def cables(self) -> Indices:
        """The numbers of the links between two vertices of no server, such as switches of the fabric."""
        cables: Indices = self.leaving_fabric[self.vertices.node[self.target[self.leaving_fabric]] == NONE]
        return cables

    def leaving(self, vertex: int) -> dict[int, int]:
        """Return the links that leave *vertex*: target vertex -> number of the link."""
        row = self._rows.get(vertex)
        if row is None:
            begin, end = self.first(vertex), self.first(vertex + 1)
            row = dict(zip(self.target[begin:end].tolist(), range(begin, end), strict=True))
            self._rows[vertex] = row
        return row


LinkColumns = tuple[Numbers, Numbers, Numbers]
"""By link: its source vertex, its target vertex, and its place among the distinct links."""

NO_LINKS: LinkColumns = (np.zeros(0, np.int32),) * 3


def sorted_topology(
    vertices: Vertices, distinct: Sequence[Link], links: LinkColumns, ascending: LinkColumns = NO_LINKS
) -> Topology:
    """Return the topology of *links* in any order and of those that are *ascending* by source already.

    Of one vertex the ascending links come first.
    """
    order = np.argsort(links[0], kind="stable")
    place = np.searchsorted(ascending[0], links[0][order], side="right") + np.arange(len(order))
    before = np.ones(len(ascending[0]) + len(order), np.bool_)
    before[place] = False

    def merged(first: Numbers, others: Numbers) -> Numbers:
        found = np.empty(len(before), others.dtype)
        found[before], found[place] = first, others[order]
        return found

    source, target, which = map(merged, ascending, links)
    return Topology(vertices, Links(tuple(distinct), which), source, target)


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


def graph_of(topology: Topology) -> nx.DiGraph[str]:
    """Return *topology* as a networkx graph, with vertices and links in their order, by name."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    vertices, links = topology.vertices, topology.links
    names = vertices.names.of(np.arange(len(vertices)))
    columns = vertices.kind.tolist(), vertices.node.tolist(), vertices.accelerator.tolist()
    for name, kind, node, accelerator in zip(names, *columns, strict=True):
        attributes: dict[str, Any] = {"kind": vertices.kinds[kind]}
        if accelerator != NONE:
            attributes["accelerator"] = vertices.accelerators[accelerator]
        if node != NONE:
            attributes["node"] = vertices.nodes[node]
        graph.add_node(name, **attributes)
    ends = zip(topology.source.tolist(), topology.target.tolist(), links, strict=True)
    graph.add_edges_from((names[source], names[target], {"link": link}) for source, target, link in ends)
    return graph


def topology_of(graph: nx.DiGraph[str]) -> Topology:
    """Return the topology of *graph*, with its vertices in their order and the edges of each vertex in theirs."""
    names = ExplicitNames(tuple(graph))
    kinds, kind = _numbered(data.get("kind", "") for _, data in graph.nodes.items())
    nodes, node = _numbered(data.get("node") for _, data in graph.nodes.items())
    accelerators, accelerator = _numbered(data.get("accelerator") for _, data in graph.nodes.items())
    vertices = Vertices(kinds, kind, nodes, node, accelerators, accelerator, names)
    leaving = [others for _, others in graph.adjacency()]
    source = np.repeat(np.arange(len(leaving)), np.array([len(others) for others in leaving], np.int64))
    place = {name: number for number, name in enumerate(names)}
    target = np.array([place[other] for others in leaving for other in others], np.int64)
    distinct, which = _numbered(data["link"] for others in leaving for data in others.values())
    return Topology(vertices, Links(distinct, which), source, target)


def search_route(graph: nx.DiGraph[str], gpus: Sequence[str], source: str, target: str) -> list[str]:
    """Return the vertices of a route with the fewest links, through no other one of *gpus* if possible.

    Raises `ClusterError` if there is no route.
    """
    import networkx as nx

    others = [gpu for gpu in gpus if gpu not in (source, target)]
    for part in (nx.restricted_view(graph, others, []), graph):
        try:
            path: list[str] = nx.shortest_path(part, source, target)
        except nx.NetworkXNoPath:
            continue
        return path
    raise ClusterError(f"there is no route from {source} to {target}")


def _numbered(values: Iterable[T | None]) -> tuple[tuple[T, ...], Indices]:
    """The distinct *values* and the place of each; `NONE` for None."""
    table: Numbering[T] = Numbering()
    numbers = [NONE if value is None else table.number(value) for value in values]
    return table.values, np.array(numbers, np.int64)
