"""Rows of constraints can bind unless another one says the same or more: the others may be left out.

A row gives a share of its capacity for every byte/s of a flow. Where another row gives at least as much for every flow
of it, that one binds first: the row is dominated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.engine.folding.ragged import places
from simulator.hashing import Indices, mixed

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

AT_ONCE = 2**20
"""Comparisons that are made at once; a bound on memory."""


class Entries(NamedTuple):
    """The row ``rows[i]`` gives the share ``shares[i]`` of its capacity for 1 byte/s of the flow ``flows[i]``."""

    flows: Indices
    rows: Indices
    shares: Floats


def undominated(entries: Entries, count: int) -> Flags:
    """By row, of *count*: whether it can bind; of rows that ask the same only the first, none that is dominated."""
    kept = np.zeros(count, np.bool_)
    entries = _distinct(entries, count)
    kept[entries.rows] = True
    by_flow = entries.flows.argsort(kind="stable")
    crowds = np.bincount(entries.flows)
    rows, begins, widths = np.unique(entries.rows, return_index=True, return_counts=True)
    lone = widths == 1
    kept[rows[lone]] = _stands_out(entries, by_flow, crowds)[begins[lone]]
    # another row that dominates is on all flows of a row, so on the one with the fewest rows
    rarest = entries.flows[np.lexsort((crowds[entries.flows], entries.rows))[begins]]
    for part in _parts(np.flatnonzero(~lone), (crowds[rarest] * widths)[~lone]):
        others = places((np.cumsum(crowds) - crowds)[rarest[part]], crowds[rarest[part]])
        pairs = np.repeat(part, crowds[rarest[part]]), entries.rows[by_flow[others]]
        above = _is_above(entries, begins[pairs[0]], widths[pairs[0]], pairs[1]) & (rows[pairs[0]] != pairs[1])
        kept[rows[pairs[0][above]]] = False
    return kept


def _distinct(entries: Entries, count: int) -> Entries:
    """Those of rows that ask the same but once, by row and flow: of the row that comes first."""
    told = np.zeros(count, np.uint64)
    asked = mixed(mixed(entries.flows.astype(np.uint64)) ^ entries.shares.view(np.uint64))
    np.add.at(told, entries.rows, asked)
    _, first = np.unique(told[entries.rows], return_index=True)
    kept = np.zeros(count, np.bool_)
    kept[entries.rows[first]] = True
    order = np.lexsort((entries.flows, entries.rows))
    order = order[kept[entries.rows[order]]]
    return Entries(entries.flows[order], entries.rows[order], entries.shares[order])


def _stands_out(entries: Entries, by_flow: Indices, crowds: Indices) -> Flags:
    """By entry whether no other row gives as much of itself for its flow."""
    begins = (np.cumsum(crowds) - crowds)[crowds > 0]
    if not len(begins):
        return np.zeros(0, np.bool_)
    most = np.zeros(len(crowds))
    most[crowds > 0] = np.maximum.reduceat(entries.shares[by_flow], begins)
    highest: Flags = entries.shares == most[entries.flows]
    first_of_all: Flags = np.bincount(entries.flows, highest)[entries.flows] == 1
    return highest & first_of_all


def _is_above(entries: Entries, begins: Indices, widths: Indices, others: Indices) -> Flags:
    """Whether the row *others*, one by one, gives at least as much as the entries that begin there for every flow."""
    span = int(entries.flows.max()) + 1
    known = entries.rows * span + entries.flows
    mine = places(begins, widths)
    wanted = np.repeat(others, widths) * span + entries.flows[mine]
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    enough = (known[at] == wanted) & (entries.shares[at] >= entries.shares[mine])
    return np.logical_and.reduceat(enough, np.cumsum(widths) - widths) if len(widths) else np.zeros(0, np.bool_)


def _parts(items: Indices, costs: Indices) -> Iterator[Indices]:
    """*items* in parts whose *costs* are bounded together, but for single ones."""
    number = np.cumsum(costs) // AT_ONCE
    yield from np.split(items, np.flatnonzero(np.diff(number)) + 1) if len(items) else ()
