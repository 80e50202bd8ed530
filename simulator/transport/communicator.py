"""A communicator turns each communication into a plan for the network: steps laid on links, coarsened to a fidelity."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from operator import attrgetter

from simulator.cluster import Cluster
from simulator.errors import SimulatorError
from simulator.plan import Phase, Plan
from simulator.step import Group, Step, Transfer
from simulator.transport import tuner
from simulator.transport.likeness import lie, moved
from simulator.transport.members import Members
from simulator.transport.transport import Transport
from simulator.transport.way import Laid, Way, way, ways
from simulator.transport.wires import route

FIDELITIES = ("alpha_beta", "flow", "chunk")

_Shape = tuple[str, str, Group, float, int, str]
"""kind, axis, group, bytes, root, algorithm: what two collectives that may share a plan have in common."""

_Lie = tuple[int, tuple[int, ...]]
"""The number of a pattern (`simulator.transport.likeness`), and the links in it."""

_MESSAGE: tuple[Transfer, ...] = ((0, 1),)

NOTHING = Plan("none", "none", (), 0.0)
"""The plan of what needs no network: one rank, or no bytes."""


@dataclass(frozen=True, slots=True)
class _Model:
    """The plans of groups of one shape: by the pattern in which *transfers* lie, with the links that each is for."""

    transfers: tuple[Transfer, ...]
    plans: dict[int, tuple[Plan, tuple[int, ...]]] = field(default_factory=dict)

    def keep(self, plan: Plan, lie: _Lie) -> None:
        """*plan* is the one of groups that lie as *lie* says."""
        self.plans[lie[0]] = plan, lie[1]


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
        self._models: dict[_Shape, _Model] = {}
        self._messages: dict[float, _Model] = {}
        self._lies: dict[tuple[tuple[Transfer, ...], tuple[str, ...]], _Lie] = {}
        self._patterns: dict[Hashable, int] = {}

    def collective(
        self, kind: str, axis: str, ranks: tuple[int, ...], nbytes: float, root: int = 0, algorithm: str = "auto"
    ) -> Plan:
        """The plan of the collective *kind* over *ranks* of an axis of the family *axis*.

        *nbytes* is the full vector, *root* a position in *ranks*; *algorithm* what the op itself asks for.
        """
        if len(ranks) < 2 or not nbytes:
            return NOTHING
        key = kind, axis, ranks, nbytes, root, algorithm
        if key not in self._plans:
            members = self.members(ranks)
            shape = kind, axis, members.group, nbytes, root, algorithm
            self._plans[key] = self._as_before(shape, members) or self._first(shape, members)
        return self._plans[key]

    def _as_before(self, shape: _Shape, members: Members) -> Plan | None:
        """The plan of a group of the same shape, moved here, if one lies alike."""
        model = self._models.get(shape)
        if model is None:
            return None
        pattern, links = self._lie(model.transfers, members.devices)
        if pattern not in model.plans:
            return None
        plan, before = model.plans[pattern]
        return moved(plan, before, links)

    def _first(self, shape: _Shape, members: Members) -> Plan:
        """The plan of a group the shape or the lie of which is new."""
        kind, axis, group, nbytes, root, algorithm = shape
        names = tuner.offered(self.transport, self.algorithms, axis, kind, algorithm, members.setting)
        choices = {name: tuner.steps(name, kind, group, nbytes, root) for name in names}
        # of all choices: who lies alike under the best one alone may have a better one
        transfers = tuple(dict.fromkeys(t for steps in choices.values() for step in steps for t in step.transfers))
        plan = self._plan(kind, members, choices, nbytes, members.channels)
        self._models.setdefault(shape, _Model(transfers)).keep(plan, self._lie(transfers, members.devices))
        return plan

    def _lie(self, transfers: tuple[Transfer, ...], devices: tuple[str, ...]) -> _Lie:
        """The number of the pattern in which *devices* lie under *transfers*, and the links in it."""
        key = () if self.cluster.hierarchical and len(devices) > 2 else transfers, devices
        if key not in self._lies:
            pattern, links = lie(self.cluster, transfers, devices)
            self._lies[key] = self._patterns.setdefault(pattern, len(self._patterns)), links
        return self._lies[key]

    def send(self, sender: int, receiver: int, nbytes: float) -> Plan:
        """The plan of a message from rank to rank; its one or two SMs, taken while it flows, are not counted."""
        if not nbytes:
            return NOTHING
        key = "send", sender, receiver, nbytes
        if key not in self._plans:
            ends = self.devices[sender], self.devices[receiver]
            pattern, links = self._lie(_MESSAGE, ends)
            model = self._messages.setdefault(nbytes, _Model(_MESSAGE))
            if pattern not in model.plans:
                members = self.members((sender, receiver))
                choices = {"direct": [Step(_MESSAGE, nbytes)]}
                plan = replace(self._plan("send", members, choices, nbytes, self.transport.blocks), sms=0.0)
                model.keep(plan, (pattern, links))
            self._plans[key] = moved(*model.plans[pattern], links)
        return self._plans[key]

    def copy(self, rank: int, nbytes: float, to: str) -> Plan:
        """The plan of a copy between a GPU and its host, *to* the ``host`` or the ``gpu``; only the wire counts."""
        device = self.devices[rank]
        if not nbytes or device in self.cluster.hosts:
            return NOTHING
        key = "copy", rank, nbytes, to
        if key not in self._plans:
            host = self.cluster.host_of(device)
            ends = (device, host) if to == "host" else (host, device)
            step = Step(((0, 1),), nbytes)
            flows = Members(self.cluster, ends, self.transport).flows(self.transport, step, 1.0, inf)
            wire = self.cluster.latency(route(self.cluster, *ends))
            bare = Way("copy", "copy", (Laid(step, wire, flows, nbytes / flows[0].alone),), 0.0, 1.0)
            self._plans[key] = Plan("copy", "copy", tuple(self._phases(bare)), nbytes)
        return self._plans[key]

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
