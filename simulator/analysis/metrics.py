"""Metrics of a timeline: breakdown of the step time, the pipeline's bubble by cause, FLOPs, bandwidths of collectives,
and percentiles of the step times of repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.simulator.analysis.intervals import ONE_INSTANT, partition
from clustersim.simulator.analysis.memory import stages
from clustersim.simulator.analysis.timeline import Floats, Integers, Timeline, Totals
from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.schedule.mesh import family
from clustersim.simulator.schedule.ops import Collective, Compute, Copy, Delay, Op, Recv, Send
from clustersim.simulator.schedule.schedule import Schedule

MODEL_PHASES = frozenset("FBIW")
"""The phases of the model's own FLOPs; R repeats some of them, O has none."""

BUS_FACTOR: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "gather": lambda ranks: (ranks - 1) / ranks,
    "scatter": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
    "reduce": lambda ranks: 1.0,
}
"""busbw / algbw by number of ranks: nccl-tests, doc/PERFORMANCE.md, and for gather and scatter its src/*.cu."""

SHOWN_PERCENTILES = (5, 50, 95)

TAIL, TAIL_FROM = 99, 100
"""A further percentile, and the number of values from which it is given; fewer do not determine it."""


def families(schedule: Schedule) -> tuple[str, ...]:
    """Return the families of the mesh's axes, inner axis first."""
    return tuple(dict.fromkeys(family(axis) for axis in schedule.mesh.axes))


def keys(schedule: Schedule) -> tuple[str, ...]:
    """Return the parts of a breakdown; a moment of several parts counts for the first of them.

    ``host`` is among them if the schedule has a `Delay`.
    """
    exposed = (f"exposed_{name}" for name in families(schedule))
    delayed = any(isinstance(op, Delay) for program in schedule.programs for op in program.distinct())
    return "compute", "recompute", "optimizer", *exposed, "copy", *(("host",) if delayed else ()), "bubble"


def breakdown(timeline: Timeline) -> dict[str, float]:
    """Return the seconds of the step time by part (see `rank_breakdown`), the mean over the GPU ranks.

    They sum to the step time; all are zero without a rank on a GPU.
    """
    schedule = timeline.schedule
    if timeline.totals is not None:
        return _from_totals(timeline, timeline.totals)
    kinds = [_kinds(schedule, number) for number in range(len(schedule.programs))]
    total, gpus = np.zeros(len(keys(schedule))), 0
    for rank, ranks in timeline.classes.items():
        if schedule.program(rank).on == "gpu":
            total += len(ranks) * _parts(timeline, rank, kinds[schedule.program_of[rank]], len(total) - 1)
            gpus += len(ranks)
    return dict(zip(keys(schedule), _rounded(total / max(1, gpus)).tolist(), strict=True))


def _rounded(seconds: Floats) -> Floats:
    """Return *seconds* by part with zero for those below `ONE_INSTANT` of their sum: differences of sums only."""
    return np.where(seconds <= ONE_INSTANT * seconds.sum(), 0.0, seconds)


def _from_totals(timeline: Timeline, totals: Totals) -> dict[str, float]:
    places = np.searchsorted(totals.ranks, timeline.representative[timeline.on_gpu])
    means = (
        totals.seconds[places].mean(axis=0) / timeline.steps_measured if len(places) else np.zeros(len(totals.parts))
    )
    return dict(zip(totals.parts, _rounded(means).tolist(), strict=True))


def rank_breakdown(timeline: Timeline, rank: int) -> dict[str, float]:
    """Return the seconds of the step time of *rank* by part; each moment counts once.

    ``compute``, ``recompute`` and ``optimizer``: a computation runs (of several the first of these);
    ``exposed_<axis>``: no computation runs, but a transfer of that axis (of several the inner axis); ``copy``: only a
    copy between GPU and host runs; ``host``: only a delay runs; ``bubble``: nothing runs, or only waits for partners.
    """
    schedule = timeline.schedule
    names = keys(schedule)
    parts = _parts(timeline, rank, _kinds(schedule, schedule.program_of[rank]), len(names) - 1)
    return dict(zip(names, _rounded(parts).tolist(), strict=True))


def bubble_fraction(parts: Mapping[str, float]) -> float:
    """Return the bubble's share of the step time, the sum of the breakdown *parts*."""
    total = sum(parts.values())
    return parts["bubble"] / total if total else 0.0


def part_of(op: Op) -> str:
    """Return the part of the breakdown to which *op* belongs while it runs."""
    match op:
        case Compute():
            return _part_of_phase(op)
        case Copy() if op.on_cores:
            return _part_of_phase(op)
        case Send() | Recv() | Collective():
            return f"exposed_{family(op.over)}"
        case Copy():
            return "copy"
        case Delay():
            return "host"
    raise TypeError(f"{type(op).__name__} is no kind of op")


def _part_of_phase(op: Op) -> str:
    phase = op.action.phase if op.action else ""
    return {"R": "recompute", "O": "optimizer"}.get(phase, "compute")


def _kinds(schedule: Schedule, program: int) -> Integers:
    """Return the index in `keys` of each op of the program of that number."""
    place = {name: number for number, name in enumerate(keys(schedule))}
    return schedule.programs[program].column(lambda op: place[part_of(op)], np.int64)


def _parts(timeline: Timeline, rank: int, kinds: Integers, bubble: int) -> Floats:
    """Return the seconds of a step of *rank* for each of `keys`; *bubble*: the last index; *kinds*: that of each op."""
    return _partition(timeline, rank, kinds, bubble, timeline.window) / timeline.steps_measured


def _partition(timeline: Timeline, rank: int, kinds: Integers, bubble: int, window: tuple[float, float]) -> Floats:
    op, _, _, begin, end, _ = timeline.of(rank)
    return partition(begin, end, kinds[op], bubble, window)


def parts_within(timeline: Timeline, rank: int, window: tuple[float, float]) -> Floats:
    """Return the seconds of *window* (s) on *rank* for each of `keys`."""
    schedule = timeline.schedule
    kinds = _kinds(schedule, schedule.program_of[rank])
    return _partition(timeline, rank, kinds, len(keys(schedule)) - 1, window)


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


def bubble_causes(timeline: Timeline, fraction: float) -> Bubble | None:
    """Return why the GPUs of a pipeline wait: the bubble of *timeline* by cause.

    *fraction*: the bubble of the order as a share f of the step, in theory, for equal stages and free messages. None if
    spans are missing, or there is no work.

    For p stages that work w_s seconds in a step, with mean w and maximum w_max, let n = (p - 1)(1 - f)/f, for GPipe and
    1F1B the number of micro-batches. Fill and drain take (p - 1) w/n = w f/(1 - f). Stages that are not equal wait for
    the slowest, which adds (1 - 1/n)(w_max - w): a flow shop of n equal jobs ends after the sum of one job on all
    machines and n - 1 more on the slowest (Johnson 1954). From the end of the last backward pass of all ranks on, a
    rank that does nothing waits for the optimizer: for the norm of all gradients, or for the updates of others. What
    remains is due to messages and to the order: a rank waits while a message is sent between others, or an unequal
    stage breaks the pattern of the order.
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
    names = keys(timeline.schedule)
    parts = sum((parts_within(timeline, rank, window) for window in windows), np.zeros(len(names)))
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


def model_flops(schedule: Schedule) -> float:
    """Return the model's FLOPs of matrix products in one training step on all GPUs: phases F, B, I, W.

    Products that several ranks compute alike count once.
    """
    return _flops(schedule, MODEL_PHASES, lambda kernel: kernel.flops / kernel.copies)


def hardware_flops(schedule: Schedule) -> float:
    """Return the executed FLOPs of matrix products in one training step on all GPUs, with recomputation."""
    return _flops(schedule, MODEL_PHASES | {"R"}, lambda kernel: kernel.flops)


def _flops(schedule: Schedule, phases: frozenset[str], counted: Callable[[Kernel], float]) -> float:
    total = 0.0
    for number, program in enumerate(schedule.programs):
        if program.on == "gpu":
            flops = sum(times * sum(_op_flops(op, phases, counted) for op in ops) for ops, times in program.templates())
            total += len(schedule.ranks_of(number)) * flops
    return total / schedule.batches


def _op_flops(op: Op, phases: frozenset[str], counted: Callable[[Kernel], float]) -> float:
    counts = isinstance(op, Compute) and op.on == "gpu" and op.action and op.action.phase in phases
    return sum(map(counted, op.kernels)) if counts and isinstance(op, Compute) else 0.0


def flops_per_gpu(timeline: Timeline) -> tuple[float, float]:
    """Return (model, hardware) FLOP/s of one GPU in use, the mean over the step."""
    available = len(timeline.gpu_ranks) * timeline.step_time
    if not available:
        return 0.0, 0.0
    return model_flops(timeline.schedule) / available, hardware_flops(timeline.schedule) / available


def algbw(nbytes: float, seconds: float) -> float:
    """Return nccl-tests' algorithm bandwidth, bytes/s: *nbytes* of the full vector over *seconds*; 0 for no time."""
    return nbytes / seconds if seconds else 0.0


def busbw(kind: str, nbytes: float, ranks: int, seconds: float) -> float:
    """Return nccl-tests' bus bandwidth, bytes/s: the rate of each link if the algorithm were optimal.

    >>> busbw("all_reduce", 8e9, 8, 1.0)
    14000000000.0
    """
    return algbw(nbytes, seconds) * BUS_FACTOR[kind](ranks)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the percentiles of *values* by name, by linear interpolation.

    >>> percentiles([1.0, 2.0, 3.0])
    {'p5': 1.1, 'p50': 2.0, 'p95': 2.9}
    """
    shown = (*SHOWN_PERCENTILES, TAIL) if len(values) >= TAIL_FROM else SHOWN_PERCENTILES
    return {f"p{one}": float(value) for one, value in zip(shown, np.percentile(values, shown), strict=True)}
