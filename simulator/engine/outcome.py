"""An outcome is the output of an engine: the spans of the representatives and the use of the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from simulator.engine.rank_classes import Communication
from simulator.network.plan import Flow
from simulator.schedule import Op
from simulator.timeline import Columns, Floats, RateIntervals, Totals


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
