"""How certain a step time is: an interval from the covariance of the fits, and what lies outside of what they measured.

The interval is that of the fitted parameters of GPU, software stack and NCCL. It does not hold the error of the model
itself, which the accuracy page shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.build.built import BuiltScenario
from scenarios.results.calibrated_range import MESSAGE, Extent, distinct, joined, outside
from simulator.accelerator import Accelerator, Software
from simulator.document import read
from simulator.kernel import Kernel
from simulator.network.transport.nccl import FITTED
from simulator.schedule import Compute, Program, Recv, Schedule
from topologies.catalogue import GPUS, device
from workloads.stack import specification

FITS = ("a100", "v100")
"""The calibration files that ship, in `scenarios/fitting`."""

MESSAGES = (2.0**15, 2.0**30)
"""Bytes that NCCL's fit has measured (simulator/network/transport/nccl_fitted.yaml): 32 KiB to 1 GiB."""

NORMAL_95 = 1.96
"""Standard deviations within which 95 of 100 normal values lie."""

STEP = 0.01
"""How far a parameter is moved to see the slope, relative to it."""


@dataclass(frozen=True)
class Shipped:
    """A fit of the catalogue: where each parameter *lands*, *covariance* of logarithms, and what is *covered*."""

    lands: Mapping[str, Sequence[str]]
    covariance: np.ndarray
    covered: Mapping[str, Extent]

    def keys(self, place: str) -> dict[str, str]:
        """The parameters that land in *place*, ``package.file``, by key there."""
        spots = ((spot.partition(":"), name) for name, lands in self.lands.items() for spot in lands)
        return {key: name for (where, _, key), name in spots if where == place}


@lru_cache
def shipped(name: str) -> Shipped:
    """The fit of that name."""
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
    """The variances of NCCL's fitted parameters together, relative to them; the fit takes them as independent."""
    return float(sum(deviation**2 for deviation in read(FITTED).data["uncertainty"].values()))


@dataclass(frozen=True)
class Certainty:
    """Of *scenario*, whose *schedule* took *step* seconds, *bubble* of them in no computation and no exchange.

    *exposed* seconds went to communication alone.
    """

    scenario: BuiltScenario
    schedule: Schedule
    step: float
    bubble: float
    exposed: float = 0.0

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """Seconds between which the step time lies with 95 %, as far as fits know; None where none is of the GPU."""
        variances = [self._variance(fit) for fit in map(shipped, FITS) if self._fitted(fit)]
        if not variances:
            return None
        width = NORMAL_95 * (sum(variances) + self._network_variance) ** 0.5
        return self.step * exp(-width), self.step * exp(width)

    def outside(self) -> list[str]:
        """A line for each GPU that no row was measured on, and for each kind of op beyond the rows."""
        lines = []
        for gpu in self._gpus:
            fits = [fit for fit in map(shipped, FITS) if fit.keys(f"{GPUS}.{gpu.name}")]
            if not fits:
                lines.append(f"GPU {gpu.name}: no fitted row was measured on it; see the sources of its entry")
            for fit in fits:
                covered = joined(fit.covered, {MESSAGE: MESSAGES})
                lines += outside(distinct(self.schedule), covered)
        return lines

    @cached_property
    def _gpus(self) -> dict[Accelerator, int]:
        """The GPUs in use, and how many there are of each."""
        return self.scenario.cluster().count(self.scenario.derived.devices)

    @property
    def _network_variance(self) -> float:
        """At most that which NCCL's fit leaves: as if all that is exposed followed each of its parameters."""
        by_nccl = self.scenario.specification.network.transport == "nccl"
        return (self.exposed / self.step) ** 2 * nccl_variance() if by_nccl else 0.0

    def _fitted(self, fit: Shipped) -> bool:
        return any(fit.keys(f"{GPUS}.{gpu.name}") for gpu in self._gpus)

    def _variance(self, fit: Shipped) -> float:
        """That of the logarithm of the step time."""
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
        """How the logarithm of the step time follows that of the parameter that has been *moved*."""
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
        """Seconds that the busiest program computes in a step."""
        seconds = {kernels: gpu.seconds(kernels, software) for work in self._work for kernels in work}
        return max(sum(times * seconds[kernels] for kernels, times in work.items()) for work in self._work)

    @cached_property
    def _work(self) -> list[dict[tuple[Kernel, ...], int]]:
        """By program: how often it computes the same kernels in a step."""
        return [_work(program) for program in self.schedule.programs]

    def _share(self, computing: float) -> float:
        """The part of the step that follows the computation: it and the bubbles, which are computation elsewhere."""
        return min(1.0, (computing + self.bubble) / self.step)


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
    """How many messages *program* receives in a step."""
    return sum(times * sum(isinstance(op, Recv) for op in ops) for ops, times in program.templates())
