"""The cause of a span is the span whose end let it begin; with the spans of a representative, stream after stream,
from which causes are derived.

An op is ready when its predecessors on its rank have ended: the op before it on its stream, over training steps too,
and the ops that it names in `after`. A communication begins when the last of its partners is ready, an op at a server
when the server is idle. The cause is the latest of these predecessors, or the span that left the server. If several
end in one instant, the cause is the one on the span's own stream, else the first in order of `after`, else that of the
partner of lowest rank.

A receive is posted when the bytes of the receive before it on its stream have been sent. If these bytes are still on
their way, the send of them made the receive ready.

A receive that ends with the delivery of a buffered send has the cause of that send, even if the receive began later.

Engines do not write causes. They are derived from the columns, span by span, because a critical path needs few of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from clustersim.simulator.analysis.intervals import ONE_INSTANT
from clustersim.simulator.analysis.timeline import NO_COMMUNICATION, Columns, Floats, Integers, Timeline
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.schedule.dependencies import Dependencies, dependencies
from clustersim.simulator.schedule.ops import Collective, Op, Recv, Send
from clustersim.simulator.schedule.program import Program

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
        self._program = program
        self._ops: list[Op] = list(program.distinct())
        self._place = program.templated.places

    def op(self, index: int) -> Op:
        """Return the op of that *index*, as it stands in its template."""
        return self._ops[int(self._place[index])]

    def awaited(self, op: int) -> list[int]:
        """Return the ops of other streams for which *op* waits, in order of `after`."""
        begin, end = self.dependencies.waiting.searchsorted((op, op + 1)).tolist()
        return self.dependencies.awaited[begin:end].tolist()  # type: ignore[no-any-return]

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


class SpanPlace(NamedTuple):
    """The span number *span*, in the order of `Spans`, of *rank*."""

    rank: int
    span: int


class Service(NamedTuple):
    """The spans at one server that take time, in order of time, as arrays of one length."""

    begin: Floats
    end: Floats
    representative: Integers
    span: Integers


class Causes:
    """The causes of the spans of *timeline*, whose ranks may be folded; a `SpanPlace` has a rank of the schedule.

    *instant* (s): moments that differ by no more are one. Raises `SimulatorError` if spans of a rank are missing.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.instant = ONE_INSTANT * timeline.makespan
        self._representative: list[int] = timeline.representative.tolist()
        self._structures: dict[int, Structure] = {}
        self._spans: dict[int, Spans] = {}
        for rank in timeline.distinct_ranks:
            count = len(timeline.schedule.program(rank).ops) * timeline.schedule.steps
            kept = len(timeline.columns[rank].op) if rank in timeline.columns else 0
            if kept != count:
                raise SimulatorError(
                    f"no critical path: it needs the spans of all ranks, but of rank {rank} the timeline has {kept:,} "
                    f"of {count:,}"
                )

    def structure(self, rank: int) -> Structure:
        """Return the structure of the program of *rank*, common to its ranks."""
        number = self.timeline.schedule.program_of[rank]
        if number not in self._structures:
            self._structures[number] = Structure(self.timeline.schedule.programs[number])
        return self._structures[number]

    def spans(self, rank: int) -> Spans:
        """Return the spans of *rank*."""
        representative = self._representative[rank]
        if representative not in self._spans:
            columns = self.timeline.columns[representative]
            self._spans[representative] = Spans(columns, self.structure(rank), self.buffered, self.instant)
        return self._spans[representative]

    def last(self) -> SpanPlace | None:
        """Return the span that ends last; of several the last in the program of the lowest rank; None without spans."""
        latest = self.timeline.makespan - self.instant
        for rank in self.timeline.distinct_ranks:
            if len(self.timeline.columns[rank].end) and self.timeline.columns[rank].end.max() >= latest:
                own = self.spans(rank)
                ending = np.flatnonzero(own.end >= latest)
                order = np.lexsort((own.op[ending], own.step[ending]))
                return SpanPlace(rank, int(ending[order[-1]]))
        return None

    def first_of_run(self, place: SpanPlace) -> SpanPlace:
        """Return the first of the spans on the stream up to *place* of which each is the cause of the next."""
        return SpanPlace(place.rank, int(self.spans(place.rank).run[place.span]))

    def cause(self, place: SpanPlace) -> SpanPlace | None:
        """Return the cause of the span at *place*; None if it begins at 0 and has no predecessor on its rank.

        Raises `SimulatorError` if nothing ends when the span begins: the timeline was not simulated.
        """
        own, at = self.spans(place.rank), place.span
        if own.delivery[at]:
            return self._what_made_ready(self._last_partner(place))
        if own.begin[at] - own.ready[at] <= self.instant:
            return self._what_made_ready(place)
        if own.communication[at] == NO_COMMUNICATION:
            return self._what_left_server(place)
        partner = self._last_partner(place)
        if own.begin[at] - self.spans(partner.rank).ready[partner.span] > self.instant:
            self._fail(place)
        return self._what_made_ready(partner)

    def _what_made_ready(self, place: SpanPlace) -> SpanPlace | None:
        """Return the predecessor on the same rank whose end made the op at *place* ready."""
        own, at = self.spans(place.rank), place.span
        latest = own.ready[at] - self.instant
        if not own.heads[at] and own.end[at - 1] >= latest:
            before = SpanPlace(place.rank, at - 1)
            on_its_way = own.end[at - 1] > own.ready[at] + self.instant
            return self._last_partner(before) if on_its_way else before
        awaited = [int(own.index(own.step[at], op)) for op in own.structure.awaited(int(own.op[at]))]
        for other in awaited:
            if own.end[other] >= latest:
                return SpanPlace(place.rank, other)
        if latest > 0.0 or not own.heads[at] or awaited:
            self._fail(place)
        return None

    def _last_partner(self, place: SpanPlace) -> SpanPlace:
        """Return the partner in the communication at *place* that was ready last; of several that of lowest rank."""
        partners = self._partners(place)
        if not partners:
            self._fail(place)
        ready = [float(self.spans(partner.rank).ready[partner.span]) for partner in partners]
        latest = max(ready) - self.instant
        return next(partner for partner, moment in zip(partners, ready, strict=True) if moment >= latest)

    def _partners(self, place: SpanPlace) -> list[SpanPlace]:
        """Return the partners in the communication at *place* by rank; of equal ones only that of the lowest rank."""
        own = self.spans(place.rank)
        op, number = own.structure.op(int(own.op[place.span])), int(own.communication[place.span])
        if not isinstance(op, Collective | Send | Recv):
            return []
        axis = self.timeline.schedule.mesh.axes[op.over]
        at = axis.place(place.rank)
        assert at is not None
        group = axis.groups[at[0]]
        ranks = group if isinstance(op, Collective) else (group[op.peer],)
        lowest = {self._representative[rank]: rank for rank in sorted(ranks, reverse=True)}
        found: list[SpanPlace] = []
        for rank in sorted(lowest.values()):
            spans = self.spans(rank)
            if spans is own:
                found += [SpanPlace(rank, span) for span in own.members(number) if span != place.span]
            else:
                found += [SpanPlace(rank, span) for span in spans.members(number, place.span)]
        return found

    def _what_left_server(self, place: SpanPlace) -> SpanPlace:
        """Return the span at the same server whose end let the span at *place* begin."""
        own, at = self.spans(place.rank), place.span
        server = own.structure.server[own.op[at]]
        if server == NO_SERVER:
            self._fail(place)
        service = self.services[own.structure.servers[server]]
        before = int(np.searchsorted(service.begin, own.begin[at])) - 1
        if before < 0 or service.end[before] < own.begin[at] - self.instant:
            self._fail(place)
        return SpanPlace(int(service.representative[before]), int(service.span[before]))

    @cached_property
    def buffered(self) -> Integers:
        """The numbers of the communications of buffered sends."""
        found = [np.zeros(0, np.int64)]
        for rank, own in self.timeline.columns.items():
            buffered = self.structure(rank).buffered
            if buffered.any():
                found.append(own.communication[buffered[own.op]])
        return np.concatenate(found)

    @cached_property
    def services(self) -> Mapping[str, Service]:
        """The spans at each server, by its name."""
        rows: defaultdict[str, list[tuple[float, float, int, int]]] = defaultdict(list)
        for rank in self.timeline.columns:
            structure = self.structure(rank)
            for number, name in enumerate(structure.servers):
                own = self.spans(rank)
                at = np.flatnonzero((structure.server[own.op] == number) & (own.end > own.begin)).tolist()
                rows[name] += [(float(own.begin[span]), float(own.end[span]), rank, span) for span in at]
        found = {}
        for name, served in rows.items():
            begin, end, ranks, spans = zip(*sorted(served), strict=True) if served else ((),) * 4
            moments = np.array(begin, np.float64), np.array(end, np.float64)
            found[name] = Service(*moments, np.array(ranks, np.int64), np.array(spans, np.int64))
        return found

    def _fail(self, place: SpanPlace) -> NoReturn:
        own, at = self.spans(place.rank), place.span
        name = self.timeline.schedule.program(place.rank).ops[int(own.op[at])].name
        raise SimulatorError(
            f"no critical path: nothing ends at {own.begin[at]:g} s, when {name} of rank {place.rank} begins; "
            "causes are known of simulated timelines alone"
        )
