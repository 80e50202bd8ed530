"""Simulation: fold, start the ranks, run, collect."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from simpy import Environment

from simulator.accelerator import Accelerator, Software
from simulator.cluster import Cluster
from simulator.engine.cast import Asked, Communication, Everyone, Tie, asked
from simulator.engine.deadlock import deadlock
from simulator.engine.ensemble import Ensemble, Score, Seat
from simulator.engine.folding import Folding
from simulator.engine.issue import Issue, Run, Turn, issue
from simulator.engine.network import LinkUses, Network, Stretch
from simulator.engine.pace import Pace, Price, Prices, Steady, Varied
from simulator.engine.processor import Processor
from simulator.engine.rank import Rank
from simulator.engine.rendezvous import Encounter, Meeting, Rendezvous
from simulator.engine.variation import Variation
from simulator.errors import ClusterError
from simulator.garbage import collecting_no_garbage
from simulator.mesh import family
from simulator.plan import Plan
from simulator.schedule import Collective, Compute, Op, Program, Recv, Schedule, Send
from simulator.timeline import Timeline
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
    _axis_bytes: dict[str, float] = field(default_factory=dict)
    _algorithms: dict[tuple[str, str, float], tuple[str, str]] = field(default_factory=dict)
    _private: dict[int, dict[Asked, Plan]] = field(default_factory=dict)
    _ensembles: dict[Communication, Ensemble] = field(default_factory=dict)
    _scores: dict[Issue, Score] = field(default_factory=dict)
    _over: dict[tuple[int, frozenset[str]], dict[Asked, tuple[Collective, int]]] = field(default_factory=dict)
    _issues: dict[tuple[int, frozenset[str], str | None], Issue] = field(default_factory=dict)
    _prices: dict[Hashable, Prices] = field(default_factory=dict)
    _paces: dict[Hashable, Pace] = field(default_factory=dict)
    _met: dict[tuple[int, Run], Encounter] = field(default_factory=dict)
    _encounters: dict[tuple[Communication, Asked], tuple[Encounter, Communication, Op]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.env = Environment()
        self._on_host = [_computes_on_host(program) for program in self.schedule.programs]
        self.cast = self._cast()
        self.network = Network(self.env, self.cast.capacity)
        self._hosts: dict[str, Processor] = {}
        self._gpus: dict[int, Processor] = {}
        self.rendezvous = Rendezvous(self.env, self.network, self._gpus)

    def run(self) -> Timeline:
        """Start the ranks, run until nothing more happens, collect."""
        stands_for = self.cast.stands_for
        with collecting_no_garbage():
            for number in dict.fromkeys(stands_for):
                self.ranks[number] = self._rank(number)
            for rank in self.ranks.values():
                rank.start()
            self.env.run()
        error = deadlock(self.schedule, self.ranks, stands_for)
        if error is not None:
            raise error
        for encounter, name, op in self._encounters.values():
            self._account(name, op, encounter.plan, encounter.count)
        return Timeline(
            schedule=self.schedule,
            cluster=self.cluster,
            records=[self.ranks[number].records for number in stands_for],
            devices=self.devices,
            axis_bytes=self._axis_bytes,
            link_bytes=self.network.link_bytes(),
            alike=self.cast.alike,
            uses=LinkUses(self.network.stretches, self._private_stretches),
            algorithms=self._algorithms,
            representatives=len(self.ranks),
        )

    def _cast(self) -> Everyone | Folding:
        if not self.fold or self.schedule.mesh.world_size == 1:
            return Everyone(self.schedule, self.communicator)
        on_host = self._on_host
        hosts = {rank: self._host(rank) for rank, index in enumerate(self.schedule.program_of) if on_host[index]}
        apart = self.variation.jitter > 0
        return Folding(self.schedule, self.communicator, self.variation, hosts, apart=apart)

    @property
    def fraction(self) -> float:
        """How much is done, 0 to 1, by ops."""
        return sum(rank.written for rank in self.ranks.values()) / max(1, self._total)

    @cached_property
    def _total(self) -> int:
        lengths = [len(program.ops) for program in self.schedule.programs]
        return self.schedule.steps * sum(lengths[self.schedule.program_of[number]] for number in self.ranks)

    def _rank(self, number: int) -> Rank:
        index, private, tie = (
            self.schedule.program_of[number],
            self.cast.private_axes(number),
            self.cast.ties.get(number),
        )
        program = self.schedule.programs[index]
        key = index, private, tie and tie.axis
        if key not in self._issues:
            self._issues[key] = issue(program, self.communicator.transport.blocks > 0, *key[1:])
        issued = self._issues[key]
        processors: dict[str, Processor | None] = {"gpu": None}
        if issued.shares or tie:
            processors["gpu"] = self._gpus[number] = Processor(self.env)
        if self._on_host[index]:
            processors["host"] = self._hosts.setdefault(self._host(number), Processor(self.env))
        alone = self._alone(number, private) if private else {}
        if tie:
            alone |= self._alone(number, frozenset([tie.axis]), accounts=number == min(tie.ranks))
        pace, crowd = self._pace(number, alone), self.cast.crowd(number)
        seat = self._seat(tie, number, pace, issued) if tie else None
        return Rank(self.env, number, issued, pace, self.schedule.steps, self._meet, processors, crowd, seat)

    def _seat(self, tie: Tie, number: int, pace: Pace, issued: Issue) -> Seat:
        if tie.group not in self._ensembles:
            if issued not in self._scores:
                self._scores[issued] = Score(issued, self.schedule.steps)
            self._ensembles[tie.group] = Ensemble(self.env, self._scores[issued], len(tie.ranks))
        return self._ensembles[tie.group].join(number, pace)

    def _alone(self, number: int, axes: frozenset[str], *, accounts: bool = True) -> dict[Asked, Price]:
        """What the collectives of rank *number* over *axes*, which nobody disturbs, take, by what they ask for.

        They are accounted for where the rank *accounts* for them.
        """
        plans: dict[Asked, Plan] = {}
        for what, (op, count) in self._collectives(self.schedule.program_of[number], axes).items():
            times = count * self.schedule.steps if accounts else 0
            name = self.cast.communication(number, op)
            plan = plans[what] = self.cast.plan(name, op)
            self._account(name, op, plan, times)
            for phase in plan.phases if accounts else ():
                for flow in phase.flows:
                    self.network.carried(flow, phase.nbytes * times)
        if accounts:
            self._private.setdefault(number, {}).update(plans)
        return {what: Price(plan.alone, plan.sms) for what, plan in plans.items()}

    def _collectives(self, index: int, axes: frozenset[str]) -> dict[Asked, tuple[Collective, int]]:
        """The collectives of a program over *axes*, one of those that ask for the same and how many there are."""
        if (index, axes) not in self._over:
            found = self._over[index, axes] = {}
            for ops, times in self.schedule.programs[index].templates():
                for op in ops:
                    if isinstance(op, Collective) and op.over in axes:
                        found[asked(op)] = op, found.get(asked(op), (op, 0))[1] + times
        return self._over[index, axes]

    def _private_stretches(self) -> Iterator[Stretch]:
        """What private collectives laid on the links."""
        for number, plans in self._private.items():
            plan_at = self.schedule.program(number).tabulated(
                lambda op, plans=plans: plans.get(asked(op)) if isinstance(op, Collective) else None  # type: ignore[misc]
            )
            for record in self.ranks[number].records:
                plan = plan_at[record.op]
                for begin, end, phase in plan.moments(record.begin) if plan else ():
                    for flow in phase.flows if end > begin else ():
                        yield Stretch(begin, end, flow, phase.nbytes / (end - begin))

    def _host(self, rank: int) -> str:
        device = self.devices[rank]
        return device if self.schedule.program(rank).on == "host" else self.cluster.host_of(device)

    def _pace(self, number: int, alone: Mapping[Asked, Price]) -> Pace:
        """How long the ops of a rank take: as its accelerator prices them, varied; what is known *alone* takes that."""
        index = self.schedule.program_of[number]
        program = self.schedule.programs[index]
        device = self.cluster.accelerator(self.devices[number])
        host = self.cluster.accelerator(self._host(number)) if self._on_host[index] else None
        factors = self.variation.factors(number, len(program.ops) * self.schedule.steps)
        slowdown = self.variation.slowdown(number)
        same = index, device, host, tuple(alone.items())
        if same not in self._prices:
            prices = self._priced(index, device, host)
            self._prices[same] = {
                id(ops): [
                    alone.get(asked(op), price) if isinstance(op, Collective) else price
                    for op, price in zip(ops, prices[id(ops)], strict=True)
                ]
                for ops, _ in program.templates()
            }
        if factors is not None:
            return Varied(self._prices[same], factors)
        return self._paces.setdefault((same, slowdown), Steady(self._prices[same], slowdown))

    def _priced(self, index: int, device: Accelerator, host: Accelerator | None) -> Prices:
        templates = self.schedule.programs[index].templates()
        return {id(ops): [Price(self._price(op, device, host)) for op in ops] for ops, _ in templates}

    def _price(self, op: Op, device: Accelerator, host: Accelerator | None) -> float:
        if not isinstance(op, Compute):
            return 0.0
        if op.on == "host" and host is not None:
            return host.seconds(op.kernels)
        return device.seconds(op.kernels, self.software)

    def _meet(self, rank: int, turn: Turn, step: int) -> Meeting:
        """Take *rank* to the meeting of its communication."""
        encounter = self._met.get((rank, turn.run))
        if encounter is None:
            encounter = self._met[rank, turn.run] = self._encounter(rank, turn.run.op)
        return self.rendezvous.arrive(encounter, (turn.meeting, step), rank)

    def _encounter(self, rank: int, op: Op) -> Encounter:
        """That of *rank* and its partners for what *op* asks."""
        name = self.cast.communication(rank, op)
        key = name, asked(op)
        if key not in self._encounters:
            partners, plan = self.cast.partners(name, op), self.cast.plan(name, op)
            self._encounters[key] = Encounter(partners, plan), name, op
        return self._encounters[key][0]

    def _account(self, name: Communication, op: Op, plan: Plan, times: int) -> None:
        """What *op* asked of the network went on *times* times."""
        if times and isinstance(op, Collective | Send | Recv):
            axis = family(op.over)
            sent = times * plan.sent_bytes * self.cast.copies(name)
            self._axis_bytes[axis] = self._axis_bytes.get(axis, 0.0) + sent
            if isinstance(op, Collective):
                self._algorithms[axis, op.kind, op.nbytes] = plan.algorithm, plan.protocol


def _computes_on_host(program: Program) -> bool:
    return any(isinstance(op, Compute) and op.on == "host" for op in program.distinct())
