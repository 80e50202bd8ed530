"""Facts of a pipeline order that do not depend on the number of micro-batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field

from clustersim.scenarios.specification.parallelism import ParallelismSection
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.pipeline_order import Action, Order

STEADY = 2
"""Micro-batches for each pipeline rank with which an order has the most in flight: 1F1B with 1, interleaved with
1 + 1/v, ZB-H2 with less than 2."""


@dataclass(frozen=True)
class PipelineFacts:
    """What of a pipeline order does not depend on the number of micro-batches.

    *stages*: those of each rank, each with the part of the micro-batches that the rank has of it: all of them, but in
    orders with several ranks for a stage. *in_flight*: the most forward passes of each rank without the end of their
    backward passes. *phases* of a micro-batch without recomputation, the shortest ones if micro-batches differ;
    *splits*: backward passes are divided into I and W.
    *grows*: the more micro-batches, the more are in flight. *asynchronous*: it updates weights within a batch. *kept*:
    by stage that the order recomputes, how many micro-batches are not recomputed. *least*: the micro-batches for each
    pipeline rank that it needs, 1 or `STEADY`.
    """

    stages: Sequence[Mapping[int, float]]
    in_flight: Sequence[int]
    phases: str
    splits: bool
    grows: bool
    asynchronous: bool = False
    kept: Mapping[int, int] = field(default_factory=dict)
    least: int = STEADY


def pipeline_facts(parallelism: ParallelismSection, recompute: bool) -> PipelineFacts:
    """Return what the order of *parallelism* is like; *recompute*: it recomputes whole stages."""

    def order(each: int) -> Order:
        return parallelism.order(each * parallelism.pp, recompute=recompute)

    try:
        few, more = order(STEADY), order(STEADY + 1)
    except ScheduleError:
        # an order for another number of micro-batches; the schedule will tell
        return PipelineFacts([{0: 1.0}], [0], "FB", False, True)
    least = STEADY
    with suppress(ScheduleError):
        order(1)
        least = 1
    phases = {action.phase for row in few.rows for action in row} & set("FBIW")
    return PipelineFacts(
        [_parts(row, STEADY * parallelism.pp) for row in few.rows],
        [_in_flight(row) for row in few.rows],
        "BF" if "B" in phases else "".join(sorted(phases)),
        "I" in phases,
        max(map(_in_flight, more.rows)) > max(map(_in_flight, few.rows)),
        few.asynchronous,
        dict(_kept(few).items() & _kept(more).items()),
        least,
    )


def _parts(row: Sequence[Action], micro_batches: int) -> dict[int, float]:
    """Return the part of the *micro_batches* whose forward passes *row* has, by stage, ascending."""
    forward = Counter(action.stage for action in row if action.phase == "F")
    return {stage: count / micro_batches for stage, count in sorted(forward.items())}


def _kept(order: Order) -> dict[int, int]:
    """Return by stage that *order* recomputes how many forward passes are not run again."""
    forward, again = (Counter(a.stage for row in order.rows for a in row if a.phase == phase) for phase in "FR")
    return {stage: forward[stage] - count for stage, count in again.items()}


def _in_flight(row: Sequence[Action]) -> int:
    most = running = 0
    for action in row:
        running += (action.phase == "F") - (action.phase in "BI")
        most = max(most, running)
    return most
