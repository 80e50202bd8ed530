"""A communicator turns each communication into a plan for the network: steps laid on links, coarsened to a fidelity."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from operator import attrgetter

import numpy as np

from simulator.cluster import Cluster
from simulator.errors import SimulatorError
from simulator.hashing import Indices
from simulator.network.plan import Phase, Plan
from simulator.network.step import Group, Step, Transfer
from simulator.network.transport import tuner
from simulator.network.transport.members import Members
from simulator.network.transport.placement import Placement, Placements, Shape, moved
from simulator.network.transport.transport import Transport
from simulator.network.transport.unequal import unequal
from simulator.network.transport.way import Laid, Way, way, ways
from simulator.network.transport.wires import route

FIDELITIES = ("alpha_beta", "flow", "chunk")

_What = tuple[str, str, float, int, str, tuple[float, ...] | None]
"""kind, axis, bytes, root, algorithm, bytes per peer: what is asked for of a collective."""

_MESSAGE: tuple[Transfer, ...] = ((0, 1),)

NOTHING = Plan("none", "none", (), 0.0)
"""The plan of what needs no network: one rank, or no bytes."""


class Communicator:
    """The ranks on *devices* of *cluster*, talking through *transport*.

    *fidelity* is how steps are coarsened: ``alpha_beta`` one delay without contention, ``flow`` each step one phase,
    ``chunk`` each repetition one. *algorithms* fixes algorithms by collective or ``axis.collective``. Plans, and the
    flows in them, are made once and used again. Raises `SimulatorError` for names that there are not.
    """

    def __init__(
        self,
        cluster: Cluster,
        devices: Sequence[str],
        transport: Transport,
        fidelity: str = "flow",
        algorithms: Mapping[str, str] | None = None,
    ) -> None:
        if fidelity not in FIDELITIES:
            raise SimulatorError(f'fidelity "{fidelity}" must be one of {", ".join(FIDELITIES)}')
        self.algorithms: Mapping[str, str] = algorithms or {}
        tuner.check(self.algorithms)
        self.cluster, self.devices, self.transport, self.fidelity = cluster, tuple(devices), transport, fidelity
        self._members: dict[tuple[int, ...], Members] = {}
        self._plans: dict[tuple[object, ...], Plan] = {}
        self._models: dict[tuple[Hashable, int], tuple[Plan, Indices]] = {}
        self._shapes: dict[tuple[_What, Group], Shape] = {}
        self._placements = Placements(cluster)

    @property
    def regular(self) -> bool:
        """Whether groups lie as they do whatever they are asked for."""
        return self.cluster.regularity is not None

    @cached_property
    def _device(self) -> Indices:
        """By rank the number of its device."""
        numbers = {device: number for number, device in enumerate(self.cluster.devices)}
        return np.array([numbers[device] for device in self.devices], np.int64)

    def collective(
        self,
        kind: str,
        axis: str,
        ranks: tuple[int, ...],
        nbytes: float,
        root: int = 0,
        algorithm: str = "auto",
        per_peer: tuple[float, ...] | None = None,
    ) -> Plan:
        """The plan of the collective *kind* over *ranks* of an axis of the family *axis*.

        *nbytes* is the full vector, *root* a position in *ranks*; *algorithm* what the op itself asks for; *per_peer*
        the bytes for each position, of an all-to-all.
        """
        if per_peer is not None and len(per_peer) != len(ranks):
            raise SimulatorError(
                f"{kind} over {axis}: bytes for {len(per_peer)} peers in a group of {len(ranks)} ranks"
            )
        if len(ranks) < 2 or not nbytes:
            return NOTHING
        key = kind, axis, ranks, nbytes, root, algorithm, per_peer
        if key not in self._plans:
            what = kind, axis, nbytes, root, algorithm, per_peer
            placement = self.collectives(*what[:5], np.array([ranks]), per_peer)
            self._plans[key] = self._like(what, placement, lambda: self._chosen(what, self.members(ranks)))
        return self._plans[key]

    def collectives(
        self,
        kind: str,
        axis: str,
        nbytes: float,
        root: int,
        algorithm: str,
        groups: Indices,
        per_peer: tuple[float, ...] | None = None,
    ) -> Placement:
        """How *groups* of ranks lie for a `collective`: those that lie alike have like plans."""
        what = kind, axis, nbytes, root, algorithm, per_peer
        return self._placements.of(
            self._device[groups], lambda number: self._shape(what, self.members(tuple(groups[number].tolist())))
        )

    def _like(self, what: Hashable, placement: Placement, plan: Callable[[], Plan]) -> Plan:
        """The plan of a group with this *placement*: that of an isomorphic group with the same request, relabelled."""
        key, slots = (what, int(placement.patterns[0])), placement.slots[0]
        if key not in self._models:
            self._models[key] = plan(), slots
        model, before = self._models[key]
        return model if before is slots else moved(model, before, slots)

    def _shape(self, what: _What, members: Members) -> Shape:
        """The group, and its transfers by all choices: who placement alike under the best one may have a better one."""
        key = what, members.group
        if key not in self._shapes:
            every = (step for steps in self._choices(what, members).values() for step in steps)
            self._shapes[key] = members.group, tuple(dict.fromkeys(t for step in every for t in step.transfers))
        return self._shapes[key]

    def _choices(self, what: _What, members: Members) -> dict[str, list[Step]]:
        """The steps of each algorithm that there is."""
        kind, axis, nbytes, root, algorithm, per_peer = what
        names = tuner.offered(self.transport, self.algorithms, axis, kind, algorithm, members.setting)
        made = {name: tuner.steps(name, kind, members.group, nbytes, root) for name in names}
        return made if per_peer is None else {name: unequal(steps, per_peer) for name, steps in made.items()}

    def _chosen(self, what: _What, members: Members) -> Plan:
        return self._plan(what[0], members, self._choices(what, members), what[2], members.channels)

    def send(self, sender: int, receiver: int, nbytes: float) -> Plan:
        """The plan of a message from rank to rank; its one or two SMs, taken while it flows, are not counted."""
        if not nbytes:
            return NOTHING
        key = "send", sender, receiver, nbytes
        if key not in self._plans:
            placement = self.sends(np.array([(sender, receiver)]))
            members = self.members((sender, receiver))
            self._plans[key] = self._like(("send", nbytes), placement, lambda: self._message(members, nbytes))
        return self._plans[key]

    def sends(self, pairs: Indices) -> Placement:
        """How *pairs* of ranks lie for messages from the first to the second, whatever their bytes."""
        return self._placements.of(self._device[pairs], lambda _: ("send", _MESSAGE))

    def _message(self, members: Members, nbytes: float) -> Plan:
        choices = {"direct": [Step(_MESSAGE, nbytes)]}
        plan = self._plan("send", members, choices, nbytes, self.transport.blocks)
        # what the wire delays does not occupy the sender
        first, *others = plan.phases
        wire = min(first.latency, self.cluster.latency(route(self.cluster, *members.devices)))
        phases = (replace(first, latency=first.latency - wire), *others)
        return replace(plan, phases=phases, sms=0.0, delivery=wire)

    def copy(self, rank: int, nbytes: float, to: str) -> Plan:
        """The plan of a copy between a GPU and its host, *to* the ``host`` or the ``gpu``; only the wire counts."""
        if not nbytes or self.devices[rank] in self._host_number:
            return NOTHING
        key = "copy", rank, nbytes, to
        if key not in self._plans:
            placement = self.copies(np.array([rank]))
            self._plans[key] = self._like(("copy", nbytes, to), placement, lambda: self._copied(rank, nbytes, to))
        return self._plans[key]

    def copies(self, ranks: Indices) -> Placement:
        """How *ranks* lie for copies between each and its host, both ways."""
        names, host_of = [self.devices[rank] for rank in ranks.tolist()], self.cluster.host_of
        hosts = [name if name in self._host_number else host_of(name) for name in names]
        pairs = np.array([self._device[ranks], [self._host_number[host] for host in hosts]]).T
        return self._placements.of(pairs, lambda _: ("copy", (*_MESSAGE, (1, 0))))

    @cached_property
    def _host_number(self) -> Mapping[str, int]:
        return {host: number for number, host in enumerate(self.cluster.hosts, len(self.cluster.gpus))}

    def _copied(self, rank: int, nbytes: float, to: str) -> Plan:
        device = self.devices[rank]
        host = self.cluster.host_of(device)
        ends = (device, host) if to == "host" else (host, device)
        step = Step(((0, 1),), nbytes)
        flows = Members(self.cluster, ends, self.transport).flows(self.transport, step, 1.0, inf)
        wire = self.cluster.latency(route(self.cluster, *ends))
        bare = Way("copy", "copy", (Laid(step, wire, flows, nbytes / flows[0].alone),), 0.0, 1.0)
        return Plan("copy", "copy", tuple(self._phases(bare)), nbytes)

    def buffer_bytes(self, ranks: tuple[int, ...]) -> float:
        """What the library holds on each GPU of the group *ranks* for its channels, in bytes."""
        if len(ranks) < 2:
            return 0.0
        return self.members(ranks).channels * self.transport.buffer_bytes

    def members(self, ranks: tuple[int, ...]) -> Members:
        """The group of *ranks*, found once."""
        if ranks not in self._members:
            self._members[ranks] = Members(self.cluster, [self.devices[rank] for rank in ranks], self.transport)
        return self._members[ranks]

    def _plan(
        self, kind: str, members: Members, choices: Mapping[str, Sequence[Step]], nbytes: float, channels: int
    ) -> Plan:
        """The plan of least time, with nothing else on the links, by what the transport believes of itself.

        It takes at most *channels*.
        """
        transport = self.transport
        believed = transport.believed or transport
        best = min(ways(believed, members, kind, choices, nbytes), key=attrgetter("seconds"), default=None)
        if best is None:
            return NOTHING
        if believed is not transport:
            steps = choices[best.algorithm]
            best = way(transport, members, kind, best.algorithm, best.protocol, steps, nbytes)
        opened = transport.opened(best.algorithm, best.protocol, nbytes, members.setting.ranks, channels)
        sms = opened / (self.cluster.accelerator(members.devices[0]).sms or inf)
        return Plan(best.algorithm, best.protocol, tuple(self._phases(best)), best.sent_bytes, sms)

    def _phases(self, chosen: Way) -> Iterator[Phase]:
        """The steps of the way *chosen*, coarsened."""
        laid, base, slowed = chosen.laid, chosen.base, chosen.slowed
        if self.fidelity == "chunk":
            for one in laid:
                repeat = one.step.repeat
                latency = slowed * one.latency / repeat
                yield Phase(latency + slowed * base, one.flows, one.step.nbytes)
                yield from [Phase(latency, one.flows, one.step.nbytes)] * (repeat - 1)
                base = 0.0
            return
        for run in _merged(laid):
            seconds = slowed * (base + sum(one.latency for one in run))
            nbytes = sum(one.step.nbytes * one.step.repeat for one in run)
            if self.fidelity == "flow":
                yield Phase(seconds, run[0].flows, nbytes)
            else:
                yield Phase(seconds + sum(one.busy for one in run), run[0].flows, nbytes, contended=False)
            base = 0.0


def _merged(laid: Sequence[Laid]) -> list[list[Laid]]:
    """Neighbours that keep the same flows going, together."""
    runs: list[list[Laid]] = []
    for one in laid:
        if runs and runs[-1][0].flows is one.flows:
            runs[-1].append(one)
        else:
            runs.append([one])
    return runs
