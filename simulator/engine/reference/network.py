"""The network is a fluid: active transfers share its rows (a row is a link or a class of equal links) by weighted
max-min fair rates. No rate can be raised without lowering another rate that is no greater.

A flow i has rate x_i and takes w_li x_i of the capacity of link l. The max-min fair vector is the unique one in which
every flow has a bottleneck: a saturated link on which no other flow is faster (Bertsekas and Gallager, "Data Networks",
2nd edition, 6.5.2). Progressive filling finds it. All rates are raised together until a link saturates. The flows of
this link keep their rate, and the others share what is left. The bound of a flow is treated as a link of its own.

A link is finished when the rates of all its flows are fixed. Its remaining capacity is not tested: it is a difference,
and rounding may leave a residue.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from math import inf

import numpy as np
from simpy import Event

from clustersim.simulator.analysis.timeline import RateIntervals
from clustersim.simulator.engine.reference.resources import Clock, Work
from clustersim.simulator.engine.setup import Background, CapacityChange
from clustersim.simulator.network.plan import Flow


def max_min(
    demands: Sequence[Mapping[int, float]], bounds: Sequence[float], capacity: Mapping[int, float] | Sequence[float]
) -> list[float]:
    """The fair rate of each flow, in units of *capacity* per weight.

    *demands* has for each flow its weight on each link, by the number of the link (from 0). *bounds* has the rate that
    the flow cannot exceed. *capacity* is by number of the link. A flow without link and bound has an infinite rate.

    >>> max_min([{0: 1.0}, {0: 1.0, 1: 1.0}], [float("inf")] * 2, [10.0, 2.0])
    [8.0, 2.0]
    """
    unfixed: dict[int, dict[int, float]] = {}  # by link: the weights of its flows that have no rate yet
    left: dict[int, float] = {}
    links = [dict(demand) for demand in demands]
    for flow, bound in enumerate(bounds):
        if bound < inf:
            links[flow][-1 - flow] = 1.0  # the number of the link that stands for the bound
        for link, weight in links[flow].items():
            unfixed.setdefault(link, {})[flow] = weight
            left.setdefault(link, capacity[link] if link >= 0 else bound)
    rates = [inf] * len(links)
    while unfixed:
        rate, bottleneck = min((max(0.0, left[link]) / sum(on.values()), link) for link, on in unfixed.items())
        for flow in list(unfixed[bottleneck]):
            rates[flow] = rate
            for link, weight in links[flow].items():
                left[link] -= weight * rate
                del unfixed[link][flow]
                if not unfixed[link]:
                    del unfixed[link]
    return rates


class Transfer(Work):
    """*nbytes* that move over flow *number* of *network*; infinite for a flow from outside the schedule."""

    def __init__(self, network: FluidNetwork, number: int, nbytes: float) -> None:
        super().__init__(network.clock, nbytes)
        self.network, self.number = network, number
        flow = network.flows[number]
        self.demand, self.bound = dict(zip(flow.rows.tolist(), flow.weights.tolist(), strict=True)), flow.bound

    def record(self, begin: float, end: float) -> None:
        """Record the rate from *begin* to *end* (s) with the network."""
        self.network.intervals.append((self.number, begin, end, self.rate))
        if self.left == inf:
            self.network.flow_bytes[self.number] += self.rate * (end - begin)


class FluidNetwork:
    """Rows of *capacity* bytes/s, by number, and the active transfers.

    *flows* are numbered in order of first use. *flow_bytes*: by flow, the bytes that each of its transfers carried in
    all. *intervals*: (number of the flow, begin s, end s, rate bytes/s).
    """

    def __init__(self, clock: Clock, capacity: Sequence[float]) -> None:
        self.clock, self.capacity = clock, list(capacity)
        self.flows: list[Flow] = []
        self.flow_bytes: list[float] = []
        self.intervals: list[tuple[int, float, float, float]] = []
        self._numbers: dict[Flow, int] = {}
        self._active: dict[Transfer, None] = {}
        self._on_row: dict[int, dict[Transfer, None]] = {}
        self._changed: dict[Transfer, None] = {}
        self.solved = 0
        """Rates that were solved so far: the work of a network grows with these, not with the number of ops."""

    def transfer(self, flow: Flow, nbytes: float) -> Event:
        """Begin to move *nbytes* by each transfer of *flow*. Return the event of its end."""
        number = self._number(flow, nbytes)
        if not nbytes:
            return self.clock.timeout(0)
        transfer = self._add(number, nbytes)
        transfer.done.callbacks.append(lambda _: self._remove(transfer))
        return transfer.done

    def record_uncontended(self, flow: Flow, nbytes: float, begin: float) -> None:
        """Record that each transfer of *flow* moved *nbytes* from *begin* (s) until now and shared no row."""
        number, now = self._number(flow, nbytes), self.clock.now
        if now > begin:
            self.intervals.append((number, begin, now, nbytes / (now - begin)))

    def change_capacity(self, change: CapacityChange) -> Generator[Event, None, None]:
        """The process of a *change* of capacity; start it at time 0."""
        yield self.clock.timeout(change.time)
        self.capacity[change.row] = change.capacity
        self._solve_later(self._on_row.get(change.row, {}))

    def background(self, traffic: Background) -> Generator[Event, None, None]:
        """The process of *traffic* from outside the schedule; start it at time 0."""
        end = self.clock.timeout(traffic.end)
        yield self.clock.timeout(traffic.begin)
        transfer = self._add(self._number(traffic.flow, 0.0), inf)
        yield end
        transfer.set_rate(0.0)
        self._remove(transfer)

    def rate_intervals(self) -> RateIntervals:
        """The intervals of constant rate until now."""
        for transfer in self._active:
            transfer.advance()
        flow, begin, end, rate = np.array(self.intervals, np.float64).reshape(-1, 4).T
        return RateIntervals(flow.astype(np.int64), begin, end, rate)

    def _number(self, flow: Flow, nbytes: float) -> int:
        """The number of *flow*. Add *nbytes* to what its transfers carry in all."""
        if flow not in self._numbers:
            self._numbers[flow] = len(self.flows)
            self.flows.append(flow)
            self.flow_bytes.append(0.0)
        self.flow_bytes[self._numbers[flow]] += nbytes
        return self._numbers[flow]

    def _add(self, number: int, nbytes: float) -> Transfer:
        transfer = Transfer(self, number, nbytes)
        self._active[transfer] = None
        for row in transfer.demand:
            self._on_row.setdefault(row, {})[transfer] = None
        self._solve_later([transfer])
        return transfer

    def _remove(self, transfer: Transfer) -> None:
        del self._active[transfer]
        for row in transfer.demand:
            del self._on_row[row][transfer]
            self._solve_later(self._on_row[row])

    def _solve_later(self, transfers: Iterable[Transfer]) -> None:
        """Solve the rates of *transfers*, and of all transfers that share rows with them, when this instant ends."""
        if not self._changed:
            self.clock.at_end_of_instant(self._solve)
        self._changed.update(dict.fromkeys(transfers))

    def _solve(self) -> None:
        changed, self._changed = self._changed, {}
        solved: dict[Transfer, None] = {}
        for transfer in changed:
            if transfer in self._active and transfer not in solved:
                component = self._component(transfer)
                solved.update(component)
                self.solved += len(component)
                rates = max_min([one.demand for one in component], [one.bound for one in component], self.capacity)
                for one, rate in zip(component, rates, strict=True):
                    one.set_rate(rate)

    def _component(self, transfer: Transfer) -> dict[Transfer, None]:
        """*transfer* and the transfers that share rows with it, directly or through others."""
        found = {transfer: None}
        frontier, seen = [transfer], set[int]()
        while frontier:
            rows = [row for row in frontier.pop().demand if row not in seen]
            seen.update(rows)
            fresh = dict.fromkeys(other for row in rows for other in self._on_row[row] if other not in found)
            found.update(fresh)
            frontier += fresh
        return found
