"""Rank classes: which ranks are simulated, who takes part in a communication, and what it asks of the network.

Here every rank is simulated (`Unfolded`). `simulator.engine.folding` offers the same with one representative for each
class of equal ranks. The engines ask either and do not know which of them answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

import numpy as np

from simulator.hashing import Indices
from simulator.network.plan import TransferPlan
from simulator.network.transport.communicator import Communicator
from simulator.network.transport.placement import Placement
from simulator.schedule import Collective, Copy, Op, Recv, Schedule, Send
from simulator.schedule.mesh import family

Communication = Hashable
"""The name of what partners take part in: all operations between the same partners have one name."""


class RankClasses(Protocol):
    """What engines ask. Names of communications are those of the class of a communication where ranks are folded."""

    @property
    def representative(self) -> Indices:
        """For each rank, the rank that is simulated for it."""

    @property
    def capacity(self) -> Sequence[float]:
        """By row of the network what it carries, bytes/s: a row is a link, or a class of equal links."""

    @property
    def link_multiplicity(self) -> Mapping[int, int]:
        """By number of a link: how many equal links it represents. A link that is not named represents itself."""

    def row_of(self, link: int) -> int:
        """The row of the link of that number."""

    def communication(self, rank: int, op: Op) -> Communication:
        """The name of what *rank* takes part in with *op*."""

    def partners(self, name: Communication, op: Op) -> int:
        """How many simulated arrivals a communication waits for."""

    def multiplicity(self, name: Communication) -> int:
        """How many communications the one of that *name* represents."""

    def ranks_on_host(self, rank: int) -> int:
        """How many ranks of the class of *rank* compute on its host."""

    def host(self, name: str) -> Hashable:
        """The class of the host processor of that *name*; of equal ones, one is simulated."""

    def plan(self, name: Communication, op: Op) -> TransferPlan:
        """The transfers that *op* asks of the network."""


class Unfolded:
    """Every rank of *schedule* is simulated; *communicator* makes the plans."""

    def __init__(self, schedule: Schedule, communicator: Communicator) -> None:
        self.schedule, self.communicator = schedule, communicator

    @property
    def representative(self) -> Indices:
        """Each rank itself."""
        return np.arange(self.schedule.mesh.world_size)

    @property
    def capacity(self) -> Sequence[float]:
        """The bandwidth of every link: every link is a row."""
        bandwidths: list[float] = self.communicator.cluster.bandwidths.tolist()
        return bandwidths

    @property
    def link_multiplicity(self) -> Mapping[int, int]:
        """Every link represents itself."""
        return {}

    def row_of(self, link: int) -> int:
        """The link itself."""
        return link

    def communication(self, rank: int, op: Op) -> Communication:
        """See `communication`."""
        return communication(self.schedule, rank, op)

    def partners(self, name: Communication, op: Op) -> int:
        """All members of a group, both ends of a message."""
        return len(partners(self.schedule, name)) if isinstance(op, Collective) else 2 - isinstance(op, Copy)

    def multiplicity(self, name: Communication) -> int:
        """One."""
        return 1

    def ranks_on_host(self, rank: int) -> int:
        """The rank itself."""
        return 1

    def host(self, name: str) -> Hashable:
        """The host itself."""
        return name

    def plan(self, name: Communication, op: Op) -> TransferPlan:
        """The plan between these very ranks."""
        return plan_of(self.communicator, op, partners(self.schedule, name))


def communication(schedule: Schedule, rank: int, op: Op) -> tuple[object, ...]:
    """(axis, group) of a collective, (axis, group, sender, receiver) of a message, (rank,) of a copy."""
    if isinstance(op, Copy):
        return (rank,)
    assert isinstance(op, Collective | Send | Recv)
    place = schedule.mesh.axes[op.over].place(rank)
    assert place is not None, f"rank {rank} is not on {op.over}: check() reports it"
    if isinstance(op, Collective):
        return op.over, place[0]
    ends = (place[1], op.peer) if isinstance(op, Send) else (op.peer, place[1])
    return (op.over, place[0], *ends)


def partners(schedule: Schedule, name: Communication) -> tuple[int, ...]:
    """The ranks that take part: a message's sender, then its receiver."""
    match name:
        case (int() as rank,):
            return (rank,)
        case (str() as axis, int() as group):
            return schedule.mesh.axes[axis].groups[group]
        case (str() as axis, int() as group, int() as sender, int() as receiver):
            ranks = schedule.mesh.axes[axis].groups[group]
            return ranks[sender], ranks[receiver]
    raise AssertionError(name)


def plan_of(communicator: Communicator, op: Op, ranks: tuple[int, ...]) -> TransferPlan:
    """The plan of *op* between *ranks*, a message's sender and its receiver."""
    if isinstance(op, Copy):
        return communicator.copy(ranks[0], op.nbytes, op.to)
    assert isinstance(op, Collective | Send | Recv)
    if isinstance(op, Collective):
        return communicator.collective(op.kind, family(op.over), ranks, op.nbytes, op.root, op.algorithm, op.per_peer)
    sender, receiver = ranks
    return communicator.send(sender, receiver, op.nbytes)


def placements(communicator: Communicator, op: Op, groups: Indices) -> Placement:
    """How *groups*, each the partners of one communication, are placed for *op*; isomorphic ones share a plan."""
    if isinstance(op, Copy):
        return communicator.copies(groups[:, 0])
    assert isinstance(op, Collective | Send | Recv)
    if isinstance(op, Collective):
        return communicator.collectives(op.kind, family(op.over), op.nbytes, op.root, op.algorithm, groups, op.per_peer)
    return communicator.sends(groups)
