"""Rows of the folded network: one for each class of links, with the weight of each class of flows on it.

Rows that never bind are left out: those of links that no load can fill (`simulator.engine.folding.non_binding`), of
equal rows all but the first, and rows that another one dominates.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.engine.folding.dominance import Entries, undominated
from simulator.engine.folding.flows import Flows
from simulator.engine.folding.partition import FLOW, LINK, Partition
from simulator.network.plan import Flow

Floats = NDArray[np.float64]


class Rows:
    """The flows of *flows*, one for each class of *partition*, over rows whose links have those *bandwidths*."""

    def __init__(self, flows: Flows, partition: Partition, bandwidths: Floats) -> None:
        self._partition = partition
        self._bounds = flows.bounds[partition.firsts[FLOW]].tolist()
        first = partition.firsts[LINK]
        self._links = partition.links[first].tolist()
        self.capacity: list[float] = bandwidths[self._links].tolist()
        self._free = partition.free[first]
        self._made: dict[int, Flow] = {}
        self._fold()

    def _fold(self) -> None:
        """What all flows of a class lay on the first link of each class: entry by entry, class of flows after class."""
        placed, classes = self._partition.placed, self._partition.classes
        row = classes[LINK][placed.links]
        here = np.flatnonzero(self._partition.firsts[LINK][row] == placed.links)
        flow, row, terms = classes[FLOW][placed.flows[here]], row[here], placed.terms[here]
        key, first, entry = np.unique(flow * len(self.capacity) + row, return_index=True, return_inverse=True)
        order = np.lexsort((first, key // max(1, len(self.capacity))))
        self._flow, self._row = flow[first[order]], row[first[order]]
        # summed one after the other, as they stand
        self._weight = np.bincount(entry, placed.weights[terms], len(key))[order]
        self._crossings = np.bincount(entry, placed.crossings[terms], len(key))[order].astype(np.int64)
        self._starts = np.searchsorted(self._flow, np.arange(len(self._bounds) + 1))

    @cached_property
    def _kept(self) -> NDArray[np.bool_]:
        """By row whether it can bind."""
        free = self._free[self._row]
        share = self._weight / np.array(self.capacity, np.float64)[self._row]
        changing = np.zeros(len(self.capacity), np.bool_)
        changing[self._partition.classes[LINK][self._partition.apart]] = True
        steady = ~free & ~changing[self._row]
        kept = undominated(Entries(self._flow[steady], self._row[steady], share[steady]), len(self.capacity))
        return np.asarray(kept | changing)

    def flow(self, number: int) -> Flow:
        """What all flows of the class *number* are together."""
        if number not in self._made:
            own = slice(self._starts[number], self._starts[number + 1])
            row, weight, crossings = self._row[own], self._weight[own], self._crossings[own]
            kept = self._kept[row]
            rows, weights, bound = row[kept].tolist(), weight[kept].tolist(), self._bounds[number]
            alone = min((self.capacity[r] / w for r, w in zip(rows, weights, strict=True)), default=bound)
            links = tuple(self._links[r] for r in row.tolist())
            self._made[number] = Flow(
                links, tuple(crossings.tolist()), tuple(rows), tuple(weights), min(alone, bound), bound
            )
        return self._made[number]
