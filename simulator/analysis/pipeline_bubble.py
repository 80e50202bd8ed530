"""Why a pipeline's GPUs wait: the bubble of a step divided by cause.

For p stages that work w_s seconds in a step, with mean w and maximum w_max, and an order whose bubble is f of the step
where stages are equal and messages are free: let n = (p - 1)(1 - f)/f, for GPipe and 1F1B the number of micro-batches.
Fill and drain take (p - 1) w/n = w f/(1 - f). Stages that are not equal wait for the slowest, which adds
(1 - 1/n)(w_max - w): a flow shop of n equal jobs ends after the sum of one job on all machines and n - 1 more on the
slowest (Johnson 1954). From the end of the last backward pass of all ranks on, a rank that does nothing waits for the
optimizer: for the norm of all gradients, or for the updates of others. What remains is due to messages and to the
order: a rank waits while a message is sent between others, or an unequal stage breaks the pattern of the order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clustersim.simulator.analysis import metrics
from clustersim.simulator.analysis.memory import stages
from clustersim.simulator.analysis.timeline import Floats, Timeline
from clustersim.simulator.schedule.ops import Compute, Op


class Bubble(NamedTuple):
    """Seconds of the step time in which nothing runs, by cause, the mean over the GPU ranks; they sum to the bubble.

    *slowest* is the stage that works longest, *excess* its work above the mean of all stages, as a share of that.
    """

    fill_and_drain: float
    unequal_stages: float
    optimizer: float
    messages: float
    slowest: int
    excess: float


def explained(timeline: Timeline, fraction: float) -> Bubble | None:
    """Return the bubble of *timeline* by cause; *fraction*: of the step, in theory, for equal stages and free messages.

    None if spans are missing, or there is no work.
    """
    if timeline.totals is not None or not timeline.gpu_ranks:
        return None
    whole, tails = [timeline.window], _tails(timeline)
    ranks = {rank: same for rank, same in timeline.classes.items() if timeline.schedule.program(rank).on == "gpu"}
    counts = np.array([len(same) for same in ranks.values()], np.float64)
    within = np.array([_busy_and_idle(timeline, rank, whole) for rank in ranks])
    after = np.array([_busy_and_idle(timeline, rank, tails) for rank in ranks])
    busy, idle = (within - after).T / timeline.steps_measured
    waiting = float(np.average(after[:, 1], weights=counts)) / timeline.steps_measured
    stage = stages(timeline.schedule)
    work = _by_stage(busy, counts, np.array([stage[rank] for rank in ranks]))
    mean, most = float(work.mean()), float(work.max())
    if not mean:
        return None
    left = float(np.average(idle, weights=counts))
    fill = min(left, mean * fraction / (1 - fraction))
    per_unit = fraction / (1 - fraction) / (len(work) - 1) if len(work) > 1 else 0.0
    unequal = min(left - fill, max(0.0, 1 - per_unit) * (most - mean))
    return Bubble(fill, unequal, waiting, left - fill - unequal, int(work.argmax()), most / mean - 1)


def _by_stage(busy: Floats, counts: Floats, stage: Floats) -> Floats:
    """Return the mean of *busy* over the ranks of each stage; the ranks are *counts* times there."""
    total, ranks = np.bincount(stage, busy * counts), np.bincount(stage, counts)
    return np.asarray(total / ranks, np.float64)


def _busy_and_idle(timeline: Timeline, rank: int, windows: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the seconds of *windows* in which *rank* works, and in which nothing runs there.

    Transfers between stages that nothing hides are neither.
    """
    names = metrics.keys(timeline.schedule)
    parts = sum((metrics.parts_within(timeline, rank, window) for window in windows), np.zeros(len(names)))
    seconds = dict(zip(names, parts.tolist(), strict=True))
    idle, between = seconds["bubble"], seconds.get("exposed_pp", 0.0)
    return sum(seconds.values()) - idle - between, idle


def _tails(timeline: Timeline) -> list[tuple[float, float]]:
    """Return the interval of each measured step after the last forward or backward pass of all ranks.

    None for steps that overlap, in which no rank waits for the optimizers of all others.
    """
    schedule = timeline.schedule
    if schedule.batches > 1 or schedule.staggered:
        return []
    first, last = timeline.window
    passes, ends = np.zeros(schedule.steps), np.zeros(schedule.steps)
    for rank, own in timeline.columns.items():
        computes = schedule.program(rank).column(_is_pass, np.bool_)[own.op]
        np.maximum.at(passes, own.step[computes], own.end[computes])
        np.maximum.at(ends, own.step, own.end)
    pairs = zip(passes.tolist(), ends.tolist(), strict=True)
    return [(max(begin, first), min(end, last)) for begin, end in pairs if end > first and begin < last]


def _is_pass(op: Op) -> bool:
    """True if *op* computes a part of a forward or backward pass."""
    return isinstance(op, Compute) and op.action is not None and op.action.phase != "O"
