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

from simulator.hashing import Colours, Indices, firsts, mixed, sorted_once


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges between vertices of kind *one* and vertices of kind *other*; both are indices of kinds.

    Edge i joins ``ones[i]`` and ``others[i]`` and has the label ``labels[i]``.
    """

    one: int
    other: int
    ones: Indices
    others: Indices
    labels: Colours


def refine(colours: Sequence[Colours], edges: Sequence[Edges]) -> list[Indices]:
    """By kind: the class of each vertex in the coarsest equitable partition that refines *colours* (by kind).

    Classes of a kind are numbered from 0 in order of their first vertex.
    """
    colours = [mixed(colour) for colour in colours]
    labels = [mixed(e.labels) for e in edges]
    directions = [(e.one, e.ones, e.other, e.others, label) for e, label in zip(edges, labels, strict=True)]
    directions += [(e.other, e.others, e.one, e.ones, label) for e, label in zip(edges, labels, strict=True)]
    directed = [_Directed(*direction, salt=number) for number, direction in enumerate(directions)]
    known = sum(len(sorted_once(colour)) for colour in colours)
    while True:
        fresh = [colour.copy() for colour in colours]
        for one in directed:
            one.add(fresh, colours)
        colours = [mixed(colour) for colour in fresh]
        count = sum(len(sorted_once(colour)) for colour in colours)
        if count == known:
            return [_numbered(colour) for colour in colours]
        known = count


def split_once(classes: Indices, others: Indices, edges: Edges) -> Indices:
    """*classes* (of the vertices of kind `Edges.one`), split once by the classes *others* of their neighbours."""
    fresh = mixed(classes.astype(np.uint64))
    _Directed(0, edges.ones, 1, edges.others, mixed(edges.labels), salt=0).add(
        [fresh], [fresh, mixed(others.astype(np.uint64))]
    )
    return _numbered(fresh)


class _Directed:
    """One direction of edges: vertex ``at[i]`` of *kind* looks at vertex ``others[i]`` of the kind *other*.

    *salt* distinguishes the edges of several kinds that one vertex has.
    """

    def __init__(self, kind: int, at: Indices, other: int, others: Indices, labels: Colours, *, salt: int) -> None:
        self.kind, self.at, self.other, self.others, self.labels = kind, at, other, others, labels
        self.salt = mixed(np.array([salt], np.uint64))

    def add(self, fresh: list[Colours], colours: list[Colours]) -> None:
        """Add to the colours *fresh* of the vertices a hash of the *colours* of their neighbours."""
        if len(self.at):
            seen = np.zeros_like(fresh[self.kind])
            np.add.at(seen, self.at, mixed(colours[self.other][self.others] ^ self.labels))
            fresh[self.kind] += mixed(seen ^ self.salt)


def _numbered(colours: Colours) -> Indices:
    """The colours as numbers from 0, in order of their first vertex."""
    distinct = sorted_once(colours)
    which = np.searchsorted(distinct, colours)
    rank = np.empty(len(distinct), np.int64)
    rank[np.argsort(firsts(which))] = np.arange(len(distinct))
    return np.asarray(rank[which])
