"""The folded network: one row for each class of links, and one flow for each class of flows.

Rows that never bind are left out of flows: links that no load can fill (`simulator.engine.folding.non_binding`), and
rows that are equal to an earlier row or dominated by another row (`simulator.engine.folding.dominance`).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.cluster.links import Links
from simulator.engine.folding.dominance import Shares, undominated
from simulator.engine.folding.flows import Flows
from simulator.engine.folding.partition import FLOW, LINK, Partition
from simulator.network.plan import Flow


class FoldedNetwork:
    """The network of the classes of *partition*. *bandwidths*: by number of a link of the cluster, bytes/s.

    *capacity*: by row, bytes/s.
    """

    def __init__(self, flows: Flows, partition: Partition, links: Links) -> None:
        self._partition = partition
        self._bounds = flows.bounds[partition.firsts[FLOW]].tolist()
        first = partition.firsts[LINK]
        self._links = partition.links[first].tolist()
        self.capacity: list[float] = links.some(partition.links[first], lambda link: link.bandwidth).tolist()
        self._non_binding = partition.non_binding[first]
        self._made: dict[int, Flow] = {}
        self._fold()

    def _fold(self) -> None:
        """Sum the weights and crossings of all flows of a class on the first link of each class.

        The sums are stored by entry (class of flows, row), one class of flows after the other.
        """
        incidence, classes = self._partition.first_entries, self._partition.classes
        flow, row = classes[FLOW][incidence.flows], classes[LINK][incidence.links]
        coefficients = incidence.coefficients
        key, first, entry = np.unique(flow * len(self.capacity) + row, return_index=True, return_inverse=True)
        order = np.lexsort((first, key // max(1, len(self.capacity))))
        self._flow, self._row = flow[first[order]], row[first[order]]
        # bincount adds in the order of the entries
        self._weight = np.bincount(entry, incidence.weights[coefficients], len(key))[order]
        self._crossings = np.bincount(entry, incidence.crossings[coefficients], len(key))[order]
        self._starts = np.searchsorted(self._flow, np.arange(len(self._bounds) + 1))

    @cached_property
    def _kept(self) -> NDArray[np.bool_]:
        """By row: True if it can bind."""
        non_binding = self._non_binding[self._row]
        share = self._weight / np.array(self.capacity, np.float64)[self._row]
        changing = np.zeros(len(self.capacity), np.bool_)
        changing[self._partition.classes[LINK][self._partition.distinct]] = True
        constant = ~non_binding & ~changing[self._row]
        kept = undominated(Shares(self._flow[constant], self._row[constant], share[constant]), len(self.capacity))
        return np.asarray(kept | changing)

    def flow(self, number: int) -> Flow:
        """The aggregate of all flows of the class *number*."""
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
