"""An outcome is what an engine found: the spans of the representatives and the use of the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from simulator.engine.rank_classes import Communication
from simulator.network.plan import Flow
from simulator.schedule import Op
from simulator.timeline import Columns, Floats, RateIntervals, Totals


class Executed(NamedTuple):
    """The communications of one *name* that ask what *op* asks have begun *times* times.

    *op* stands as the template writes it. The plan of each is ``classes.plan(name, op)``.
    """

    name: Communication
    op: Op
    times: int


class Waiting(NamedTuple):
    """An unfinished *stream* of *rank*, with the op of index *op* of training step *step* at its head.

    It waits for the op of index *awaited* of its own rank; or, where that is None, for the partners of its
    communication that are not among the ranks that have *arrived*.
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
    ``s`` stands at ``s * len(program) + i``. An op that has not ended has a NaN for each time that it lacks. *flows*
    are numbered from 0: *flow_bytes*, of shape ``(flows,)``, are the bytes that each transfer of a flow carried in
    all, and *intervals* the rates of flows over time, by these numbers. *communications* counts what was executed.
    *waiting* is empty unless the schedule deadlocked. *totals* are there where not all spans were kept.
    """

    columns: Mapping[int, Columns]
    flows: tuple[Flow, ...]
    flow_bytes: Floats
    intervals: RateIntervals
    communications: tuple[Executed, ...]
    waiting: tuple[Waiting, ...] = ()
    totals: Totals | None = None
