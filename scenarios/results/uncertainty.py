"""The uncertainty of a step time: its interval, and what is outside the calibrated range.

The interval is that of the errors of published runs. The range is that of the shapes of kernels in the fits.

An op outside the range is priced by the same formulas, but they are not validated there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import field
from functools import cached_property, lru_cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.results.interval import LEVEL, Conditions, framework_of, generation_of
from clustersim.scenarios.results.interval import shipped as intervals
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.units import show
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.simulator.schedule.ops import Collective, Compute, Op, Recv, Send
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.topologies.catalogue import GPUS, device
from clustersim.workloads.software_stack import holds

MESSAGE = "bytes of a message"

MEMORY_BOUND = "bytes of a memory-bound kernel"

EXPERTS = "experts"
"""The kind of a transformer with a mixture of experts."""

LATENCY_ALONE = 1024.0
"""Bytes up to which a message, such as a gradient's norm, costs only latency on any network."""

Extent = tuple[float, float]
"""The smallest and the largest value."""

CalibratedRange = Mapping[str, Extent]
"""The extent of each quantity of `quantities`."""


def distinct(schedule: Schedule) -> Iterator[Op]:
    """Yield the ops of GPU programs; ops that are repeated for each micro-batch once."""
    for program in schedule.programs:
        if program.on == "gpu":
            yield from program.distinct()


def quantities(op: Op) -> Iterator[tuple[str, float]]:
    """Yield the quantities of *op* that a fit may not cover: sides of products, of fused attention, bytes of others."""
    yield from _of_message(op)
    for kernel in getattr(op, "kernels", ()):
        yield from _of_kernel(kernel)


def _of_message(op: Op) -> Iterator[tuple[str, float]]:
    if isinstance(op, Collective | Send | Recv) and op.nbytes > LATENCY_ALONE:
        yield MESSAGE, op.nbytes


def _of_kernel(kernel: Kernel) -> Iterator[tuple[str, float]]:
    if kernel.seconds is not None:
        return
    if kernel.shape is None:
        yield MEMORY_BOUND, kernel.nbytes
        return
    _, rows, columns, depth = kernel.shape
    if kernel.attention:
        yield "positions of fused attention", rows
        yield "head size of fused attention", depth
        return
    yield "longer side of a product", max(rows, columns)
    yield "shorter side of a product", min(rows, columns)
    yield "depth of a product", depth


def calibrated_range(ops: Iterable[Op]) -> dict[str, Extent]:
    """Return the extent of each quantity of *ops*."""
    found: dict[str, Extent] = {}
    for op in ops:
        for quantity, value in quantities(op):
            low, high = found.get(quantity, (inf, -inf))
            found[quantity] = min(low, value), max(high, value)
    return found


def joined(one: CalibratedRange, other: CalibratedRange) -> dict[str, Extent]:
    """Return the smallest range that contains both."""
    both = {quantity: (*one.get(quantity, ()), *other.get(quantity, ())) for quantity in {**one, **other}}
    return {quantity: (min(values), max(values)) for quantity, values in both.items()}


@dataclass
class Beyond:
    """Ops outside the range *covered* of *quantity*: the *values*, the *names* of layers or ops, and the *kernels*."""

    quantity: str
    covered: Extent | None
    values: set[float] = field(default_factory=set)
    names: dict[str, None] = field(default_factory=dict)
    kernels: set[Kernel] = field(default_factory=set)

    def __str__(self) -> str:
        """What is outside, where, and what was measured, in units of the quantity."""
        several = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        fitted = f"measured: {self._extent(self.covered)}" if self.covered else "none was measured"
        what = f"{NOUNS.get(self.quantity, self.quantity)} {self._extent(self.values)}"
        return f"{what} ({next(iter(self.names))}{several}); {fitted}"

    def _extent(self, values: Iterable[float]) -> str:
        unit = self.quantity in (MESSAGE, MEMORY_BOUND)
        ends = [show(value, "size", 3) if unit else f"{value:,.0f}" for value in (min(values), max(values))]
        return " to ".join(dict.fromkeys(ends))


NOUNS = {
    MESSAGE: "messages of",
    MEMORY_BOUND: "memory-bound kernels of",
    "positions of fused attention": "fused attention over positions:",
    "head size of fused attention": "fused attention with a head size of",
    "longer side of a product": "products with a longer side of",
    "shorter side of a product": "products with a shorter side of",
    "depth of a product": "products with a depth of",
}
"""How a quantity is printed before its value."""


def outside(ops: Iterable[Op], covered: CalibratedRange) -> list[Beyond]:
    """Return what of *ops* is outside the range *covered*, by quantity."""
    found: dict[str, Beyond] = {}
    known: dict[int, tuple[Sequence[Kernel], list[tuple[str, float, Kernel]]]] = {}
    for op in ops:
        beyond: list[tuple[str, float, Kernel | None]] = [
            (quantity, value, None) for quantity, value in _of_message(op) if _is_outside(quantity, value, covered)
        ]
        kernels = getattr(op, "kernels", ())
        if id(kernels) not in known:  # many ops have the same object
            known[id(kernels)] = kernels, _kernels_outside(kernels, covered)
        for quantity, value, kernel in (*beyond, *known[id(kernels)][1]):
            one = found.setdefault(quantity, Beyond(quantity, covered.get(quantity)))
            one.values.add(value)
            one.names.setdefault(op.layer or op.name)
            if kernel is not None:
                one.kernels.add(kernel)
    return list(found.values())


def _kernels_outside(kernels: Iterable[Kernel], covered: CalibratedRange) -> list[tuple[str, float, Kernel]]:
    every = ((quantity, value, kernel) for kernel in kernels for quantity, value in _of_kernel(kernel))
    return list(dict.fromkeys(one for one in every if _is_outside(*one[:2], covered)))


def _is_outside(quantity: str, value: float, covered: CalibratedRange) -> bool:
    low, high = covered.get(quantity, (inf, -inf))
    return bool(value) and not low <= value <= high


FITS = ("a100", "v100")
"""The shipped calibration files in `scenarios/accuracy`."""

IDEAL = "ideal"
"""The stack that is a lower bound of all others, and so no prediction of a run."""

SHORTEST = 1e-6
"""s. The size of kernels of a step that prices none."""

MESSAGES = (2.0**15, 2.0**30)
"""Bytes of the measured messages of NCCL's fit (simulator/network/library/nccl_fitted.yaml): 32 KiB to 1 GiB."""


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
        spots = ((spot, name) for name, lands in self.lands.items() for spot in lands)
        return {spot.partition(":")[2]: name for spot, name in spots if holds(place, spot)}


@lru_cache
def shipped(name: str) -> Shipped:
    """Return the shipped fit of that name."""
    data: dict[str, Any] = read(_file(name)).data
    covered = {quantity: (low, high) for quantity, (low, high) in data["covered"].items()}
    lands = {parameter: entry["lands"] for parameter, entry in data["parameters"].items()}
    return Shipped(lands, np.array(data["covariance"]), covered)


def _file(fit: str) -> Path:
    return Path(__file__).parents[1] / "accuracy" / f"{fit}.yaml"


@lru_cache
def of_products(gpu: str) -> float:
    """Return the standard deviation of the time of products of *gpu* of the catalogue: 0 if they were measured.

    Else that of GPUs that were left out of the fit, without or with others of their generation in it
    (`scenarios.accuracy.products`).
    """
    data: dict[str, Any] = read(Path(__file__).parents[1] / "accuracy" / "products.yaml").data
    if gpu in data["shares"]:
        return 0.0
    measured = {device(GPUS, name).generation for name in data["shares"]}
    return float(data["unmeasured"]["generation" if device(GPUS, gpu).generation in measured else "nothing"])


def conditions_of(scenario: BuiltScenario, schedule: Schedule) -> Conditions:
    """Return what the training step *scenario*, whose schedule is *schedule*, runs on."""
    gpu = scenario.cluster().accelerator(scenario.derived.devices[0])
    model = scenario.specification.model
    assert model is not None
    return Conditions(
        framework_of(scenario.stack),
        # mixtures of experts err otherwise than dense models: they exchange tokens, and their products are small
        EXPERTS if getattr(model, "num_experts", None) else model.kind,
        generation_of(gpu.name),
        scenario.derived.ranks,
        _mean_kernel(schedule, gpu),
    )


def _mean_kernel(schedule: Schedule, gpu: Accelerator) -> float:
    """Return the mean time (s) of a kernel on *gpu*, without its launch, over all priced kernels of the programs."""
    seconds, number = 0.0, 0
    for program in schedule.programs:
        for kernels, times in _work(program).items():
            priced = [kernel for kernel in kernels if kernel.seconds is None]
            seconds += times * sum(map(gpu.kernel_seconds, priced))
            number += times * len(priced)
    return seconds / number if seconds else SHORTEST


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
        limits = intervals().of(self.conditions)
        return limits.widened(max(map(self._unknown, self._gpus))).about(self.step)

    @cached_property
    def conditions(self) -> Conditions:
        """What the step runs on, by which it is near to known runs or far from them."""
        return conditions_of(self.scenario, self.schedule)

    def _unknown(self, gpu: Accelerator) -> float:
        """Return the standard deviation of the time of *gpu*'s products beyond that of runs: 0 if it was measured."""
        return 0.0 if self._fits(gpu) or gpu.name not in lookup.names(GPUS) else of_products(gpu.name)

    def _fits(self, gpu: Accelerator) -> list[Shipped]:
        """The fits to published runs that have parameters of *gpu*."""
        place = f"{GPUS}.{gpu.name}"
        # a fit is read if its text has the name: most have not
        fits = [shipped(name) for name in FITS if place in _file(name).read_text(encoding="utf-8")]
        return [fit for fit in fits if place in fit.places]

    def _not_fitted(self, gpu: Accelerator) -> str:
        """Return what is known of the kernels of *gpu*, to which no published run was fitted."""
        unknown = self._unknown(gpu)
        if unknown:
            products = f"its products, by those of similar GPUs, are known to {_percent(unknown)}"
            return f"GPU {gpu.name} was not measured: {products}, its other kernels are scaled from data sheets"
        if gpu.name in lookup.names(GPUS):
            return f"GPU {gpu.name}: its products were measured, its other kernels are scaled from data sheets"
        return f"GPU {gpu.name} was not measured: its kernels are scaled from data sheets"

    @property
    def known(self) -> str:
        """What the interval says of measured runs, in words, and how many known runs are like this one."""
        found = intervals().alike(self.conditions)
        like = "no run of this kind is known"
        if found.runs:
            sources = "one source" if found.sources == 1 else f"{found.sources} sources"
            like = f"like {found.runs} known run{'s' * (found.runs > 1)} of {sources}"
        elif not found.framework:
            like = f"no run of this framework ({self.conditions.framework}) is known"
        return f"holds {LEVEL * 100:.0f} % of measured runs; {like}"

    def outside(self) -> list[str]:
        """Return a line for each GPU without fitted rows, and for each quantity outside the calibrated range."""
        lines = []
        for gpu in self._gpus:
            fits = self._fits(gpu)
            if not fits and self._priced:
                lines.append(self._not_fitted(gpu))
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
