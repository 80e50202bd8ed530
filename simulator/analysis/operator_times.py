"""Where computing time goes: by layer, operator, elementary operation and phase, and by what bounds each of them.

The time of an op is divided among its kernels. The op takes (G^q + H^q)^(1/q), G being the sum of the times of its
kernels on the GPU and H that of their launches (`simulator.hardware.accelerator.smooth_maximum`). This function is
homogeneous, so the op's time is G dT/dG + H dT/dH (Euler), and each kernel has its share of either term. Jitter, a slow
GPU, or communication beside it stretch all kernels of an op alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from clustersim.simulator.analysis.timeline import Columns, Floats, Timeline
from clustersim.simulator.hardware.accelerator import Accelerator, Software, smooth_maximum
from clustersim.simulator.hardware.kernel import Kernel, Operation
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.schedule.ops import Compute, Op

BOUNDS = ("compute", "memory", "launch", "given")
"""What bounds a kernel: arithmetic, bytes to move, or the host that launches it. A measured duration is *given*."""

PHASES = {"F": "forward", "B": "backward", "I": "backward", "W": "backward", "R": "recompute", "O": "optimizer"}
OTHER = "other"
"""The phase of an op without an action, such as a parameter server's sum of gradients."""

COMPUTE, MEMORY = 0, 1
_SECONDS, _FLOPS, _BYTES, _KERNELS = slice(0, 4), 4, 5, 6
_WIDTH = 7


class OperatorTime(NamedTuple):
    """One *operation* in one *phase* of one *layer*: a mean over the GPUs, for one training step.

    *layer* is the name of the op where it has no layer. *by_bound*: seconds by `BOUNDS`. *flops* of matrix products,
    *nbytes* read and written, *kernels* launched.
    """

    layer: str
    operation: Operation
    phase: str
    by_bound: tuple[float, float, float, float]
    flops: float
    nbytes: float
    kernels: float

    @property
    def seconds(self) -> float:
        """All of its time."""
        return sum(self.by_bound)

    @property
    def bound(self) -> str:
        """What bounds most of its time."""
        return BOUNDS[max(range(len(BOUNDS)), key=lambda place: self.by_bound[place])]


def operator_times(timeline: Timeline, software: Software | None = None) -> list[OperatorTime]:
    """Return the time of each operation of a simulated *timeline*, launched by *software*, in order of first use.

    They sum to the time of a step during which a GPU computes: the parts ``compute``, ``recompute`` and ``optimizer``
    of `metrics.breakdown`. A moment with several computations is divided equally among them. If the spans of some
    ranks were not kept, the mean is that of the others. Raises `SimulatorError` for a timeline without accelerators.
    """
    if timeline.cluster is None or not timeline.devices:
        raise SimulatorError("times of operators need a simulated timeline, whose kernels have been priced")
    found: defaultdict[tuple[str, str, Operation], Floats] = defaultdict(lambda: np.zeros(_WIDTH))
    gpus = 0
    for (number, gpu, host), (ranks, seconds, runs) in _by_program(timeline).items():
        gpus += ranks
        for op, spent, times in zip(timeline.schedule.programs[number].distinct(), seconds, runs, strict=True):
            if isinstance(op, Compute) and times and (op.kernels or spent):
                for operation, share in _shares(op, gpu if op.on == "gpu" else host, software):
                    share[_SECONDS] *= spent
                    share[_FLOPS:] *= times
                    found[op.layer or op.name, _phase(op), operation] += share
    per = max(1, gpus) * timeline.steps_measured
    return [
        OperatorTime(layer, operation, phase, tuple((row[_SECONDS] / per).tolist()), *(row[_FLOPS:] / per).tolist())
        for (layer, phase, operation), row in found.items()
    ]


_Programs = dict[tuple[int, Accelerator, Accelerator], tuple[int, Floats, Floats]]


def _by_program(timeline: Timeline) -> _Programs:
    """By (program, GPU, host): ranks, and for each distinct op of the program the seconds and runs on all of them."""
    assert timeline.cluster is not None
    found: _Programs = {}
    for rank, ranks in timeline.classes.items():
        number = timeline.schedule.program_of[rank]
        program, device = timeline.schedule.programs[number], timeline.devices[rank]
        if program.on != "gpu":
            continue
        gpu = timeline.cluster.accelerator(device)
        host = timeline.cluster.accelerator(on) if (on := timeline.cluster.host_of(device)) is not None else gpu
        own = timeline.of(rank)
        computes = program.column(lambda op: isinstance(op, Compute), np.bool_)[own.op]
        place = program.templated.places[own.op[computes]]
        seconds, within = _seconds(own, computes, timeline.window)
        ops = sum(len(template) for template, _ in program.templates())
        spent, runs = (np.bincount(place, weights, ops) * len(ranks) for weights in (seconds, within))
        before = found.get((number, gpu, host), (0, np.zeros(ops), np.zeros(ops)))
        found[number, gpu, host] = before[0] + len(ranks), before[1] + spent, before[2] + runs
    return found


def _seconds(own: Columns, computes: np.ndarray, window: tuple[float, float]) -> tuple[Floats, Floats]:
    """Return of each span that *computes* its seconds in *window*, and the share of the span that lies in it.

    A moment in which n of them run counts 1/n for each.
    """
    begin, end = own.begin[computes], own.end[computes]
    length = end - begin
    begin, end = begin.clip(*window), end.clip(*window)
    within = np.divide(end - begin, length, out=np.ones(len(length)), where=length > 0)
    times, place = np.unique(np.concatenate((begin, end)), return_inverse=True)
    change = np.bincount(place, np.repeat((1.0, -1.0), len(begin)), len(times))
    running = np.maximum(np.cumsum(change)[:-1].round(), 1.0)
    passed = np.concatenate(((0.0,), np.cumsum(np.diff(times) / running)))
    return passed[place[len(begin) :]] - passed[place[: len(begin)]], within


def _phase(op: Op) -> str:
    return PHASES.get(op.action.phase, OTHER) if op.action else OTHER


def _shares(op: Compute, processor: Accelerator, software: Software | None) -> Iterator[tuple[Operation, Floats]]:
    """Yield each kernel's operation and row: shares of the time of *op* by `BOUNDS`, then FLOPs, bytes and launches."""
    of_host = op.on != "gpu"
    rows = _rows(op.kernels, processor, None if of_host else software)
    whole = sum(float(row[_SECONDS].sum()) for row in rows)
    for kernel, row in zip(op.kernels, rows, strict=True):
        row[_SECONDS] = row[_SECONDS] / whole if whole else 0.0
        yield kernel.operation or Operation(op.name, "elementwise"), row
    if not whole:
        # a pause of the software, in an op without work
        yield Operation(op.name, "measured"), np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])


def _rows(kernels: Sequence[Kernel], processor: Accelerator, software: Software | None) -> list[Floats]:
    """Return for each kernel its part of the time of all *kernels* by `BOUNDS`, in s, its FLOPs, bytes and launches."""
    own = [0.0 if kernel.seconds is not None else processor.kernel_seconds(kernel, software) for kernel in kernels]
    launched = [software is not None and kernel.seconds is None for kernel in kernels]
    host = [
        software.launching_seconds(one) if known and software else 0.0
        for one, known in zip(kernels, launched, strict=True)
    ]
    on_gpu, by_host = _weights(sum(own), sum(host), software.exponent if software else 1.0)
    rows = []
    for kernel, seconds, launching in zip(kernels, own, host, strict=True):
        row = np.array([0.0, 0.0, launching * by_host, kernel.seconds or 0.0, kernel.flops, kernel.nbytes, 0.0])
        row[MEMORY if seconds <= processor.memory_seconds(kernel) else COMPUTE] += seconds * on_gpu
        row[_KERNELS] = kernel.launches
        rows.append(row)
    return rows


def _weights(gpu: float, host: float, sharpness: float) -> tuple[float, float]:
    """Return the derivatives of `smooth_maximum` by either argument; the host counts only beside work of the GPU."""
    if not gpu or not host:
        return 1.0, 0.0
    whole = smooth_maximum(gpu, host, sharpness)
    return (gpu / whole) ** (sharpness - 1.0), (host / whole) ** (sharpness - 1.0)
