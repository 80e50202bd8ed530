"""Dominated rows: constraints that follow from another constraint.

A row is a constraint: the sum of weight x rate over its flows is at most its capacity. Divided by the capacity, each
flow takes a *share* of the row for 1 byte/s of rate. A row is dominated if another row has at least the same share for
every flow of it: then it is never full before the other row. Of equal rows the first is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.engine.folding.ragged import ragged_arange
from simulator.hashing import Indices, mixed

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

AT_ONCE = 2**20
"""The number of comparisons that are made together, which bounds memory."""


class Shares(NamedTuple):
    """Flow ``flows[i]`` takes the share ``shares[i]`` of the capacity of row ``rows[i]`` for 1 byte/s of its rate."""

    flows: Indices
    rows: Indices
    shares: Floats


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
