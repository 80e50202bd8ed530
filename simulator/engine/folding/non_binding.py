"""Constraints that change no rate: cables between switches that no load can fill (non-binding), and rows that follow
from another row (dominated).

All traffic that leaves switch v by a cable upward came into v by another link, since routes in a tree do not turn back.
So the load of the cable is at most the load of the other links into v together. If their capacity is at most that of
the cable, the constraint of the cable follows from theirs. The same holds for a cable down to switch u and the other
links out of u. In a tree of switches both arguments lead down, level by level, to the links of NICs. They never lead in
a circle, so all such constraints can be left out together. The feasible rates stay the same, and so do the max-min fair
rates.

A row is a constraint: the sum of weight x rate over its flows is at most its capacity. Divided by the capacity, each
flow takes a *share* of the row for 1 byte/s of rate. A row is dominated if another row has at least the same share for
every flow of it: then it is never full before the other row. Of equal rows the first is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import Indices, mixed
from clustersim.simulator.hardware.links import Link
from clustersim.simulator.hardware.topology import NONE, Topology
from clustersim.simulator.network.library.communicator import Communicator

ROUNDING = 1e-12
"""Relative; the capacity of a bundle of links is a sum, which is rounded."""

Efficiency = Callable[[Link], float]

Floats = NDArray[np.float64]

Flags = NDArray[np.bool_]

AT_ONCE = 2**20
"""The number of comparisons that are made together, which bounds memory."""


_KNOWN: WeakKeyDictionary[Communicator, Flags] = WeakKeyDictionary()


def unfillable(communicator: Communicator) -> Flags:
    """True for the links of the cluster that no load can fill; found once for all schedules of *communicator*."""
    if communicator not in _KNOWN:
        flags = np.zeros(len(communicator.cluster.links), np.bool_)
        flags[non_binding(communicator.cluster, communicator.transport.link_efficiency)] = True
        _KNOWN[communicator] = flags
    return _KNOWN[communicator]


def non_binding(cluster: Cluster, efficiency: Efficiency) -> Indices:
    """The numbers of the links that no load can fill. *efficiency*: the usable fraction of a bandwidth."""
    if not cluster.hierarchical:
        return np.zeros(0, np.int64)
    topology, level = cluster.topology, _levels(cluster.topology)

    def carried(links: Indices) -> Floats:
        return cluster.links.some(links, lambda link: link.bandwidth * efficiency(link))

    into = np.bincount(topology.target[topology.entering_fabric], carried(topology.entering_fabric), len(level))
    out = np.bincount(topology.source[topology.leaving_fabric], carried(topology.leaving_fabric), len(level))
    v, u = topology.source[topology.cables], topology.target[topology.cables]
    reached = (level[v] != NONE) & (level[u] != NONE)
    cables, v, u = topology.cables[reached], v[reached], u[reached]
    others = np.where(level[u] > level[v], into[v], out[u])
    return np.asarray(cables[others - carried(_reverse(topology, cables)) <= carried(cables) * (1 + ROUNDING)])


def _levels(topology: Topology) -> Indices:
    """By vertex: the level of a switch between nodes, 0 for those joined to a node; `NONE` for other vertices."""
    inside = topology.vertices.node != NONE
    level = np.full(len(inside), NONE)
    source, target = topology.source[topology.leaving_fabric], topology.target[topology.leaving_fabric]
    reached, number = source[inside[target]], 0
    onward = ~inside[target]
    source, target = source[onward], target[onward]
    while len(reached):
        level[reached] = number
        reached, number = target[(level[source] == number) & (level[target] == NONE)], number + 1
    return level


def _reverse(topology: Topology, cables: Indices) -> Indices:
    """For each of *cables*, the link in the opposite direction."""
    source, target = np.array([topology.source[cables], topology.target[cables]], np.int64)
    count = len(topology.vertices)
    order = np.argsort(source * count + target)
    place = np.searchsorted((source * count + target)[order], target * count + source)
    return np.asarray(cables[order[place]])


def undominated(entries: Shares, count: int) -> Flags:
    """True for each of *count* rows that is not dominated by another row; of equal rows, for the first only."""
    kept = np.zeros(count, np.bool_)
    entries = _distinct(entries, count)
    kept[entries.rows] = True
    by_flow = entries.flows.argsort(kind="stable")
    rows_of = np.bincount(entries.flows)  # by flow: how many rows it is on
    rows, begins, widths = np.unique(entries.rows, return_index=True, return_counts=True)
    single = widths == 1
    kept[rows[single]] = _is_largest(entries, by_flow, rows_of)[begins[single]]
    # a row that dominates is on all flows of the row, so it is enough to search the flow that is on the fewest rows
    rarest = entries.flows[np.lexsort((rows_of[entries.flows], entries.rows))[begins]]
    for part in _parts(np.flatnonzero(~single), (rows_of[rarest] * widths)[~single]):
        others = ragged_arange((np.cumsum(rows_of) - rows_of)[rarest[part]], rows_of[rarest[part]])
        own, other = np.repeat(part, rows_of[rarest[part]]), entries.rows[by_flow[others]]
        dominated = _dominates(entries, begins[own], widths[own], other) & (rows[own] != other)
        kept[rows[own[dominated]]] = False
    return kept


def _distinct(entries: Shares, count: int) -> Shares:
    """The entries without those of repeated rows, sorted by row, then by flow. Rows are compared by hashes."""
    hashes = np.zeros(count, np.uint64)
    np.add.at(hashes, entries.rows, mixed(mixed(entries.flows.astype(np.uint64)) ^ entries.shares.view(np.uint64)))
    _, first = np.unique(hashes[entries.rows], return_index=True)
    kept = np.zeros(count, np.bool_)
    kept[entries.rows[first]] = True
    order = np.lexsort((entries.flows, entries.rows))
    order = order[kept[entries.rows[order]]]
    return Shares(entries.flows[order], entries.rows[order], entries.shares[order])


def _is_largest(entries: Shares, by_flow: Indices, rows_of: Indices) -> Flags:
    """By entry: True if no other row has the same or a larger share for its flow."""
    begins = (np.cumsum(rows_of) - rows_of)[rows_of > 0]
    if not len(begins):
        return np.zeros(0, np.bool_)
    most = np.zeros(len(rows_of))
    most[rows_of > 0] = np.maximum.reduceat(entries.shares[by_flow], begins)
    largest: Flags = entries.shares == most[entries.flows]
    unique: Flags = np.bincount(entries.flows, largest)[entries.flows] == 1
    return largest & unique


def _dominates(entries: Shares, begins: Indices, widths: Indices, others: Indices) -> Flags:
    """By pair of rows: True if row ``others[i]`` has at least the same share for every flow of the first row.

    The first row has the *widths* entries from *begins* on.
    """
    span = int(entries.flows.max()) + 1
    known = entries.rows * span + entries.flows
    own = ragged_arange(begins, widths)
    wanted = np.repeat(others, widths) * span + entries.flows[own]
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    enough = (known[at] == wanted) & (entries.shares[at] >= entries.shares[own])
    return np.logical_and.reduceat(enough, np.cumsum(widths) - widths) if len(widths) else np.zeros(0, np.bool_)


def _parts(items: Indices, costs: Indices) -> Iterator[Indices]:
    """*items* in parts with at most about `AT_ONCE` *costs* each, or of one item."""
    number = np.cumsum(costs) // AT_ONCE
    yield from np.split(items, np.flatnonzero(np.diff(number)) + 1) if len(items) else ()


class Shares(NamedTuple):
    """Flow ``flows[i]`` takes the share ``shares[i]`` of the capacity of row ``rows[i]`` for 1 byte/s of its rate."""

    flows: Indices
    rows: Indices
    shares: Floats


def ragged_arange(begins: Indices, lengths: Indices) -> Indices:
    """The integers from ``begins[i]`` to ``begins[i] + lengths[i] - 1``, for one i after the other.

    >>> ragged_arange(np.array([4, 0]), np.array([2, 3])).tolist()
    [4, 5, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    return np.arange(lengths.sum()) + np.repeat(begins - ends + lengths, lengths)
