"""The uncertainty of a step time: an interval from the covariance of the fits, and what is outside their range.

The interval covers the uncertainty of the fitted parameters of GPU, software stack and NCCL. It does not cover the
error of the model itself, which the accuracy page shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.build.built import BuiltScenario
from scenarios.results.calibrated_range import MESSAGE, Beyond, Extent, distinct, joined, outside
from simulator.accelerator import Accelerator, Software
from simulator.document import read
from simulator.kernel import Kernel
from simulator.network.transport.nccl import FITTED
from simulator.schedule import Collective, Compute, Program, Recv, Schedule, Send
from topologies.catalogue import GPUS, device
from workloads.stack import specification

FITS = ("a100", "v100")
"""The shipped calibration files in `scenarios/fitting`."""

MESSAGES = (2.0**15, 2.0**30)
"""Bytes of the measured messages of NCCL's fit (simulator/network/transport/nccl_fitted.yaml): 32 KiB to 1 GiB."""

NORMAL_95 = 1.96
"""Standard deviations about the mean that contain 95 % of normal values."""

STEP = 0.01
"""Relative change of a parameter for the slope by finite differences."""


@dataclass(frozen=True)
class Shipped:
    """A fit of the catalogue: the entries to which each parameter goes (*lands*), the *covariance* of logarithms
    (k x k), and the calibrated range (*covered*)."""

    lands: Mapping[str, Sequence[str]]
    covariance: np.ndarray
    covered: Mapping[str, Extent]

    def keys(self, place: str) -> dict[str, str]:
        """Return the parameters that go to *place*, ``package.file``, by key there."""
        spots = ((spot.partition(":"), name) for name, lands in self.lands.items() for spot in lands)
        return {key: name for (where, _, key), name in spots if where == place}


@lru_cache
def shipped(name: str) -> Shipped:
    """Return the shipped fit of that name."""
    data: dict[str, Any] = read(Path(__file__).parents[1] / "fitting" / f"{name}.yaml").data
    parameters = data["parameters"]
    covered = {quantity: (low, high) for quantity, (low, high) in data["covered"].items()}
    return Shipped(
        {parameter: entry["lands"] for parameter, entry in parameters.items()},
        np.array(data["covariance"]),
        covered,
    )


@lru_cache
def nccl_variance() -> float:
    """Return the sum of the relative variances of NCCL's fitted parameters, which are taken as independent."""
    return float(sum(deviation**2 for deviation in read(FITTED).data["uncertainty"].values()))


@dataclass(frozen=True)
class Uncertainty:
    """The uncertainty of the step time *step* (s) of *schedule*, the schedule of *scenario*.

    *bubble* and *exposed* are the seconds of the step without computation and communication, and with communication
    alone.
    """

    scenario: BuiltScenario
    schedule: Schedule
    step: float
    bubble: float
    exposed: float = 0.0

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the step time, s, by the fitted parameters; None if there is no fit of the GPU."""
        variances = [self._variance(fit) for fit in map(shipped, FITS) if self._fitted(fit)]
        if not variances:
            return None
        width = NORMAL_95 * (sum(variances) + self._network_variance) ** 0.5
        return self.step * exp(-width), self.step * exp(width)

    def outside(self) -> list[str]:
        """Return a line for each GPU without fitted rows, and for each quantity outside the calibrated range."""
        lines = []
        for gpu in self._gpus:
            fits = [fit for fit in map(shipped, FITS) if fit.keys(f"{GPUS}.{gpu.name}")]
            if not fits and self._priced:
                lines.append(f"GPU {gpu.name} was not measured: its kernels are scaled from data sheets")
            for fit in fits:
                covered = joined(fit.covered, {MESSAGE: MESSAGES})
                lines += [f"{self._weight(one)}: {one}" for one in outside(distinct(self.schedule), covered)]
        return lines

    def _weight(self, beyond: Beyond) -> str:
        """What *beyond* means for the step time: the share of the computation, or of the bytes, that it is."""
        if beyond.quantity == MESSAGE:
            share = self._share_of_messages(beyond.values)
            return f"{_percent(share)} of the bytes sent are priced by extrapolation"
        return f"{_percent(self._share_of_kernels(beyond.kernels))} of the computation is priced by extrapolation"

    def _share_of_messages(self, sizes: Set[float]) -> float:
        """Return the share of the bytes of all messages that is in messages of these *sizes* (bytes)."""
        sent = Counter[float]()
        for program in self.schedule.programs:
            for ops, times in program.templates():
                for op in ops:
                    if isinstance(op, Collective | Send):
                        sent[op.nbytes] += times
        total = sum(nbytes * times for nbytes, times in sent.items())
        return sum(nbytes * times for nbytes, times in sent.items() if nbytes in sizes) / total if total else 0.0

    def _share_of_kernels(self, kernels: Set[Kernel]) -> float:
        """Return the share of the computation of the programs that is in *kernels*, on the first type of GPU."""
        gpu, *_ = self._gpus
        total = found = 0.0
        for work in self._work:
            for launched, times in work.items():
                total += times * gpu.seconds(launched, self.scenario.software)
                own = [kernel for kernel in launched if kernel in kernels]
                found += times * gpu.seconds(own, self.scenario.software) if own else 0.0
        return min(1.0, found / total) if total else 0.0

    @property
    def _priced(self) -> bool:
        """True if the GPU prices any kernel; durations of unit models are given."""
        return any(kernel.seconds is None for work in self._work for kernels in work for kernel in kernels)

    @cached_property
    def _gpus(self) -> dict[Accelerator, int]:
        """The types of the GPUs in use, with their counts."""
        return self.scenario.cluster().count(self.scenario.derived.devices)

    @property
    def _network_variance(self) -> float:
        """An upper bound of the variance due to NCCL: all exposed time is taken to scale with each parameter."""
        by_nccl = self.scenario.specification.network.transport == "nccl"
        return (self.exposed / self.step) ** 2 * nccl_variance() if by_nccl else 0.0

    def _fitted(self, fit: Shipped) -> bool:
        return any(fit.keys(f"{GPUS}.{gpu.name}") for gpu in self._gpus)

    def _variance(self, fit: Shipped) -> float:
        """Return the variance of the logarithm of the step time due to the parameters of *fit*."""
        slopes = np.zeros(len(fit.lands))
        places = {name: place for place, name in enumerate(fit.lands)}
        for gpu, count in self._gpus.items():
            for key, name in fit.keys(f"{GPUS}.{gpu.name}").items():
                entry = device(GPUS, gpu.name)
                moved = entry.model_copy(update={key: getattr(entry, key) * (1 + STEP)}).accelerator()
                slopes[places[name]] += self._slope(gpu, moved, count)
        stack = self.scenario.specification.software
        for key, name in fit.keys(f"workloads.software.{stack}").items():
            slopes[places[name]] += self._stack_slope(key)
        return float(slopes @ fit.covariance @ slopes)

    def _slope(self, gpu: Accelerator, moved: Accelerator, count: int) -> float:
        """Return d log(step time) / d log(parameter); *moved* is *gpu* with the parameter changed by `STEP`."""
        software = self.scenario.software
        before, after = (self._computing(one.slowest_of(count), software) for one in (gpu, moved))
        return self._share(before) * (after / before - 1.0) / STEP if before else 0.0

    def _stack_slope(self, key: str) -> float:
        entry = specification(self.scenario.specification.software)
        value: float = getattr(entry, key)
        if key == "step":
            return value / self.step
        if key == "exchange":
            return max(map(_received, self.schedule.programs)) * value / self.step
        changed = entry.model_copy(update={key: value * (1 + STEP)})
        (gpu, count), *_ = self._gpus.items()
        before = self._computing(gpu.slowest_of(count), self.scenario.software)
        after = self._computing(gpu.slowest_of(count), changed.build())
        return self._share(before) * (after / before - 1.0) / STEP if before else 0.0

    def _computing(self, gpu: Accelerator, software: Software) -> float:
        """Return the seconds that the busiest program computes in a step."""
        seconds = {kernels: gpu.seconds(kernels, software) for work in self._work for kernels in work}
        return max(sum(times * seconds[kernels] for kernels, times in work.items()) for work in self._work)

    @cached_property
    def _work(self) -> list[dict[tuple[Kernel, ...], int]]:
        """How often each program launches the same kernels in a step, by program."""
        return [_work(program) for program in self.schedule.programs]

    def _share(self, computing: float) -> float:
        """Return the share of the step that scales with computation: computation and bubble.

        A bubble is a wait for the computation of another rank.
        """
        return min(1.0, (computing + self.bubble) / self.step)


def _percent(share: float) -> str:
    """Return *share* as text.

    >>> _percent(0.123), _percent(1e-5)
    ('12 %', 'under 0.1 %')
    """
    return "under 0.1 %" if share < 1e-3 else f"{share * 100:.2g} %"


def _work(program: Program) -> dict[tuple[Kernel, ...], int]:
    known: dict[int, tuple[Kernel, ...]] = {}
    times_of = Counter[int]()
    for ops, times in program.templates():
        for op in ops:
            if isinstance(op, Compute):
                known[id(op.kernels)] = op.kernels
                times_of[id(op.kernels)] += times
    work = Counter[tuple[Kernel, ...]]()
    for number, times in times_of.items():
        work[known[number]] += times
    return work


def _received(program: Program) -> int:
    """Return how many messages *program* receives in a step."""
    return sum(times * sum(isinstance(op, Recv) for op in ops) for ops, times in program.templates())
