"""Colour refinement finds the coarsest equitable partition of a graph whose vertices and edges are labelled.

Start from given colours; give every vertex a new colour from its old one and the multiset of (edge label, neighbour's
colour); repeat until the number of colours stands still (Berkholz, Bonsma and Grohe, "Tight lower and upper bounds for
the complexity of canonical colour refinement", ESA 2013). Two vertices of one colour then have equally many neighbours
of every colour over every kind of edge.

Multisets are compared by sums of 64-bit hashes, modulo 2^64: n vertices collide with probability below n^2 / 2^64, for
a million vertices one in ten million.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.hashing import Colours, Indices, firsts, mixed, sorted_once


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges between vertices of the kinds numbered *one* and *other*: from ``ones[i]`` to ``others[i]``, labelled."""

    one: int
    other: int
    ones: Indices
    others: Indices
    labels: Colours


def refine(colours: Sequence[Colours], edges: Sequence[Edges]) -> list[Indices]:
    """The class of each vertex, by kind, in the coarsest equitable partition finer than *colours*.

    Classes of a kind are numbered from 0 in order of their first vertex.
    """
    colours = [mixed(colour) for colour in colours]
    labels = [mixed(e.labels) for e in edges]
    ways = [(e.one, e.ones, e.other, e.others, label) for e, label in zip(edges, labels, strict=True)]
    ways += [(e.other, e.others, e.one, e.ones, label) for e, label in zip(edges, labels, strict=True)]
    sides = [_Side(*way, salt=number) for number, way in enumerate(ways)]
    known = sum(len(sorted_once(colour)) for colour in colours)
    while True:
        fresh = [colour.copy() for colour in colours]
        for side in sides:
            side.add(fresh, colours)
        colours = [mixed(colour) for colour in fresh]
        count = sum(len(sorted_once(colour)) for colour in colours)
        if count == known:
            return [_numbered(colour) for colour in colours]
        known = count


def told_apart(classes: Indices, others: Indices, edges: Edges) -> Indices:
    """*classes* of the vertices that edges begin at, split once by the classes *others* at their ends."""
    fresh = mixed(classes.astype(np.uint64))
    _Side(0, edges.ones, 1, edges.others, mixed(edges.labels), salt=0).add(
        [fresh], [fresh, mixed(others.astype(np.uint64))]
    )
    return _numbered(fresh)


class _Side:
    """One direction of edges: the vertices *at* receive, each the sum of what it sees."""

    def __init__(self, kind: int, at: Indices, other: int, others: Indices, labels: Colours, *, salt: int) -> None:
        self.kind, self.at, self.other, self.others, self.labels = kind, at, other, others, labels
        self.salt = mixed(np.array([salt], np.uint64))

    def add(self, fresh: list[Colours], colours: list[Colours]) -> None:
        if len(self.at):
            seen = np.zeros_like(fresh[self.kind])
            np.add.at(seen, self.at, mixed(colours[self.other][self.others] ^ self.labels))
            fresh[self.kind] += mixed(seen ^ self.salt)


def _numbered(colours: Colours) -> Indices:
    distinct = sorted_once(colours)
    which = np.searchsorted(distinct, colours)
    rank = np.empty(len(distinct), np.int64)
    rank[np.argsort(firsts(which))] = np.arange(len(distinct))
    return np.asarray(rank[which])
