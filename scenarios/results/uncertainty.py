"""The uncertainty of a step time: an interval by the errors of published runs, and what is outside the fits' range."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.build.built import BuiltScenario
from scenarios.results.calibrated_range import MESSAGE, Beyond, Extent, distinct, joined, outside
from scenarios.results.interval import regimes
from scenarios.results.interval import shipped as intervals
from simulator.accelerator import Accelerator
from simulator.document import read
from simulator.kernel import Kernel
from simulator.schedule import Collective, Compute, Program, Schedule, Send
from topologies.catalogue import GPUS

FITS = ("a100", "v100")
"""The shipped calibration files in `scenarios/fitting`."""

IDEAL = "ideal"
"""The stack that is a lower bound of all others, and so no prediction of a run."""

MESSAGES = (2.0**15, 2.0**30)
"""Bytes of the measured messages of NCCL's fit (simulator/network/transport/nccl_fitted.yaml): 32 KiB to 1 GiB."""


@dataclass(frozen=True)
class Shipped:
    """A fit of the catalogue: the entries to which each parameter goes (*lands*, ``package.file:key``), the
    *covariance* of logarithms (k x k), and the calibrated range (*covered*)."""

    lands: Mapping[str, Sequence[str]]
    covariance: np.ndarray
    covered: Mapping[str, Extent]

    @property
    def places(self) -> Set[str]:
        """The entries, ``package.file``, to which parameters go."""
        return {spot.partition(":")[0] for spots in self.lands.values() for spot in spots}

    def keys(self, place: str) -> dict[str, str]:
        """Return the parameters that go to *place*, ``package.file``, by key there."""
        spots = ((spot.partition(":"), name) for name, lands in self.lands.items() for spot in lands)
        return {key: name for (where, _, key), name in spots if where == place}


@lru_cache
def shipped(name: str) -> Shipped:
    """Return the shipped fit of that name."""
    data: dict[str, Any] = read(Path(__file__).parents[1] / "fitting" / f"{name}.yaml").data
    covered = {quantity: (low, high) for quantity, (low, high) in data["covered"].items()}
    lands = {parameter: entry["lands"] for parameter, entry in data["parameters"].items()}
    return Shipped(lands, np.array(data["covariance"]), covered)


def regimes_of(scenario: BuiltScenario, step: float) -> dict[str, str]:
    """Return the regime of the training step *scenario*, of *step* seconds, by kind."""
    fitted = set().union(*(shipped(name).places for name in FITS))
    gpus = scenario.cluster().count(scenario.derived.devices)
    return regimes(all(f"{GPUS}.{gpu.name}" in fitted for gpu in gpus), scenario.stack, scenario.derived.ranks, step)


@dataclass(frozen=True)
class Uncertainty:
    """The uncertainty of the step time *step* (s) of *schedule*, the schedule of *scenario*."""

    scenario: BuiltScenario
    schedule: Schedule
    step: float

    @property
    def interval(self) -> tuple[float, float] | None:
        """The empirical 95 % interval of the step time, s; None for given durations and the stack that is a bound."""
        if not self._priced or self.scenario.software.name == IDEAL:
            return None
        return intervals().limits(regimes_of(self.scenario, self.step)).about(self.step)

    def outside(self) -> list[str]:
        """Return a line for each GPU without fitted rows, and for each quantity outside the calibrated range."""
        lines = []
        for gpu in self._gpus:
            fits = [fit for fit in map(shipped, FITS) if f"{GPUS}.{gpu.name}" in fit.places]
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

    @cached_property
    def _work(self) -> list[dict[tuple[Kernel, ...], int]]:
        """How often each program launches the same kernels in a step, by program."""
        return [_work(program) for program in self.schedule.programs]


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
