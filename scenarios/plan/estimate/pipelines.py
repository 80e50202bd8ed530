"""Facts of a pipeline order that do not depend on the number of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scenarios.specification.parallelism import ParallelismSection
from simulator.errors import ScheduleError
from simulator.schedule.order import Action

STEADY = 2
"""Micro-batches for each pipeline rank with which an order reaches its steady state: 1F1B after 1, interleaved after
1 + 1/v."""


@dataclass(frozen=True)
class PipelineFacts:
    """What of a pipeline order does not depend on the number of micro-batches.

    *stages*: those of each rank. *in_flight*: the most forward passes of each rank without the end of their backward
    passes. *phases* of a micro-batch; *splits*: backward passes are divided into I and W. *grows*: the more
    micro-batches, the more are in flight. *asynchronous*: it updates weights within a batch.
    """

    stages: Sequence[Sequence[int]]
    in_flight: Sequence[int]
    phases: str
    splits: bool
    grows: bool
    asynchronous: bool = False


def pipeline_facts(parallelism: ParallelismSection, recompute: bool) -> PipelineFacts:
    """Return what the order of *parallelism* is like; *recompute*: it recomputes whole stages."""
    try:
        few, more = (parallelism.order(n * parallelism.pp, recompute=recompute) for n in (STEADY, STEADY + 1))
    except ScheduleError:
        # an order for another number of micro-batches; the schedule will tell
        return PipelineFacts([[0]], [0], "FB", False, True)
    phases = {action.phase for row in few.rows for action in row} & set("FBIWR")
    return PipelineFacts(
        [sorted({action.stage for action in row}) for row in few.rows],
        [_in_flight(row) for row in few.rows],
        "".join(sorted(phases)).replace("R", "F"),
        "I" in phases,
        max(map(_in_flight, more.rows)) > max(map(_in_flight, few.rows)),
        few.asynchronous,
    )


def _in_flight(row: Sequence[Action]) -> int:
    most = running = 0
    for action in row:
        running += (action.phase == "F") - (action.phase in "BI")
        most = max(most, running)
    return most
