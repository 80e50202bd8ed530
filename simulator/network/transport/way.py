"""A way is how one algorithm and protocol would carry a collective: its steps on the links, with their latencies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from simulator.network.plan import Flow
from simulator.network.step import Step
from simulator.network.transport.members import Members
from simulator.network.transport.transport import Transport


@dataclass(frozen=True, slots=True)
class Laid:
    """A *step* on the links: its *latency* in s, then its *flows*, which take *busy* s with the links to themselves."""

    step: Step
    latency: float
    flows: tuple[Flow, ...]
    busy: float


@dataclass(frozen=True, slots=True)
class Way:
    """*laid* steps by *protocol* of *algorithm*; *base* seconds come once, and all latency *slowed* times."""

    algorithm: str
    protocol: str
    laid: tuple[Laid, ...]
    base: float
    slowed: float

    @property
    def seconds(self) -> float:
        """With nothing else on the links."""
        latency = self.base + sum(one.latency for one in self.laid)
        return self.slowed * latency + sum(one.busy for one in self.laid)

    @property
    def sent_bytes(self) -> float:
        """By all transfers together."""
        return sum(one.step.nbytes * one.step.repeat * len(one.step.transfers) for one in self.laid)


def ways(
    transport: Transport, members: Members, kind: str, choices: Mapping[str, Sequence[Step]], nbytes: float
) -> Iterator[Way]:
    """Each of the *choices*, steps by algorithm, by each protocol that *transport* may use, as it says that they go."""
    for algorithm, steps in choices.items():
        for protocol in transport.offered(algorithm, members.setting):
            yield way(transport, members, kind, algorithm, protocol, steps, nbytes)


def way(
    transport: Transport,
    members: Members,
    kind: str,
    algorithm: str,
    protocol: str,
    steps: Sequence[Step],
    nbytes: float,
) -> Way:
    """The *steps* of a collective of *nbytes* by *protocol* of *algorithm*, as *transport* says that they go."""
    setting = members.setting
    correction = transport.correction(algorithm, protocol, nbytes)
    share = transport.share(algorithm, protocol, setting) * correction
    pace = transport.pace(algorithm, sum(step.repeat for step in steps if not (step.pipelined or step.continues)))
    ceiling = transport.ceiling(algorithm, protocol, setting) * correction * pace

    def laid(step: Step) -> Laid:
        load, flows = members.load(step), members.flows(transport, step, share, ceiling)
        seconds = {hop: transport.message(*hop, algorithm, protocol, setting) for hop in load.distinct_hops}
        alphas, round_busy = [seconds[hop] for hop in load.hops], members.busy(flows) * step.nbytes
        if transport.hides and step.coupled and not step.pipelined:
            latency = step.exposed(alphas, members.paces(step, flows[0]))
        else:
            latency = step.latency(alphas)
        if step.pipelined and transport.fills:
            chunk = transport.chunk(algorithm, protocol, step.nbytes, step.repeat, step.rounds)
            latency += step.fill([chunk * beta for beta in members.paces(step, flows[0])])
        return Laid(step, latency, flows, round_busy * step.repeat)

    slowed = transport.delayed(kind, algorithm, protocol, nbytes, setting)
    return Way(algorithm, protocol, tuple(map(laid, steps)), transport.base(algorithm, protocol), slowed)
