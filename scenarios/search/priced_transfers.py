"""Prices of transfers: the duration of each communication when all groups of its axis communicate at once.

The plan is that of the engine. Groups of an axis share links, so their transfers take longer than on idle links by a
factor. It does not depend on the bytes, so one simulation of all groups finds it for each algorithm. Contention between
axes is not counted.

Rank classes with one rank for each program, on transfers of known durations: the longest path through a schedule.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from clustersim.simulator.engine.setup import Communication
from clustersim.simulator.hardware.hashing import Indices
from clustersim.simulator.network.library.communicator import Communicator
from clustersim.simulator.network.plan import Phase, TransferPlan
from clustersim.simulator.schedule.matching import request_of
from clustersim.simulator.schedule.mesh import Axis, Mesh, family
from clustersim.simulator.schedule.ops import Collective, Copy, Op, Recv, Send
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import SimulationRun

AXIS = "priced"
"""The axis of the schedule in which all groups communicate at once."""


class Transfers:
    """The prices of transfers on the devices of *communicator*."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self._plans: dict[Hashable, TransferPlan] = {}
        self._factors: dict[Hashable, float] = {}

    def plan(self, op: Op, axis: Axis | None, ranks: tuple[int, ...]) -> TransferPlan:
        """Return the plan of *op* between *ranks* as one delay; *axis*: that of the op, None for a copy."""
        key = type(op), request_of(op), ranks
        if key not in self._plans:
            alone = self.communicator.plan(op, ranks)
            self._plans[key] = self._delayed(alone, self._factor(op, axis, ranks, alone))
        return self._plans[key]

    def _delayed(self, plan: TransferPlan, factor: float) -> TransferPlan:
        latency = sum(phase.latency for phase in plan.phases)
        seconds = latency + factor * _transferring(plan)
        phases = (Phase(seconds, contended=False),) if plan.phases else ()
        return TransferPlan(plan.algorithm, plan.protocol, phases, plan.sent_bytes, plan.sms, plan.delivery)

    def _factor(self, op: Op, axis: Axis | None, ranks: tuple[int, ...], alone: TransferPlan) -> float:
        """Return how many times longer the transfers of *alone* take when all groups of *axis* communicate.

        Of a copy: when all ranks copy.
        """
        seconds = _transferring(alone)
        if not seconds or self.communicator.fidelity == "alpha_beta":
            return 1.0
        key: Hashable = ("copy", op.source, op.to) if isinstance(op, Copy) else None
        if axis is not None:
            kind = op.kind if isinstance(op, Collective) else ("message", *_ends(axis, ranks))
            key = axis.groups, kind, alone.algorithm, alone.protocol
        if key not in self._factors:
            together = SimulationRun(self._at_once(op, axis, ranks), self.communicator).run().makespan
            self._factors[key] = max(1.0, (together - (alone.alone - seconds)) / seconds)
        return self._factors[key]

    def _at_once(self, op: Op, axis: Axis | None, ranks: tuple[int, ...]) -> Schedule:
        """Return the schedule in which all groups of *axis* as large as that of *ranks* do *op* at once.

        A copy is done by all ranks.
        """
        world = len(self.communicator.devices)
        program_of = [0] * world
        if axis is None:
            return Schedule(Mesh(world, {}), (Program("all", (replace(op, after=()),)),), tuple(program_of))
        assert isinstance(op, Collective | Send | Recv)
        if isinstance(op, Collective):
            named = self.communicator.algorithms.get(f"{family(op.over)}.{op.kind}", op.algorithm)
            roles = [Program("all", (replace(op, over=AXIS, algorithm=named, after=()),))]
            places = [(rank, 1) for group in axis.groups if len(group) == len(ranks) for rank in group]
        else:
            sender, receiver = _ends(axis, ranks)
            send = Send(name="send", over=AXIS, peer=receiver, nbytes=op.nbytes)
            receive = Recv(name="receive", over=AXIS, peer=sender, nbytes=op.nbytes)
            roles = [Program("sender", (send,)), Program("receiver", (receive,))]
            groups = [group for group in axis.groups if len(group) > max(sender, receiver)]
            places = [pair for group in groups for pair in ((group[sender], 1), (group[receiver], 2))]
        for rank, number in places:
            program_of[rank] = number
        return Schedule(Mesh(world, {AXIS: axis}), (Program("idle", ()), *roles), tuple(program_of))


def _transferring(plan: TransferPlan) -> float:
    """Return the seconds of *plan* without its latencies."""
    return sum(
        max(phase.nbytes / flow.alone for flow in phase.flows)
        for phase in plan.phases
        if phase.contended and phase.nbytes and phase.flows
    )


def _ends(axis: Axis, ranks: tuple[int, ...]) -> tuple[int, int]:
    """Return the coordinates of the sender and the receiver *ranks* on *axis*."""
    places = [axis.place(rank) for rank in ranks]
    assert places[0] is not None
    assert places[1] is not None
    return places[0][1], places[1][1]


_Place = tuple[Hashable, tuple[int, ...]]


class Representatives:
    """All ranks of a program are equal, and no two transfers share a link; see `RankClasses` for the interface."""

    capacity: Sequence[float] = ()
    link_multiplicity: Mapping[int, int] = {}

    def __init__(self, schedule: Schedule, transfers: Transfers) -> None:
        self.schedule, self._transfers = schedule, transfers
        programs = schedule.program_numbers
        _, first = np.unique(programs, return_index=True)
        self.representative: Indices = first[programs]
        self._known: dict[tuple[int, Hashable], _Place] = {}
        self._ranks: dict[Communication, tuple[int, ...]] = {}

    def row_of(self, link: int) -> int:
        """There is no row."""
        raise AssertionError(link)

    def communication(self, rank: int, op: Op) -> Communication:
        """The axis and the programs that take part, of a message in order: sender, receiver."""
        of = self.schedule.program_of
        if isinstance(op, Copy):
            name: Communication = ("copy", of[rank])
            self._ranks.setdefault(name, (rank,))
            return name
        assert isinstance(op, Collective | Send | Recv)
        peer = None if isinstance(op, Collective) else (op.peer, isinstance(op, Send))
        known = rank, (op.over, peer)
        if known not in self._known:
            axis = self.schedule.mesh.axes[op.over]
            place = axis.place(rank)
            assert place is not None
            group = axis.groups[place[0]]
            if peer is None:
                name, ranks = (op.over, tuple(sorted({of[one] for one in group}))), group
            else:
                ranks = (rank, group[peer[0]]) if peer[1] else (group[peer[0]], rank)
                name = (op.over, of[ranks[0]], of[ranks[1]], "message")
            self._known[known] = name, ranks
            self._ranks.setdefault(name, ranks)
        return self._known[known][0]

    def partners(self, name: Communication, op: Op) -> int:
        """The number of programs that take part."""
        if isinstance(op, Copy):
            return 1
        assert isinstance(name, tuple)
        return len(name[1]) if isinstance(op, Collective) else 2

    def multiplicity(self, name: Communication) -> int:
        """One: traffic is not counted."""
        return 1

    def ranks_on_host(self, rank: int) -> int:
        """One."""
        return 1

    def host(self, name: str) -> Hashable:
        """The host itself."""
        return name

    def plan(self, name: Communication, op: Op) -> TransferPlan:
        """The transfer as one delay."""
        axis = None if isinstance(op, Copy) else self.schedule.mesh.axes[op.over]  # type: ignore[attr-defined]
        return self._transfers.plan(op, axis, self._ranks[name])
