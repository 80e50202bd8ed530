"""The network is one fluid: transfers under way share links max-min fairly, and end when their bytes have flowed.

A transfer may be announced, to begin in a while: if it has its rows to itself, so that its end is known, nothing need
happen when it begins; whoever comes to these rows before makes it come by itself.

Rates are solved again only among transfers that share links, directly or through others, with one that begins or ends;
a transfer alone on its links goes at its closed-form rate. A transfer ends at the time predicted from its rate, never
by comparing what is left with a threshold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from simpy import Environment, Event
from simpy.events import EventPriority

from simulator.engine.fairness import max_min
from simulator.engine.firing import at, fire
from simulator.plan import Flow

MOST_SOLVED = 10_000
"""Sets of flows whose rates are remembered: with equal steps they come again and again, with jitter never."""

_SETTLING = EventPriority(2)
"""SimPy's priority for what must follow everything else (URGENT 0, NORMAL 1) at the same time."""


@dataclass(slots=True, eq=False)
class _Transfer:
    """*left* bytes of *flow* at *rate* from the time *since* on, which for one that is announced is still to come.

    *meets* are the rows that it shares: of the thousands that a ring around thousands of GPUs lies on, a few.
    """

    flow: Flow
    left: float
    done: Event
    since: float
    rate: float = 0.0
    version: int = 0
    meets: dict[int, None] = field(default_factory=dict)


@dataclass(slots=True)
class Stretch:
    """*flow* moved each of its transfers at *rate* bytes/s from *begin* to *end*."""

    begin: float
    end: float
    flow: Flow
    rate: float


@dataclass
class Network:
    """Rows of *capacity* bytes/s, by number - links, or classes of them - and the transfers under way."""

    env: Environment
    capacity: Sequence[float]
    stretches: list[Stretch] = field(default_factory=list)
    bytes_of: dict[Flow, float] = field(default_factory=dict)
    _on: dict[int, dict[_Transfer, None]] = field(default_factory=dict)
    _unsettled: dict[_Transfer, None] = field(default_factory=dict)
    _settling: bool = False
    _solved: dict[tuple[int, ...], dict[Flow, float]] = field(default_factory=dict)
    _numbers: dict[Flow, int] = field(default_factory=dict)
    _weights: dict[Flow, Mapping[int, float]] = field(default_factory=dict)

    def transfer(self, flow: Flow, nbytes: float, done: Event | None = None, latency: float = 0.0) -> Event:
        """In *latency* s, begin to move *nbytes* by each transfer of *flow*.

        *done*, or the event returned, happens at the end.
        """
        self.carried(flow, nbytes)
        transfer = _Transfer(flow, nbytes, done or self.env.event(), self.env.now + latency)
        self._enter(transfer)
        return transfer.done

    def _enter(self, transfer: _Transfer) -> None:
        """*transfer* comes to its rows; if it begins later and others are there, it comes again then."""
        there = [self._on.setdefault(row, {}) for row in transfer.flow.rows]
        if not any(there):
            for present in there:
                present[transfer] = None
            self._set_rate(transfer, transfer.flow.alone)
            return
        now = self.env.now
        for announced in {other: None for present in there for other in present if other.since > now}:
            self._leave(announced)
            self._come_again(announced)
        if transfer.since > now:
            self._come_again(transfer)
            return
        for row, present in zip(transfer.flow.rows, there, strict=True):
            if present:
                transfer.meets[row] = None
                for other in present if len(present) == 1 else ():
                    other.meets[row] = None
            present[transfer] = None
        self._settle_later([transfer])

    def _come_again(self, transfer: _Transfer) -> None:
        transfer.rate = 0.0
        at(self.env, transfer.since, lambda _event: self._enter(transfer))

    def _leave(self, transfer: _Transfer) -> None:
        """*transfer* is no longer on its rows, and what was told of its end is void."""
        transfer.version += 1
        for row in transfer.flow.rows:
            present = self._on[row]
            del present[transfer]
            for other in present if len(present) == 1 else ():
                del other.meets[row]
        transfer.meets.clear()

    def carried(self, flow: Flow, nbytes: float) -> None:
        """Account for *nbytes* by each transfer of *flow*."""
        self.bytes_of[flow] = self.bytes_of.get(flow, 0.0) + nbytes

    def uncontended(self, flow: Flow, nbytes: float, begin: float) -> None:
        """Account for a transfer of the alpha-beta model, which took from *begin* to now and shared with no one."""
        self.carried(flow, nbytes)
        if self.env.now > begin:
            self.stretches.append(Stretch(begin, self.env.now, flow, nbytes / (self.env.now - begin)))

    def link_bytes(self) -> dict[int, float]:
        """What each link has carried, by its number."""
        total: dict[int, float] = {}
        for flow, nbytes in self.bytes_of.items():
            for link, crossings in zip(flow.links, flow.crossings, strict=True):
                total[link] = total.get(link, 0.0) + crossings * nbytes
        return total

    def _settle_later(self, transfers: Iterable[_Transfer]) -> None:
        self._unsettled.update(dict.fromkeys(transfers))
        if not self._settling:
            self._settling = True
            event = Event(self.env)
            event._ok, event._value = True, None
            event.callbacks = [self._settle]
            self.env.schedule(event, priority=_SETTLING)

    def _settle(self, _event: Event) -> None:
        """Solve the rates of all that share links with what has begun or ended at this time."""
        self._settling = False
        seen: dict[_Transfer, None] = {}
        for transfer in self._unsettled:
            if transfer not in seen and not transfer.done.triggered:
                together = self._sharing(transfer)
                seen.update(together)
                rates = self._rates(together)
                for one in together:
                    self._set_rate(one, rates[one.flow])
        self._unsettled.clear()

    def _sharing(self, transfer: _Transfer) -> dict[_Transfer, None]:
        """The transfers that share links with *transfer*, directly or through others; itself among them."""
        found, rows = {transfer: None}, set(transfer.meets)
        frontier = list(transfer.meets)
        while frontier:
            for other in self._on[frontier.pop()]:
                if other not in found:
                    found[other] = None
                    fresh = [row for row in other.meets if row not in rows]
                    rows.update(fresh)
                    frontier += fresh
        return found

    def _rates(self, transfers: dict[_Transfer, None]) -> dict[Flow, float]:
        if len(transfers) == 1:
            return {one.flow: one.flow.alone for one in transfers}
        flows = [one.flow for one in transfers]
        key = tuple(sorted(self._numbers.setdefault(flow, len(self._numbers)) for flow in flows))
        if key not in self._solved:
            count = Counter(flows)
            # rows that nothing else is on allow a flow its rate alone
            meets = {one.flow: one.meets for one in transfers}
            if len(self._solved) == MOST_SOLVED:
                self._solved.clear()
            # equal flows get equal rates, so they are solved as one of their summed weights
            demands = {f: {row: self._weight(f)[row] * count[f] for row in meets[f]} for f in count}
            self._solved[key] = max_min(demands, self.capacity, {f: f.alone for f in count})
        return self._solved[key]

    def _weight(self, flow: Flow) -> Mapping[int, float]:
        """By row the weight of *flow*."""
        if flow not in self._weights:
            self._weights[flow] = dict(zip(flow.rows, flow.weights, strict=True))
        return self._weights[flow]

    def _set_rate(self, transfer: _Transfer, rate: float) -> None:
        if rate == transfer.rate:
            return
        self._flowed(transfer)
        transfer.rate, transfer.since = rate, max(self.env.now, transfer.since)
        transfer.version += 1
        version = transfer.version
        remaining = 0.0 if rate == inf else transfer.left / rate
        at(self.env, transfer.since + remaining, lambda _event: self._end(transfer, version))

    def _flowed(self, transfer: _Transfer) -> None:
        """Book what has flowed since the last change of rate."""
        now = self.env.now
        if now > transfer.since and transfer.rate:
            self.stretches.append(Stretch(transfer.since, now, transfer.flow, transfer.rate))
            transfer.left = max(0.0, transfer.left - transfer.rate * (now - transfer.since))

    def _end(self, transfer: _Transfer, version: int) -> None:
        if version != transfer.version:
            return
        self._flowed(transfer)
        touched = {other: None for row in transfer.meets for other in self._on[row] if other is not transfer}
        self._leave(transfer)
        if touched:
            self._settle_later(touched)
        fire(transfer.done)
