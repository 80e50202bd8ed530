"""Metrics of a timeline: breakdown of the step time, FLOPs, bandwidths of collectives, and percentiles of the step
times of repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from clustersim.simulator.analysis.intervals import ONE_INSTANT, partition
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
    places = np.searchsorted(totals.ranks, timeline.representative[list(timeline.gpu_ranks)])
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


SHOWN_PERCENTILES = (5, 50, 95)

TAIL, TAIL_FROM = 99, 100
"""A further percentile, and the number of values from which it is given; fewer do not determine it."""


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the percentiles of *values* by name, by linear interpolation.

    >>> percentiles([1.0, 2.0, 3.0])
    {'p5': 1.1, 'p50': 2.0, 'p95': 2.9}
    """
    shown = (*SHOWN_PERCENTILES, TAIL) if len(values) >= TAIL_FROM else SHOWN_PERCENTILES
    return {f"p{one}": float(value) for one, value in zip(shown, np.percentile(values, shown), strict=True)}
