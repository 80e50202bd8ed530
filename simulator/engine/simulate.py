"""Simulation: fold, start the ranks, run, collect."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from simpy import Environment

from simulator.accelerator import Software
from simulator.cluster import Cluster
from simulator.engine.accounts import Accounts
from simulator.engine.cast import Communication, Everyone, Tie
from simulator.engine.deadlock import deadlock
from simulator.engine.ensemble import Ensemble, Seat
from simulator.engine.folding import Folding
from simulator.engine.issue import Issue, issue
from simulator.engine.network import Network
from simulator.engine.pace import Pace, Price
from simulator.engine.pricing import Pricing
from simulator.engine.processor import Processor
from simulator.engine.rank import Rank
from simulator.engine.rendezvous import Rendezvous
from simulator.engine.score import Score
from simulator.engine.variation import Variation
from simulator.errors import ClusterError
from simulator.garbage import collecting_no_garbage
from simulator.matching import Asked
from simulator.plan import Flow
from simulator.schedule import Schedule
from simulator.timeline import FlowLinks, LinkUse, RateIntervals, Timeline
from simulator.transport.communicator import Communicator
from simulator.transport.ideal import ideal
from simulator.transport.transport import Transport


def simulate(
    schedule: Schedule,
    cluster: Cluster,
    *,
    transport: Transport | None = None,
    fidelity: str = "flow",
    algorithms: Mapping[str, str] | None = None,
    software: Software | None = None,
    placement: Sequence[str] | None = None,
    variation: Variation | None = None,
    fold: bool = True,
) -> Timeline:
    """What happens when *schedule* runs on *cluster*.

    *transport* is the communication library (none: `ideal`), *fidelity* ``alpha_beta``, ``flow`` or ``chunk``,
    *algorithms* fixes the algorithm by collective or by ``axis.collective``, *software* issues the kernels (none:
    launching costs nothing), *placement* names the device of each rank (none: `packed`), *variation* brings stragglers
    and jitter. With *fold*, equal ranks are simulated once, exactly (`simulator.engine.folding`).
    Raises `DeadlockError` with the circle of who waits for whom.
    """
    devices = tuple(placement or packed(schedule, cluster))
    communicator = Communicator(cluster, devices, transport or ideal(), fidelity, algorithms or {})
    simulation = Simulation(schedule, cluster, devices, communicator, software, variation or Variation(), fold=fold)
    return simulation.run()


def packed(schedule: Schedule, cluster: Cluster) -> tuple[str, ...]:
    """The device of each rank: GPUs in order, host ranks spread evenly over the hosts.

    Raises `ClusterError` where there are fewer GPUs than ranks that need one.
    """
    hosts = [rank for rank in range(schedule.mesh.world_size) if schedule.program(rank).on == "host"]
    gpus = schedule.mesh.world_size - len(hosts)
    if gpus > len(cluster.gpus):
        raise ClusterError(f"the schedule has {gpus} GPU ranks, but {cluster.name} has {len(cluster.gpus)} GPUs")
    if hosts and not cluster.hosts:
        raise ClusterError(f"the schedule has {len(hosts)} host ranks, but {cluster.name} has no host")
    gpu, host = iter(cluster.gpus), iter(range(len(hosts)))
    return tuple(
        cluster.hosts[next(host) * len(cluster.hosts) // len(hosts)]
        if schedule.program(rank).on == "host"
        else next(gpu)
        for rank in range(schedule.mesh.world_size)
    )


@dataclass
class Simulation:
    """One run of *schedule*; `fraction` tells from outside how far it is."""

    schedule: Schedule
    cluster: Cluster
    devices: tuple[str, ...]
    communicator: Communicator
    software: Software | None
    variation: Variation
    ranks: dict[int, Rank] = field(default_factory=dict)
    fold: bool = True
    _ensembles: dict[Communication, Ensemble] = field(default_factory=dict)
    _scores: dict[Issue, Score] = field(default_factory=dict)
    _issues: dict[tuple[int, frozenset[str], str | None], Issue] = field(default_factory=dict)
    _hosts: dict[Hashable, Processor] = field(default_factory=dict)
    _gpus: dict[int, Processor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.env = Environment()
        self.pricing = Pricing(self.schedule, self.cluster, self.devices, self.software, self.variation)
        self.cast = self._cast()
        self.network = Network(self.env, self.cast.capacity)
        self.accounts = Accounts(self.schedule, self.cast, self.network)
        self.rendezvous = Rendezvous(self.env, self.network, self.cast, self._gpus)

    def run(self) -> Timeline:
        """Start the ranks, run until nothing more happens, collect."""
        stands_for = self.cast.stands_for
        with collecting_no_garbage():
            for number in dict.fromkeys(stands_for):
                self.ranks[number] = self._rank(number)
            for rank in self.ranks.values():
                rank.start()
            self.env.run()
        error = deadlock(self.schedule, stands_for, [one for rank in self.ranks.values() for one in rank.waiting()])
        if error is not None:
            raise error
        for one in self.rendezvous.encounters:
            self.accounts.add(one.name, one.op, one.plan, one.count)
        return Timeline(
            schedule=self.schedule,
            cluster=self.cluster,
            columns={number: rank.columns() for number, rank in self.ranks.items()},
            representative=np.array(stands_for, np.int64),
            devices=self.devices,
            axis_bytes=self.accounts.axis_bytes,
            link_bytes=self.network.link_bytes(),
            link_use=self._link_use(),
            algorithms=self.accounts.algorithms,
            multiplicity=self.cast.alike,
            engine="simpy",
        )

    def _link_use(self) -> LinkUse:
        stretches = [*self.network.stretches, *self.accounts.stretches(lambda rank: self.ranks[rank].columns())]
        numbers: dict[Flow, int] = {}
        flow = np.array([numbers.setdefault(one.flow, len(numbers)) for one in stretches], np.int64)
        begin, end, rate = (
            np.array([getattr(one, name) for one in stretches], np.float64) for name in ("begin", "end", "rate")
        )
        starts = np.cumsum([0, *(len(one.links) for one in numbers)])
        links, crossings = (
            np.array([x for one in numbers for x in getattr(one, name)], np.int64) for name in ("links", "crossings")
        )
        return LinkUse(RateIntervals(flow, begin, end, rate), FlowLinks(starts, links, crossings))

    def _cast(self) -> Everyone | Folding:
        if not self.fold or self.schedule.mesh.world_size == 1:
            return Everyone(self.schedule, self.communicator)
        hosts = {rank: self.pricing.host(rank) for rank in range(self.schedule.mesh.world_size)}
        computing = {rank: host for rank, host in hosts.items() if host is not None}
        apart = self.variation.jitter > 0
        return Folding(self.schedule, self.communicator, self.variation, computing, apart=apart)

    @property
    def fraction(self) -> float:
        """How much is done, 0 to 1, by ops."""
        return sum(rank.written for rank in self.ranks.values()) / max(1, self._total)

    @cached_property
    def _total(self) -> int:
        lengths = [len(program.ops) for program in self.schedule.programs]
        return self.schedule.steps * sum(lengths[self.schedule.program_of[number]] for number in self.ranks)

    def _rank(self, number: int) -> Rank:
        private, tie = self.cast.private_axes(number), self.cast.ties.get(number)
        issued = self._issue(number, private, tie and tie.axis)
        known: dict[Asked, Price] = {}
        for axis in sorted(private):
            known |= self.accounts.undisturbed(number, axis, speaks=True)
        if tie:
            known |= self.accounts.undisturbed(number, tie.axis, speaks=number == min(tie.ranks))
        pace = self.pricing.pace(number, known)
        return Rank(
            self.env,
            number,
            issued,
            pace,
            self.schedule.steps,
            self.rendezvous,
            self._processors(number, alone=not issued.shares and not tie),
            self.cast.crowd(number),
            self._seat(tie, number, pace, issued) if tie else None,
        )

    def _issue(self, number: int, private: frozenset[str], tying: str | None) -> Issue:
        index = self.schedule.program_of[number]
        key = index, private, tying
        if key not in self._issues:
            takes_sms = self.communicator.transport.blocks > 0
            self._issues[key] = issue(self.schedule.programs[index], takes_sms, private, tying)
        return self._issues[key]

    def _processors(self, number: int, *, alone: bool) -> dict[str, Processor | None]:
        """Those that a rank computes on, by where; none of a GPU that it has all *alone*."""
        processors: dict[str, Processor | None] = {"gpu": None}
        if not alone:
            processors["gpu"] = self._gpus[number] = Processor(self.env)
        host = self.pricing.host(number)
        if host is not None:
            processors["host"] = self._hosts.setdefault(self.cast.host(host), Processor(self.env))
        return processors

    def _seat(self, tie: Tie, number: int, pace: Pace, issued: Issue) -> Seat:
        if tie.group not in self._ensembles:
            if issued not in self._scores:
                self._scores[issued] = Score(issued, self.schedule.steps)
            self._ensembles[tie.group] = Ensemble(self.env, self._scores[issued], len(tie.ranks))
        return self._ensembles[tie.group].join(number, pace)
