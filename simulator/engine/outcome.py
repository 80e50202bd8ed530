"""An outcome is the output of an engine: the spans of the representatives and the use of the network. In a deadlock
streams have not finished, and no event is left; its error shows the streams that wait in a circle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from clustersim.simulator.analysis.timeline import Columns, Floats, RateIntervals, Totals
from clustersim.simulator.engine.setup import Communication
from clustersim.simulator.hardware.hashing import Indices
from clustersim.simulator.network.plan import Flow
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import DeadlockError
from clustersim.simulator.schedule.matching import Matching
from clustersim.simulator.schedule.ops import Collective, Op, Recv, Send
from clustersim.simulator.schedule.schedule import Schedule

if TYPE_CHECKING:
    import networkx as nx


class Executed(NamedTuple):
    """Communications of one *name* with the same request as *op* have begun *times* times.

    *op* is an op of a template, placeholders kept. The plan of each communication is ``classes.plan(name, op)``.
    """

    name: Communication
    op: Op
    times: int


class Waiting(NamedTuple):
    """An unfinished *stream* of *rank*; its head is the op of index *op* in training step *step*.

    It waits for the op of index *awaited* of its own rank. If that is None, it waits for partners of its communication;
    *arrived* are the ranks that have arrived there.
    """

    rank: int
    stream: str
    op: int
    step: int
    awaited: int | None
    arrived: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What happened in one simulation.

    *columns*: by representative the spans of all its ops, in order of the program, step after step: op ``i`` of step
    ``s`` has the index ``s * len(program) + i``. A time that is not known, since the op has not begun or ended, is NaN.
    *flows* are numbered from 0. *flow_bytes*, of shape ``(flows,)``: the bytes that each transfer of a flow carried in
    all. *intervals*: the rates of flows over time. *communications*: how often each was executed. *waiting* is empty
    unless the schedule deadlocked. *totals*: None if all spans were kept.
    """

    columns: Mapping[int, Columns]
    flows: tuple[Flow, ...]
    flow_bytes: Floats
    intervals: RateIntervals
    communications: tuple[Executed, ...]
    waiting: tuple[Waiting, ...] = ()
    totals: Totals | None = None


_Place = tuple[int, str]
"""A rank and one of its streams."""


def deadlock(schedule: Schedule, representative: Indices, waiting: Sequence[Waiting]) -> DeadlockError | None:
    """The error with the streams that wait for each other; None if no stream is *waiting*.

    *representative*: the representative of each rank.
    """
    if not waiting:
        return None
    import networkx as nx

    heads = {(head.rank, head.stream): head for head in waiting}
    matching = schedule.matching
    waits: nx.DiGraph[_Place] = nx.DiGraph()
    for place, head in heads.items():
        waits.add_edges_from((place, other) for other in _awaited(schedule, matching, representative, head))
    try:
        circle = [place for place, _ in nx.find_cycle(waits)]
        title = f"deadlock: {len({rank for rank, _ in heads})} ranks have not finished; in a circle"
    except nx.NetworkXNoCycle:
        circle = list(heads)[:8]
        title = "deadlock: partners have finished without taking part"
    lines = [_line(schedule, place, heads.get(place), waits) for place in circle]
    return DeadlockError("\n".join([title, *lines]))


def _line(schedule: Schedule, place: _Place, head: Waiting | None, waits: nx.DiGraph[_Place]) -> str:
    rank, stream = place
    if head is None:
        return f"  rank {rank} [{stream}] has finished"
    others = sorted(waits.successors(place)) if place in waits else []
    shown = ", ".join(f"rank {other} [{on}]" for other, on in others[:4]) + (" ..." if len(others) > 4 else "")
    ops = schedule.program(rank).ops
    op = ops[head.op]
    why = f" to end {ops[head.awaited].name}" if head.awaited is not None else ""
    return f"  rank {rank} [{stream}] {op.name}: {op._what()}, step {head.step}, waits for {shown}{why}"


def _awaited(schedule: Schedule, matching: Matching, representative: Indices, head: Waiting) -> Sequence[_Place]:
    """The streams of representatives that the stream of *head* waits for."""
    ops = schedule.program(head.rank).ops
    if head.awaited is not None:
        return [(head.rank, ops[head.awaited].stream)]
    op = ops[head.op]
    if not isinstance(op, Collective | Send | Recv):
        return []
    group = _group(schedule, op, head.rank)
    if isinstance(op, Collective):
        others = dict.fromkeys(int(representative[other]) for other in group)
        return [(other, head.stream) for other in others if other not in head.arrived]
    peer = group[op.peer]
    return [(int(representative[peer]), _partner_stream(schedule, matching, head, peer))]


def _group(schedule: Schedule, op: Collective | Send | Recv, rank: int) -> tuple[int, ...]:
    axis = schedule.mesh.axes[op.over]
    place = axis.place(rank)
    return axis.groups[place[0]] if place else ()


def _partner_stream(schedule: Schedule, matching: Matching, head: Waiting, peer: int) -> str:
    """The stream of *peer* that has the matching send or receive of the message at *head*."""
    op = schedule.program(head.rank).ops[head.op]
    assert isinstance(op, Send | Recv)
    mine = _group(schedule, op, head.rank).index(head.rank)
    number, key = schedule.program_of[peer], matching.key[schedule.program_of[head.rank]][head.op]
    partners = [schedule.programs[number].ops[index] for index in (matching.key[number] == key).nonzero()[0].tolist()]
    wanted = Recv if isinstance(op, Send) else Send
    return next((other.stream for other in partners if isinstance(other, wanted) and other.peer == mine), "compute")
