"""The spans of one representative, stream after stream, and the structure that is common to a program's ranks."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from simulator.schedule.dependencies import Dependencies, Names, dependencies
from simulator.schedule.ops import Op, Send
from simulator.schedule.program import Program
from simulator.timeline import Columns, Integers

Flags = npt.NDArray[np.bool_]

NO_SERVER = -1


class Structure:
    """The streams, servers and dependencies of a *program*, common to its ranks.

    Arrays by op: *stream*, the number of its stream; *server*, the index in *servers* or `NO_SERVER`; *buffered*, True
    for a buffered send.
    """

    def __init__(self, program: Program) -> None:
        streams: dict[str, int] = {}
        servers: dict[str, int] = {}
        self.ops = len(program.ops)
        self.stream: Integers = program.column(lambda op: streams.setdefault(op.stream, len(streams)), np.int64)
        self.server: Integers = program.column(lambda op: _server(op, servers), np.int64)
        self.servers = list(servers)
        self.buffered: Flags = program.column(lambda op: isinstance(op, Send) and op.buffered, np.bool_)
        self._program, self._names = program, Names(program.templated)
        self._ops: list[Op] = list(program.distinct())
        self._place = program.templated.places

    def op(self, index: int) -> Op:
        """Return the op of that *index*, as it stands in its template."""
        return self._ops[int(self._place[index])]

    def awaited(self, op: int) -> list[int]:
        """Return the ops of other streams for which *op* waits, in order of `after`."""
        return self._names.awaited(op)

    @cached_property
    def dependencies(self) -> Dependencies:
        """All dependencies between streams."""
        return dependencies(self._program)


def _server(op: Op, servers: dict[str, int]) -> int:
    return NO_SERVER if op.at_server is None else servers.setdefault(op.at_server, len(servers))


class Spans:
    """The spans of a representative as arrays of one length, stream after stream, each in order of execution.

    *row*: the index of a span in the *columns*. *heads*: True for the first span of a stream. *delivery*: True for a
    receive that ended with the delivery of a buffered send, one of the communications *buffered*. *run*: the first span
    of the sequence on the stream without a pause longer than *instant* (s). The other arrays are those of the columns.
    """

    def __init__(self, columns: Columns, structure: Structure, buffered: Integers, instant: float) -> None:
        stream = structure.stream[columns.op]
        # of 16 bits, which numpy sorts in linear time
        self.row: Integers = np.argsort(stream.astype(np.int16), kind="stable")
        ordered = Columns(*(column[self.row] for column in columns))  # type: ignore[arg-type]
        self.op, self.step, self.communication = ordered.op, ordered.step, ordered.communication
        self.ready, self.begin, self.end = ordered.ready, ordered.begin, ordered.end
        self.structure = structure
        self.heads: Flags = np.diff(stream[self.row], prepend=-1) != 0
        self.delivery: Flags = (
            np.isin(self.communication, buffered) & (self.end > self.begin)
            if len(buffered)
            else np.zeros_like(self.heads)
        )
        begins = self.heads | self.delivery
        begins[1:] |= abs(self.begin[1:] - self.end[:-1]) > instant
        self.run: Integers = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))

    def index(self, step: int | Integers, op: int | Integers) -> Integers:
        """Which span is that of *op* in *step*."""
        found: Integers = self._index[step * self.structure.ops + op]
        return found

    def members(self, communication: int, likely: int | None = None) -> list[int]:
        """The spans that took part in the *communication* of that number; where one is *likely*, it is tried first."""
        if likely is not None and likely < len(self.op) and self.communication[likely] == communication:
            return [likely]
        order, numbers = self._by_communication
        first, after = np.searchsorted(numbers, (communication, communication + 1))
        found: list[int] = order[first:after].tolist()
        return found

    @cached_property
    def _by_communication(self) -> tuple[Integers, Integers]:
        order = np.argsort(self.communication, kind="stable")
        return order, self.communication[order]

    @property
    def steps(self) -> int:
        """How many training steps there are."""
        return len(self.op) // max(1, self.structure.ops)

    @cached_property
    def _index(self) -> Integers:
        index = np.empty(len(self.row), np.int64)
        index[self.step * self.structure.ops + self.op] = np.arange(len(self.row))
        return index
