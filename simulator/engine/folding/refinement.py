"""Colour refinement finds the coarsest equitable partition of a graph with labelled vertices and edges.

It starts from given colours. Each round gives every vertex a new colour, made from its old colour and the multiset of
(edge label, colour of the neighbour). It ends when the number of colours no longer grows (Berkholz, Bonsma and Grohe,
"Tight lower and upper bounds for the complexity of canonical colour refinement", ESA 2013). Then two vertices of one
colour have equally many neighbours of every colour over every kind of edge.

Multisets are compared by sums of 64-bit hashes, modulo 2^64. The probability of a collision among n vertices is below
n^2 / 2^64: for a million vertices one in ten million.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.hashing import Colours, Indices, firsts, mixed, sorted_once

Numbers = NDArray[np.int32] | Indices
"""Numbers of vertices; with 32 bits where there are many edges, fifty for each rank."""

AT_ONCE = 1 << 18
"""Edges that are looked at together: their temporary arrays stay in the cache."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges between vertices of kind *one* and vertices of kind *other*; both are indices of kinds.

    Edge i joins ``ones[i]`` and ``others[i]`` and has the label ``labels[which[i]]``.
    """

    one: int
    other: int
    ones: Numbers
    others: Numbers
    labels: Colours
    which: Numbers

    @property
    def turned(self) -> Edges:
        """The same edges, seen from the other end."""
        return Edges(self.other, self.one, self.others, self.ones, self.labels, self.which)


def refine(colours: Sequence[Colours], edges: Sequence[Edges]) -> list[Indices]:
    """By kind: the class of each vertex in the coarsest equitable partition that refines *colours* (by kind).

    Classes of a kind are numbered from 0 in order of their first vertex.
    """
    colours = [mixed(colour) for colour in colours]
    directed = [_Directed(one, salt=number) for number, one in enumerate([*edges, *(e.turned for e in edges)])]
    known = sum(len(sorted_once(colour)) for colour in colours)
    while True:
        fresh = [colour.copy() for colour in colours]
        for one in directed:
            one.add(fresh, colours)
        for kind in reversed(range(len(fresh))):  # large arrays; each is released when it has been mixed
            colours[kind] = mixed(fresh.pop())
        count = sum(len(sorted_once(colour)) for colour in colours)
        if count == known:
            return [_numbered(colour) for colour in colours]
        known = count


def split_once(classes: Indices, others: Indices, edges: Edges) -> Indices:
    """*classes* (of the vertices of kind `Edges.one`), split once by the classes *others* of their neighbours."""
    fresh = mixed(classes.astype(np.uint64))
    one = Edges(0, 1, edges.ones, edges.others, edges.labels, edges.which)
    _Directed(one, salt=0).add([fresh], [fresh, mixed(others.astype(np.uint64))])
    return _numbered(fresh)


class _Directed:
    """One direction of *edges*: vertex ``ones[i]`` looks at vertex ``others[i]``.

    *salt* distinguishes the edges of several kinds that one vertex has.
    """

    def __init__(self, edges: Edges, *, salt: int) -> None:
        self.edges, self.labels = edges, mixed(edges.labels)
        self.salt = mixed(np.array([salt], np.uint64))

    def add(self, fresh: list[Colours], colours: list[Colours]) -> None:
        """Add to the colours *fresh* of the vertices a hash of the *colours* of their neighbours."""
        edges, theirs = self.edges, colours[self.edges.other]
        seen = np.zeros_like(fresh[edges.one])
        for begin in range(0, len(edges.ones), AT_ONCE):
            part = slice(begin, begin + AT_ONCE)
            np.add.at(seen, edges.ones[part], mixed(theirs[edges.others[part]] ^ self.labels[edges.which[part]]))
        if len(edges.ones):
            seen ^= self.salt
            fresh[edges.one] += mixed(seen)


def _numbered(colours: Colours) -> Indices:
    """The colours as numbers from 0, in order of their first vertex."""
    distinct = sorted_once(colours)
    which = np.searchsorted(distinct, colours)
    rank = np.empty(len(distinct), np.int64)
    rank[np.argsort(firsts(which))] = np.arange(len(distinct))
    return np.asarray(rank[which])
