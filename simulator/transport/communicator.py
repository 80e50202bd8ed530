"""A communicator turns each communication into a plan for the network: steps laid on links, coarsened to a fidelity."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from operator import attrgetter

from simulator.cluster import Cluster
from simulator.errors import SimulatorError
from simulator.plan import Phase, Plan
from simulator.step import Group, Step, Transfer
from simulator.transport import tuner
from simulator.transport.likeness import moved
from simulator.transport.members import Members
from simulator.transport.transport import Transport
from simulator.transport.way import Laid, Way, way, ways
from simulator.transport.wires import route

FIDELITIES = ("alpha_beta", "flow", "chunk")

_Shape = tuple[str, str, Group, float, int, str]
"""kind, axis, group, bytes, root, algorithm: what two collectives that may share a plan have in common."""

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
        self._models: dict[tuple[Hashable, ...], tuple[Plan, tuple[Transfer, ...], Sequence[str]]] = {}

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

    def _as_before(self, shape: tuple[Hashable, ...], members: Members) -> Plan | None:
        """The plan of a group of the same shape, moved here, if the two lie alike."""
        if shape not in self._models:
            return None
        plan, transfers, devices = self._models[shape]
        return moved(self.cluster, plan, transfers, devices, members.devices)

    def _first(self, shape: _Shape, members: Members) -> Plan:
        """The plan of a group the shape or the lie of which is new."""
        kind, axis, group, nbytes, root, algorithm = shape
        names = list(tuner.candidates(self.transport, self.algorithms, axis, kind, algorithm))
        offered = [name for name in names if self.transport.offered(name, members.setting)]
        if not offered:
            kinds = " or ".join(self.transport.switch_only[names[0]])
            raise SimulatorError(
                f"{kind} over {axis}: {names[0]} needs GPUs of one server behind switches of {kinds}; try auto"
            )
        choices = {name: tuner.steps(name, kind, group, nbytes, root) for name in offered}
        plan = self._plan(kind, members, choices, nbytes, members.channels)
        # of all choices: who lies alike under the best one alone may have a better one
        transfers = dict.fromkeys(t for steps in choices.values() for step in steps for t in step.transfers)
        self._models[shape] = plan, tuple(transfers), members.devices
        return plan

    def send(self, sender: int, receiver: int, nbytes: float) -> Plan:
        """The plan of a message from rank to rank; its one or two SMs, taken while it flows, are not counted."""
        if not nbytes:
            return NOTHING
        key = "send", sender, receiver, nbytes
        if key not in self._plans:
            ends = self.devices[sender], self.devices[receiver]
            path = tuple(map(self.cluster.sort, route(self.cluster, *ends)))
            shape = "send", path, self.cluster.node_of(ends[0]) == self.cluster.node_of(ends[1]), nbytes
            if shape not in self._models:
                members = self.members((sender, receiver))
                choices = {"direct": [Step(((0, 1),), nbytes)]}
                plan = replace(self._plan("send", members, choices, nbytes, self.transport.blocks), sms=0.0)
                self._models[shape] = plan, ((0, 1),), ends
            plan, transfers, before = self._models[shape]
            self._plans[key] = moved(self.cluster, plan, transfers, before, ends) or plan
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
