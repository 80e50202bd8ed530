"""When nothing more can happen and ranks have not finished, they wait for one another: the circle tells why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simulator.engine.issue import Turn
from simulator.engine.rank import Head, Rank
from simulator.errors import DeadlockError
from simulator.schedule import Collective, Op, Program, Recv, Schedule, Send

if TYPE_CHECKING:
    import networkx as nx

_Place = tuple[int, str]
"""A rank and one of its streams."""


def deadlock(schedule: Schedule, ranks: Mapping[int, Rank], stands_for: Sequence[int]) -> DeadlockError | None:
    """The error that says who waits for whom; None if every rank has finished.

    *stands_for*: by rank, the one of *ranks* that is simulated for it.
    """
    heads = {(rank.number, head.stream): head for rank in ranks.values() for head in rank.heads if head.turn}
    if not heads:
        return None
    import networkx as nx

    waits: nx.DiGraph[_Place] = nx.DiGraph()
    for place, head in heads.items():
        awaited = _awaited(schedule, place, head)
        waits.add_edges_from((place, (stands_for[other], stream)) for other, stream in awaited)
    try:
        circle = [place for place, _ in nx.find_cycle(waits)]
        title = f"deadlock: {len({rank for rank, _ in heads})} ranks have not finished; in a circle"
    except nx.NetworkXNoCycle:
        circle = list(heads)[:8]
        title = "deadlock: partners have finished without coming"
    lines = [_line(schedule, place, heads.get(place), waits) for place in circle]
    return DeadlockError("\n".join([title, *lines]))


def _line(schedule: Schedule, place: _Place, head: Head | None, waits: nx.DiGraph[_Place]) -> str:
    rank, stream = place
    if head is None or head.turn is None:
        return f"  rank {rank} [{stream}] has finished"
    others = sorted(waits.successors(place)) if place in waits else []
    shown = ", ".join(f"rank {other} [{on}]" for other, on in others[:4]) + (" ..." if len(others) > 4 else "")
    program = schedule.program(rank)
    op = _op(program, head.turn)
    why = f" to end {program.ops[head.awaits].name}" if head.awaits is not None else ""
    return f"  rank {rank} [{stream}] {op.name}: {op._what()}, step {head.step}, waits for {shown}{why}"


def _op(program: Program, turn: Turn) -> Op:
    """What others are waited for with: a tie, or the first op."""
    run = turn.run
    place = run.template.index(run.tie) if run.tie is not None else run.ops[0]
    return program.ops[turn.first + place]


def _awaited(schedule: Schedule, place: _Place, head: Head) -> Sequence[_Place]:
    rank, stream = place
    program = schedule.program(rank)
    if head.awaits is not None:
        return [(rank, program.ops[head.awaits].stream)]
    if head.turn is None or head.came is None:
        return []
    op = _op(program, head.turn)
    if isinstance(op, Collective):
        group = _group(schedule, op, rank)
        return [(other, stream) for other in group if other not in head.came]
    if isinstance(op, Send | Recv):
        peer = _group(schedule, op, rank)[op.peer]
        return [(peer, _partner_stream(schedule.program(peer), op))]
    return []


def _group(schedule: Schedule, op: Collective | Send | Recv, rank: int) -> tuple[int, ...]:
    axis = schedule.mesh.axes[op.over]
    place = axis.place(rank)
    return axis.groups[place[0]] if place else ()


def _partner_stream(program: Program, op: Op) -> str:
    wanted = Recv if isinstance(op, Send) else Send
    matching = (other.stream for other in program.ops if isinstance(other, wanted) and other.action == op.action)
    return next(matching, "compute")
