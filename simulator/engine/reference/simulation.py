"""One simulation: make the processes of all representatives, process events, and collect the outcome."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import inf

import numpy as np

from simulator.engine.outcome import Outcome
from simulator.engine.reference.clock import Clock
from simulator.engine.reference.network import Network
from simulator.engine.reference.processor import Processor
from simulator.engine.reference.rank import Rank, Resources
from simulator.engine.reference.rendezvous import Rendezvous
from simulator.engine.reference.server import Server
from simulator.engine.setup import Setup
from simulator.schedule import Schedule

EVENTS_BETWEEN_REPORTS = 10_000
"""SimPy processes some hundred thousand events a second, so progress is reported many times a second."""


class TooManyRatesError(Exception):
    """The network solved more rates than a simulation in SimPy should; the compiled engine is faster."""


def run(setup: Setup, watch: Callable[[float], None] | None = None, most_rates: float = inf) -> Outcome:
    """Simulate *setup*. *watch* is called from time to time with the fraction of ops that have ended, 0 to 1.

    Raises `TooManyRatesError` if the network solves more than *most_rates*.
    """
    clock = Clock()
    network = Network(clock, setup.classes.capacity)
    gpus = {rank: Processor(clock) for rank in np.unique(setup.classes.representative).tolist()}
    hosts: dict[Hashable, Processor] = {}
    servers = {name: Server(clock) for name in _server_names(setup.schedule)}
    rendezvous = Rendezvous(clock, setup, network, gpus)
    ranks = []
    for number, gpu in gpus.items():
        name = setup.pricing.host(number)
        host = None if name is None else hosts.setdefault(setup.classes.host(name), Processor(clock))
        ranks.append(Rank(clock, number, setup, Resources(rendezvous, gpu, host, servers)))
    for change in setup.capacity_changes:
        clock.process(network.change_capacity(change))
    for traffic in setup.background:
        clock.process(network.background(traffic))
    _run(clock, ranks, watch, network, most_rates)
    return Outcome(
        columns={rank.number: rank.columns() for rank in ranks},
        intervals=network.rate_intervals(),
        flows=tuple(network.flows),
        flow_bytes=np.array(network.flow_bytes, np.float64),
        communications=rendezvous.executed(),
        waiting=tuple(one for rank in ranks for one in rank.waiting()),
    )


def _run(
    clock: Clock, ranks: list[Rank], watch: Callable[[float], None] | None, network: Network, most_rates: float
) -> None:
    """Process events until all ranks have finished, or until there is no event left (a deadlock)."""
    total, unfinished = sum(rank.unended for rank in ranks), list(ranks)
    events = 0
    while unfinished and clock.peek() < inf:
        clock.step()
        # the last rank of the list is looked at alone, so that an event costs the same for any number of ranks
        while unfinished and not unfinished[-1].unended:
            unfinished.pop()
        events += 1
        if network.solved > most_rates:
            raise TooManyRatesError
        if watch and not events % EVENTS_BETWEEN_REPORTS:
            watch(1.0 - sum(rank.unended for rank in unfinished) / total)


def _server_names(schedule: Schedule) -> set[str]:
    ops = (op for program in schedule.programs for op in program.distinct())
    return {op.at_server for op in ops if op.at_server is not None}
