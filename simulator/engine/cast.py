"""Who is simulated, and who meets whom: here every rank plays itself.

`simulator.engine.folding` offers the same with one representative for all ranks that are equal. The engine asks either
which ranks to simulate and what a communication of a rank is, and does not know which of them answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from simulator.hashing import Indices
from simulator.mesh import family
from simulator.plan import Plan
from simulator.schedule import Collective, Copy, Op, Recv, Schedule, Send
from simulator.transport.communicator import Communicator
from simulator.transport.likeness import Lies

Communication = Hashable
"""What the partners of a communication call it: all operations between the same partners have one name."""


class Tie(NamedTuple):
    """The collectives over *axis* tie *ranks*, which is the *group* that they call it."""

    axis: str
    group: Communication
    ranks: frozenset[int]


class Everyone:
    """Every rank of *schedule* plays itself; *communicator* makes the plans."""

    def __init__(self, schedule: Schedule, communicator: Communicator) -> None:
        self.schedule, self.communicator = schedule, communicator

    @property
    def stands_for(self) -> Sequence[int]:
        """By rank: the one that is simulated for it."""
        return range(self.schedule.mesh.world_size)

    @property
    def capacity(self) -> Sequence[float]:
        """What each row of the network can carry, bytes/s; here every link is a row."""
        return [link.bandwidth for link in self.communicator.cluster.links]

    @property
    def alike(self) -> Mapping[int, int]:
        """By number of a link that is accounted for: how many links carry the same. What is not named counts once."""
        return {}

    def communication(self, rank: int, op: Op) -> Communication:
        """The name of what *rank* takes part in with *op*."""
        return communication(self.schedule, rank, op)

    def partners(self, name: Communication, op: Op) -> int:
        """How many arrivals the communication waits for."""
        return len(partners(self.schedule, name)) if isinstance(op, Collective) else 2 - isinstance(op, Copy)

    def copies(self, name: Communication) -> int:
        """How many communications go on when this one does."""
        return 1

    def crowd(self, rank: int) -> int:
        """How many ranks that compute on one host stand behind *rank*."""
        return 1

    def host(self, name: str) -> Hashable:
        """What represents the host of that *name*; here it represents itself."""
        return name

    def private_axes(self, rank: int) -> frozenset[str]:
        """The axes whose collectives *rank* runs with nobody else that is simulated, over links of its own."""
        return frozenset()

    @property
    def ties(self) -> Mapping[int, Tie]:
        """By rank, how it is tied to others; here each communication is looked at on its own."""
        return {}

    def plan(self, name: Communication, op: Op) -> Plan:
        """What *op* asks of the network."""
        return planned(self.communicator, op, partners(self.schedule, name))


def communication(schedule: Schedule, rank: int, op: Op) -> tuple[object, ...]:
    """(axis, group) of a collective, (axis, group, sender, receiver) of a message, (rank,) of a copy."""
    if isinstance(op, Copy):
        return (rank,)
    assert isinstance(op, Collective | Send | Recv)
    place = schedule.mesh.axes[op.over].place(rank)
    assert place is not None, f"rank {rank} is not on {op.over}: Schedule.check() would have told"
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


def planned(communicator: Communicator, op: Op, ranks: tuple[int, ...]) -> Plan:
    """The plan of *op* between *ranks*, a message's sender and its receiver."""
    if isinstance(op, Copy):
        return communicator.copy(ranks[0], op.nbytes, op.to)
    assert isinstance(op, Collective | Send | Recv)
    if isinstance(op, Collective):
        return communicator.collective(op.kind, family(op.over), ranks, op.nbytes, op.root, op.algorithm)
    sender, receiver = ranks
    return communicator.send(sender, receiver, op.nbytes)


def lies(communicator: Communicator, op: Op, groups: Indices) -> Lies:
    """How *groups*, each the partners of one communication, lie for *op*: those that lie alike have like plans."""
    if isinstance(op, Copy):
        return communicator.copies(groups[:, 0])
    assert isinstance(op, Collective | Send | Recv)
    if isinstance(op, Collective):
        return communicator.collectives(op.kind, family(op.over), op.nbytes, op.root, op.algorithm, groups)
    return communicator.sends(groups)
