"""A lower bound of the step time from the order of a pipeline: the longest path through its passes.

A pass follows the one before it on its rank, and that of its micro-batch on the neighbouring stage; it takes as long as
its layers alone, and messages take no time. So the time in which ranks wait for each other counts, which the
computation of one rank (`lower_bounds.least_seconds`) leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.build.schedule import pipeline_order
from clustersim.scenarios.search.estimator import Estimator
from clustersim.scenarios.search.lower_bounds import (
    ALMOST,
    StageSeconds,
    least_seconds,
    seconds_after,
    stage_seconds,
)
from clustersim.simulator.schedule.pipeline_order import Order, needs, slots


def seconds_in_order(estimator: Estimator, variant: BuiltScenario) -> float:
    """Return a lower bound of the estimated step time: the longest path through the order, or `least_seconds`.

    Of many micro-batches the path leads through as many as the estimate executes. The others take at least the
    computation of the busiest rank. Raises `ScenarioError` if there is no such order.
    """
    least, specification, derived = least_seconds(estimator, variant), variant.specification, variant.derived
    pipeline, training = estimator.pipeline(specification), specification.training
    assert training is not None
    several = training.steps > 1 or specification.parallelism.data.period(training.steps) is not None
    if specification.parallelism.pp == 1 or pipeline.asynchronous or derived.by_stage or several:
        return least
    executed = (estimator.few(variant) or (derived.micro_batches,))[-1]

    def passes() -> list[Pass]:
        order = pipeline_order(specification, replace(derived, micro_batches=executed), variant.document)
        return in_sequence(order)

    key = id(pipeline), specification.parallelism.moe_overlap, executed
    seconds = stage_seconds(estimator, variant)
    path = longest_path(estimator.once("passes", key, passes), seconds)
    busiest = max(sum(seconds.totals[stage] for stage in stages) for stages in pipeline.stages)
    path += (derived.micro_batches - executed) * busiest
    return max(least, (path + seconds_after(estimator, variant)) * ALMOST)


class Pass(NamedTuple):
    """A pass of *phase* on *stage*, after the passes of these numbers: the one *before* it on its rank (-1: none), and
    *others* on other ranks."""

    phase: str
    stage: int
    before: int
    others: Sequence[int]


def in_sequence(order: Order) -> list[Pass]:
    """Return the passes of *order* in a sequence in which each follows those that it waits for.

    >>> in_sequence(Order.parse("0F0,0B0\\n1F0,1B0"))[1]
    Pass(phase='F', stage=1, before=-1, others=(0,))
    """
    begun = sorted((slot.begin, rank, slot.action) for rank, row in enumerate(slots(order)) for slot in row)
    number = {action: place for place, (_, _, action) in enumerate(begun)}
    rank_of = {action: rank for _, rank, action in begun}
    latest = dict.fromkeys(range(len(order.rows)), -1)
    found = []
    for place, (_, rank, action) in enumerate(begun):
        others = (other for other in needs(action, number) if rank_of[other] != rank)
        found.append(Pass(action.phase, action.stage, latest[rank], tuple(number[other] for other in others)))
        latest[rank] = place
    return found


def longest_path(passes: Sequence[Pass], seconds: StageSeconds) -> float:
    """Return when the last of *passes* ends. What a backward pass computes again waits for no other rank.

    >>> passes = in_sequence(Order.parse("0F0,0B0\\n1F0,1B0"))
    >>> longest_path(passes, StageSeconds({"F": [1, 2], "B": [2, 4]}, [1, 2], [4, 8]))
    11
    """
    durations = {"R": seconds.phases["F"], **seconds.phases}
    ends: list[float] = []
    for phase, stage, before, others in passes:
        end = ends[before] if before >= 0 else 0.0
        if phase in "BI":
            end += seconds.again[stage]
        for other in others:
            end = max(end, ends[other])
        ends.append(end + durations[phase][stage])
    return max(ends, default=0.0)
