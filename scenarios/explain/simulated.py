"""A simulated step in the form of a real trace, so that one code measures both."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from pathlib import Path

from scenarios.explain.piece import COPY, HOST, Call, Piece
from scenarios.explain.rank_trace import RankTrace
from scenarios.explain.steps import Step
from simulator.schedule import Collective, Compute, Copy, Delay, Op, Recv, Send
from simulator.schedule.mesh import family
from simulator.timeline import Timeline

PHASES = {"F": "forward", "B": "backward", "I": "backward", "W": "backward", "R": "backward", "O": "optimizer"}
"""The phase of a real kernel by that of an action; torch recomputes within the backward pass."""


def simulated(timeline: Timeline, ranks: Sequence[int]) -> list[RankTrace]:
    """Return the simulated traces of *ranks*. The wait of a communication is the time from ready to begin."""
    begin, end = timeline.window
    width = (end - begin) / timeline.steps_measured
    steps = tuple(Step(n, begin + n * width, begin + (n + 1) * width) for n in range(timeline.steps_measured))
    return [
        RankTrace(
            Path("simulated"), rank, len(timeline.gpu_ranks), "", True, tuple(_pieces(timeline, rank)), steps,
        )
        for rank in ranks
    ]  # fmt: skip


def _pieces(timeline: Timeline, rank: int) -> list[Piece]:
    pieces = []
    for span in timeline.spans(rank):
        op = span.op
        call = _call(timeline, rank, op)
        begin = span.ready if call is not None else span.begin
        pieces.append(
            Piece(
                op.name, _part(op, call), op.stream, begin, span.end, nan, op.name, op.layer or "", call=call,
                wait=span.begin - begin,
            )
        )  # fmt: skip
    return sorted(pieces, key=lambda piece: piece.begin)


def _part(op: Op, call: Call | None) -> str:
    if call is not None:
        return call.kind
    if isinstance(op, Copy):
        return HOST if op.on_host else COPY
    if isinstance(op, Delay) or (isinstance(op, Compute) and op.on == "host"):
        return HOST
    return PHASES.get(op.action.phase, "compute") if op.action else "compute"


def _call(timeline: Timeline, rank: int, op: Op) -> Call | None:
    if isinstance(op, Send | Recv):
        return Call("send" if isinstance(op, Send) else "recv", op.nbytes, family(op.over), 2)
    if not isinstance(op, Collective):
        return None
    place = timeline.schedule.mesh.axes[op.over].place(rank)
    ranks = len(timeline.schedule.mesh.axes[op.over].groups[place[0]]) if place else 1
    return Call(op.kind, op.nbytes, family(op.over), ranks)
