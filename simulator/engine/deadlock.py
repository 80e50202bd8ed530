"""Deadlock: streams have not finished, and no event is left. The error shows the streams that wait in a circle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.engine.outcome import Waiting
from simulator.errors import DeadlockError
from simulator.hashing import Indices
from simulator.schedule import Collective, Recv, Schedule, Send
from simulator.schedule.matching import Matching

if TYPE_CHECKING:
    import networkx as nx

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
    matching = Matching(schedule)
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
