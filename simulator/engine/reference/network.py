"""The network is a fluid: transfers under way share rows (links, or classes of equal links) max-min fairly."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from math import inf

import numpy as np
from simpy import Event

from simulator.engine.reference.clock import Clock, Work
from simulator.engine.reference.fairness import max_min
from simulator.engine.setup import Background, CapacityChange
from simulator.network.plan import Flow
from simulator.timeline import RateIntervals


class Transfer(Work):
    """*nbytes* of the flow number *number* of *network*; of a flow from outside infinitely many."""

    def __init__(self, network: Network, number: int, nbytes: float) -> None:
        super().__init__(network.clock, nbytes)
        self.network, self.number = network, number
        flow = network.flows[number]
        self.demand, self.bound = dict(zip(flow.rows, flow.weights, strict=True)), flow.bound

    def book(self, begin: float, end: float) -> None:
        """Note the rate in the interval."""
        self.network.intervals.append((self.number, begin, end, self.rate))
        if self.left == inf:
            self.network.flow_bytes[self.number] += self.rate * (end - begin)


class Network:
    """Rows of *capacity* bytes/s by number, and the transfers under way.

    *flows* are in order of first use, and *flow_bytes* what each transfer of them carried in all. *intervals* are
    (number of the flow, begin s, end s, rate bytes/s).
    """

    def __init__(self, clock: Clock, capacity: Sequence[float]) -> None:
        self.clock, self.capacity = clock, list(capacity)
        self.flows: list[Flow] = []
        self.flow_bytes: list[float] = []
        self.intervals: list[tuple[int, float, float, float]] = []
        self._numbers: dict[Flow, int] = {}
        self._present: dict[Transfer, None] = {}
        self._on: dict[int, dict[Transfer, None]] = {}
        self._changed: dict[Transfer, None] = {}

    def transfer(self, flow: Flow, nbytes: float) -> Event:
        """Move *nbytes* by each transfer of *flow*. The event returned happens at the end."""
        number = self._number(flow, nbytes)
        if not nbytes:
            return self.clock.timeout(0)
        transfer = self._enter(number, nbytes)
        transfer.done.callbacks.append(lambda _: self._leave(transfer))
        return transfer.done

    def uncontended(self, flow: Flow, nbytes: float, begin: float) -> None:
        """Account for *nbytes* by each transfer of *flow* that took from *begin* to now and shared with no one."""
        number, now = self._number(flow, nbytes), self.clock.now
        if now > begin:
            self.intervals.append((number, begin, now, nbytes / (now - begin)))

    def change(self, one: CapacityChange) -> Generator[Event, None, None]:
        """The process of a change of capacity; it starts with the simulation."""
        yield self.clock.timeout(one.time)
        self.capacity[one.row] = one.capacity
        self._solve_later(self._on.get(one.row, {}))

    def background(self, one: Background) -> Generator[Event, None, None]:
        """The process of a flow from outside the schedule; it starts with the simulation."""
        end = self.clock.timeout(one.end)
        yield self.clock.timeout(one.begin)
        transfer = self._enter(self._number(one.flow, 0.0), inf)
        yield end
        transfer.set_rate(0.0)
        self._leave(transfer)

    def rate_intervals(self) -> RateIntervals:
        """What flowed until now."""
        for transfer in self._present:
            transfer.advance()
        flow, begin, end, rate = np.array(self.intervals, np.float64).reshape(-1, 4).T
        return RateIntervals(flow.astype(np.int64), begin, end, rate)

    def _number(self, flow: Flow, nbytes: float) -> int:
        """The number of *flow*, which is to carry *nbytes* more."""
        if flow not in self._numbers:
            self._numbers[flow] = len(self.flows)
            self.flows.append(flow)
            self.flow_bytes.append(0.0)
        self.flow_bytes[self._numbers[flow]] += nbytes
        return self._numbers[flow]

    def _enter(self, number: int, nbytes: float) -> Transfer:
        transfer = Transfer(self, number, nbytes)
        self._present[transfer] = None
        for row in transfer.demand:
            self._on.setdefault(row, {})[transfer] = None
        self._solve_later([transfer])
        return transfer

    def _leave(self, transfer: Transfer) -> None:
        del self._present[transfer]
        for row in transfer.demand:
            del self._on[row][transfer]
            self._solve_later(self._on[row])

    def _solve_later(self, transfers: Iterable[Transfer]) -> None:
        """Solve the rates of *transfers*, and of all that share rows with them, at the end of this instant."""
        if not self._changed:
            self.clock.at_end_of_instant(self._solve)
        self._changed.update(dict.fromkeys(transfers))

    def _solve(self) -> None:
        changed, self._changed = self._changed, {}
        solved: dict[Transfer, None] = {}
        for transfer in changed:
            if transfer in self._present and transfer not in solved:
                together = self._sharing(transfer)
                solved.update(together)
                rates = max_min([one.demand for one in together], [one.bound for one in together], self.capacity)
                for one, rate in zip(together, rates, strict=True):
                    one.set_rate(rate)

    def _sharing(self, transfer: Transfer) -> dict[Transfer, None]:
        """The transfers that share rows with *transfer*, directly or through others; itself among them."""
        found = {transfer: None}
        frontier, seen = [transfer], set[int]()
        while frontier:
            rows = [row for row in frontier.pop().demand if row not in seen]
            seen.update(rows)
            fresh = dict.fromkeys(other for row in rows for other in self._on[row] if other not in found)
            found.update(fresh)
            frontier += fresh
        return found
