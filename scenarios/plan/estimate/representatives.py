"""Rank classes with one rank for each program, on transfers of known durations: the longest path through a schedule."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from scenarios.plan.estimate.transfers import Transfers
from simulator.engine.rank_classes import Communication
from simulator.hashing import Indices
from simulator.network.plan import TransferPlan
from simulator.schedule import Collective, Copy, Op, Recv, Schedule, Send

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
