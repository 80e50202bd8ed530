"""Memory of GPUs that agents (thread blocks, proxies of port channels) read and write, with a check of their order.

One-sided writes arrive without a receive, so only signals order them. Each agent has a vector clock (Mattern, "Virtual
Time and Global States of Distributed Systems", 1989). Two accesses of one chunk, of which one writes, must be ordered
by a chain of signals; else the result depends on chance: a fault, in whatever order the execution takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from clustersim.simulator.network.algorithm_files.chunks import Place, Value, Vectors
from clustersim.simulator.reading.dataclass import dataclass


@dataclass
class Moment:
    """What an agent hands on with a signal: its clock, and the last rounds of what it has seen and what it has sent."""

    clock: list[int]
    round: int
    sent: int


class Agent:
    """Agent number *number* of *count*, on *rank*. *where*: the operation that it executes, as messages name it.

    *round*: of the last message that it has waited for. *sent*: of the last that it has sent.
    """

    def __init__(self, number: int, count: int, rank: int) -> None:
        self.number, self.rank, self.where = number, rank, ""
        self.clock, self.round, self.sent = [0] * count, 0, 0

    def begin(self, where: str) -> None:
        """Begin the operation at *where*."""
        self.where = where
        self.clock[self.number] += 1

    def moment(self) -> Moment:
        """Return what a signal of this agent hands on now."""
        return Moment(list(self.clock), self.round, self.sent)

    def after(self, moment: Moment) -> None:
        """Continue after *moment* of another agent."""
        self.clock = list(map(max, self.clock, moment.clock))
        self.round, self.sent = max(self.round, moment.round), max(self.sent, moment.sent)


@dataclass
class _Access:
    """An access by agent *agent* at its time *time*, by the operation at *where*."""

    agent: int
    time: int
    where: str

    def is_before(self, clock: Sequence[int]) -> bool:
        return clock[self.agent] >= self.time


@dataclass
class _Cell:
    value: Value
    written: _Access | None = None
    read: dict[int, _Access] = field(default_factory=dict)
    packet: Moment | None = None


class AccessFault(ValueError):  # noqa: N818 - it names the fault
    """A chunk that is not there, or whose accesses are not ordered, in words."""


class OrderedMemory:
    """The memory of all ranks of the collective *vectors*. *finer*: its chunks for each chunk of the file."""

    def __init__(self, vectors: Vectors, finer: int) -> None:
        self.vectors, self.finer = vectors, finer
        self.cells = [
            {place: _Cell(value) for place, value in vectors.start(rank).items()} for rank in range(vectors.ranks)
        ]

    def packet(self, rank: int, place: Place) -> Moment | None:
        """Return the moment at which the packet at *place* of *rank* was sent; None if it has not come."""
        cell = self.cells[rank].get(self.vectors.place(rank, place))
        return cell.packet if cell else None

    def read(self, agent: Agent, rank: int, place: Place) -> Value:
        """Return the chunk at *place* of *rank*. Raises `AccessFault`."""
        cell = self.cells[rank].get(self.vectors.place(rank, place))
        if cell is None:
            raise AccessFault(f"takes chunk {self.name(place)} of rank {rank}, which holds nothing")
        if cell.written is not None and not cell.written.is_before(agent.clock):
            raise AccessFault(
                f"reads chunk {self.name(place)} of rank {rank} without waiting for {cell.written.where}, "
                "which writes it"
            )
        cell.read[agent.number] = _Access(agent.number, agent.clock[agent.number], agent.where)
        return cell.value

    def write(self, agent: Agent, rank: int, place: Place, value: Value, packet: Moment | None = None) -> None:
        """Write *value* to *place* of *rank*; as a packet, with the *moment* that it hands on. Raises `AccessFault`."""
        where = self.vectors.place(rank, place)
        cell = self.cells[rank].get(where)
        if cell is not None:
            before = [*cell.read.values(), *([cell.written] if cell.written else [])]
            for access in before:
                if not access.is_before(agent.clock):
                    raise AccessFault(
                        f"overwrites chunk {self.name(place)} of rank {rank} without waiting for {access.where}, "
                        "which uses it"
                    )
        self.cells[rank][where] = _Cell(
            value, _Access(agent.number, agent.clock[agent.number], agent.where), packet=packet
        )

    def name(self, place: Place) -> str:
        """Return *place* as the file names it."""
        return f"{place[0]}[{place[1] // self.finer}]"

    def fault_at_end(self, clocks: Sequence[Sequence[int]]) -> str:
        """Return what is wrong when rank r has ended at ``clocks[r]``; empty if nothing is."""

        def found(rank: int, where: Place) -> Value | None:
            cell = self.cells[rank].get(where)
            return cell.value if cell else None

        if fault := self.vectors.fault(found, self.finer):
            return fault
        for rank, clock in enumerate(clocks):
            for chunk in self.vectors.expected(rank):
                cell = self.cells[rank][self.vectors.place(rank, ("o", chunk))]
                if cell.written is not None and not cell.written.is_before(clock):
                    name = self.name(("o", chunk))
                    return f"rank {rank} ends without waiting for chunk {name}, which {cell.written.where} writes"
        return ""
