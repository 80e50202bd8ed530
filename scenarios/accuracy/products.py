"""The fit to measured matrix products: one model of a product's time for all GPUs, with few parameters by generation.

A row is one product, alone on one GPU, repeated a few times in a CUDA graph. Its time is that of
`simulator.hardware.matrix_products` with what belongs to the measurement, not to the product:

- a kernel that runs longer than a *window* is measured at the clock to which the power limit lowers it (*sustained*);
- a product of 8 bits is measured with the kernels that find the scale of its left operand and cast it;
- operands that fit in the L2 cache stay there between repetitions.

A GPU that was not measured has the parameters of its generation, and the rate that its power allows: at the power
limit, the rate of products grows as the square root of the power. The held-out errors say how well: each GPU is
predicted by a fit without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from math import exp, isfinite, log, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.matrix_products import Numbers, Tiling, arithmetic_seconds, tiles_down
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import CalibrationError, SimulatorError
from clustersim.simulator.reading.files import UnreadableFile, read_rows
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.topologies.catalogue import GPUS, IN_STEPS, device, products_at_power

COLUMNS = {"gpu", "dtype", "m", "n", "k", "us"}
"""The columns of a table of products."""

PRECISIONS = ("bf16", "fp8")

CACHE = {"ampere": 40e6, "hopper": 50e6, "ada": 96e6, "blackwell": 126e6}
"""Bytes of the L2 cache of the measured GPUs (NVIDIA: architecture whitepapers of A100, H100 and Ada AD102; device
query of B200)."""

GDDR = ("ada",)
"""Generations of GPUs for graphics, with GDDR memory and boards of less power; the others are no measure of them, nor
they of others."""

LARGE = 2e12
"""FLOP from which products are a class of their own in the table of errors: 1 ms and more."""

STEADY = "50 GFLOP to 2 TFLOP"
"""The class of most products of a training step: too long for latencies, too short for the power limit."""

CLASSES = ((LARGE, "2 TFLOP and more"), (5e10, STEADY), (1e9, "1 to 50 GFLOP"), (0.0, "below 1 GFLOP"))


@dataclass(frozen=True)
class Quantity:
    """A parameter of a generation: its *start*, the deviation *spread* of its logarithm about it, unit and meaning."""

    start: float
    spread: float
    unit: str
    meaning: str


QUANTITIES: Mapping[str, Quantity] = {
    "k_half": Quantity(128.0, 1.0, "elements", "depth at which a product of 16 bits reaches half of its speed"),
    "tile_side": Quantity(96.0, 0.3, "elements", "side of the tile whose loads take as long as its arithmetic"),
    "split_latency": Quantity(3.0, 0.5, "us", "reduction of a product divided along its depth"),
    "kernel_latency": Quantity(2.4, 0.3, "us", "start and end of a kernel"),
    "overlap": Quantity(3.0, 0.4, "", "sharpness of the maximum of arithmetic and memory traffic"),
    "low_precision": Quantity(0.95, 0.1, "share", "share of the peak in 8 bits over that in 16 bits"),
    "sustained": Quantity(
        0.9, 0.1, "share", "speed of kernels longer than the window: the power limit lowers the clock"
    ),
    "window": Quantity(0.4, 1.0, "ms", "time in which a kernel runs at the clock of a burst"),
    "cast_latency": Quantity(10.0, 0.5, "us", "kernels that find a scale and cast an operand to 8 bits"),
    "cast": Quantity(8.0, 0.7, "bytes", "memory traffic of these for each element"),
    "cached": Quantity(0.2, 1.0, "share", "share of the L2 cache that keeps operands between repetitions"),
}
"""By name. The deviations are wide; they hold parameters on which no row depends."""

SHARE = Quantity(0.85, 0.15, "share", "share of the peak in 16 bits that long products reach in a burst")
"""The one parameter of a GPU."""


@dataclass(frozen=True, eq=False)
class Products:
    """The measured products of one *gpu* in one precision: *sides* (rows x 3) m, n and k, and *seconds* (rows)."""

    gpu: str
    precision: str
    sides: Numbers
    seconds: Numbers

    @cached_property
    def accelerator(self) -> Accelerator:
        """The GPU of the catalogue."""
        return device(GPUS, self.gpu).accelerator()

    @property
    def generation(self) -> str:
        """The generation of the GPU. Raises `CalibrationError` if the catalogue does not tell it."""
        found = device(GPUS, self.gpu).generation
        if found not in CACHE:
            raise CalibrationError(f"{self.gpu}: generation {found}; products are fitted for {', '.join(CACHE)}")
        return found

    @cached_property
    def flops(self) -> Numbers:
        """FLOP of each row."""
        return np.asarray(2.0 * self.sides.prod(axis=1))

    @cached_property
    def _down(self) -> Numbers:
        return tiles_down(self.sides[:, :1])

    def predicted(self, values: Mapping[str, float]) -> Numbers:
        """Return the seconds of each row. *values*: those of `QUANTITIES` and ``share``."""
        gpu, low = self.accelerator, self.precision == "fp8"
        width = 1 if low else 2
        m, n, k = self.sides.T
        tiling = Tiling(
            values["k_half"] * (gpu.peak(self.precision) / gpu.peak("bf16")),
            values["tile_side"],
            values["split_latency"] * 1e-6,
        )
        rate = gpu.peak(self.precision) * values["share"] * (values["low_precision"] if low else 1.0)
        arithmetic = arithmetic_seconds(
            self._down, self.sides[:, 1:2], self.sides[:, 2:3], rate=rate, sms=gpu.sms, tiling=tiling
        )
        nbytes = width * (m * k + k * n) + 2 * m * n
        kept = values["cached"] * CACHE[self.generation]
        missed = np.maximum(nbytes**2 / (nbytes**2 + kept**2), IN_CACHE)
        memory = nbytes * missed / (gpu.memory_bandwidth * gpu.memory_efficiency)
        q = values["overlap"]
        high, less = np.maximum(arithmetic, memory), np.minimum(arithmetic, memory)
        busy = high * (1.0 + (less / high) ** q) ** (1.0 / q)
        slowed = busy + (1.0 / min(values["sustained"], 1.0) - 1.0) * np.maximum(0.0, busy - values["window"] * 1e-3)
        traffic = values["cast"] * m * k * np.maximum(1.0 - kept**2 / ((2 * m * k) ** 2 + kept**2), IN_CACHE)
        cast = values["cast_latency"] * 1e-6 + traffic / gpu.memory_bandwidth if low else 0.0
        return np.asarray(slowed + values["kernel_latency"] * 1e-6 + cast)

    def errors(self, values: Mapping[str, float]) -> Numbers:
        """Return predicted / measured - 1 of each row."""
        return self.predicted(values) / self.seconds - 1.0


IN_CACHE = 0.35
"""Time of a byte from the L2 cache over that from memory on GPUs with GDDR6, of which the cache is felt: first estimate
from L40S."""


def read_products(path: Path) -> list[Products]:
    """Return the products of the table at *path* by GPU and precision. Raises `CalibrationError`."""
    try:
        header, *rows = read_rows(path)
    except UnreadableFile as error:
        raise CalibrationError(str(error)) from None
    groups: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for row in rows:
        key, numbers = _product(f"{path}:{row.line}", dict(zip(header.cells, row.cells, strict=False)))
        groups.setdefault(key, []).append(numbers)
    if not groups:
        raise CalibrationError(f"{path}: has no rows")
    tables = ((key, np.array(numbers)) for key, numbers in sorted(groups.items()))
    return [Products(gpu, precision, table[:, :3], table[:, 3] * 1e-6) for (gpu, precision), table in tables]


def _product(place: str, cells: Mapping[str, str]) -> tuple[tuple[str, str], tuple[float, ...]]:
    """Return the GPU and the precision, and m, n, k and microseconds of one row at *place*."""
    try:
        gpu, precision = cells["gpu"], cells["dtype"]
        numbers = tuple(float(cells[name]) for name in ("m", "n", "k", "us"))
    except (KeyError, ValueError):
        raise CalibrationError(f"{place}: a product needs {', '.join(sorted(COLUMNS))}") from None
    if not all(isfinite(one) and one > 0 for one in numbers):
        raise CalibrationError(f"{place}: sides and times of products are above 0, not {', '.join(map(str, numbers))}")
    try:
        device(GPUS, gpu).accelerator().peak(precision)
    except SimulatorError as error:
        raise CalibrationError(f"{place}: {error}") from None
    if precision not in PRECISIONS:
        raise CalibrationError(f"{place}: products of {' or '.join(PRECISIONS)} are fitted, not of {precision}")
    return (gpu, precision), numbers


@dataclass(frozen=True)
class ProductFit:
    """The fit: values of *generations* by name and quantity, and the *shares* of GPUs, with the deviations of their
    logarithms in *deviations* (``generation.quantity`` or the GPU's name)."""

    generations: Mapping[str, Mapping[str, float]]
    shares: Mapping[str, float]
    deviations: Mapping[str, float] = field(default_factory=dict)

    def values(self, gpu: str) -> dict[str, float]:
        """Return the values of *gpu*, by those of its generation if it was not measured."""
        entry = device(GPUS, gpu)
        own = self.generations.get(entry.generation or "")
        if own is None:
            similar = [values for name, values in self.generations.items() if name not in GDDR] or [
                *self.generations.values()
            ]
            own = {name: exp(fmean(log(one[name]) for one in similar)) for name in QUANTITIES}
        return {**own, "share": self.shares.get(gpu) or self._by_power(gpu)}

    def _by_power(self, gpu: str) -> float:
        """Return the share of the peak that *gpu* reaches by its power, from the others of its generation."""
        entry = device(GPUS, gpu)
        others = {
            name: share for name, share in self.shares.items() if device(GPUS, name).generation == entry.generation
        }
        if not others:
            return fmean(share for name, share in self.shares.items() if device(GPUS, name).generation not in GDDR)
        return exp(fmean(log(products_at_power(share, device(GPUS, name), entry)) for name, share in others.items()))


def fitted(tables: Sequence[Products]) -> ProductFit:
    """Return the fit to *tables*, one generation after the other: they have no parameter in common."""
    generations: dict[str, Mapping[str, float]] = {}
    shares: dict[str, float] = {}
    deviations: dict[str, float] = {}
    for generation in sorted({table.generation for table in tables}):
        values, spread = _fitted([table for table in tables if table.generation == generation])
        generations[generation] = {name: values[name] for name in QUANTITIES}
        shares |= {name: value for name, value in values.items() if name not in QUANTITIES}
        deviations |= {f"{generation}.{name}" if name in QUANTITIES else name: one for name, one in spread.items()}
    return ProductFit(generations, shares, deviations)


def _fitted(tables: Sequence[Products]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the values and deviations of `QUANTITIES` and of the shares of the GPUs of one generation, by name."""
    names = [*QUANTITIES, *sorted({table.gpu for table in tables})]
    known = [QUANTITIES.get(name, SHARE) for name in names]
    start, spreads = np.log([one.start for one in known]), np.array([one.spread for one in known])

    def residuals(x: Numbers) -> Numbers:
        values = dict(zip(names, np.exp(x).tolist(), strict=True))
        parts = []
        for one in tables:
            ratios = one.predicted({**values, "share": values[one.gpu]}) / one.seconds
            parts.append(np.log(ratios) / NOISE * sqrt(ROWS / max(ROWS, len(ratios))))
        return np.concatenate([*parts, (x - start) / spreads])

    # a library's choice of a slow kernel for some shapes is an outlier: beyond one noise, errors count linearly
    found = least_squares(residuals, start, loss="soft_l1", diff_step=1e-3)
    deviations = np.sqrt(np.diag(np.linalg.inv(found.jac.T @ found.jac)))
    return tuple(dict(zip(names, one.tolist(), strict=True)) for one in (np.exp(found.x), deviations))  # type: ignore[return-value]


NOISE = 0.1
"""Relative error of a row: what the choice of a kernel among a library's hundreds moves."""

ROWS = 100
"""Rows of a GPU and precision beyond which more say no more of its parameters: their errors have shapes in common."""


def held_out(tables: Sequence[Products]) -> dict[str, list[tuple[Products, Numbers]]]:
    """Return each GPU's tables with the errors of a fit without that GPU."""
    whole = fitted(tables)
    found = {}
    for gpu in sorted({table.gpu for table in tables}):
        own = [table for table in tables if table.gpu == gpu]
        others = [table for table in tables if table.gpu != gpu and table.generation == own[0].generation]
        rest = fitted(others)
        without = ProductFit(
            {k: v for k, v in {**whole.generations, **rest.generations}.items() if k != own[0].generation or others},
            {k: v for k, v in {**whole.shares, **rest.shares}.items() if k != gpu},
        )
        values = without.values(gpu)
        found[gpu] = [(table, table.errors(values)) for table in own]
    return found


def landed(fit: ProductFit, gpu: str) -> dict[str, float]:
    """Return what the catalogue's entry of *gpu* has of *fit*, by key, in its units (s).

    Products in steps run at what a burst reaches, times what the power limit sustains, times `IN_STEPS`.
    """
    values = fit.values(gpu)
    lasting = min(values["sustained"], 1.0) * IN_STEPS
    return {
        "matmul_efficiency": values["share"] * lasting,
        "low_precision_efficiency": values["share"] * values["low_precision"] * lasting,
        "burst": 1.0 / lasting,
        **{key: values[key] for key in ("k_half", "tile_side", "overlap")},
        **{key: values[key] * 1e-6 for key in ("split_latency", "kernel_latency")},
    }


def by_class(flops: Numbers, errors: Numbers) -> dict[str, tuple[int, float, float]]:
    """Return the rows, the mean absolute error and the mean error of all, and of each class of size."""
    found = {"all": (len(errors), float(np.abs(errors).mean()), float(errors.mean()))}
    above = np.inf
    for bound, name in CLASSES:
        own = errors[(flops >= bound) & (flops < above)]
        above = bound
        if len(own):
            found[name] = (len(own), float(np.abs(own).mean()), float(own.mean()))
    return found


def calibration(path: Path) -> tuple[dict[str, Any], str]:
    """Return the file of the fit to the products at *path* as plain data, and its report."""
    tables = read_products(path)
    fit, without = fitted(tables), held_out(tables)
    errors = {table.gpu: {} for table in tables}  # type: dict[str, dict[str, Any]]
    for gpu, parts in without.items():
        for table, left_out in parts:
            known = by_class(table.flops, table.errors(fit.values(gpu)))
            unknown = by_class(table.flops, left_out)
            errors[gpu][table.precision] = {
                size: {"rows": rows, **_errors("fitted", own), **_errors("left_out", unknown[size][1:])}
                for size, (rows, *own) in known.items()
            }
    data = {
        "version": 1,
        "generations": {
            generation: {
                name: {
                    "value": _rounded(value, 3),
                    "uncertainty": _rounded(fit.deviations[f"{generation}.{name}"], 2),
                    "unit": QUANTITIES[name].unit or "share",
                    "meaning": QUANTITIES[name].meaning,
                }
                for name, value in values.items()
            }
            for generation, values in fit.generations.items()
        },
        "shares": {
            gpu: {"value": _rounded(share, 3), "uncertainty": _rounded(fit.deviations[gpu], 2)}
            for gpu, share in sorted(fit.shares.items())
        },
        "unmeasured": unmeasured(errors),
        "errors": errors,
        "provenance": {
            "date": datetime.now(UTC).date().isoformat(),
            "data": [path.name],
            "rows": sum(len(table.seconds) for table in tables),
        },
    }
    return data, _report(data)


def unmeasured(errors: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the standard deviations of the time of products of GPUs without data, by what of their like was measured.

    They are the root mean squares of the mean errors, in the class `STEADY`, of GPUs that a fit left out.
    """
    generations = {gpu: device(GPUS, gpu).generation for gpu in errors}
    biases: dict[str, list[float]] = {"generation": [], "nothing": []}
    for gpu, of in errors.items():
        alone = list(generations.values()).count(generations[gpu]) == 1
        biases["nothing" if alone else "generation"] += [one[STEADY]["left_out_bias"] for one in of.values()]
    return {known: _rounded(sqrt(fmean(one**2 for one in own)), 2) for known, own in biases.items() if own}


def _errors(how: str, errors: Sequence[float]) -> dict[str, float]:
    mean, bias = errors
    return {f"{how}_mean": _rounded(mean, 2), f"{how}_bias": _rounded(bias, 2)}


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _report(data: Mapping[str, Any]) -> str:
    """Return the errors as text: of all GPUs in the fit, and of each by a fit without it."""
    lines = [
        "errors of products (mean absolute, mean): in the fit of all GPUs, and by a fit without the GPU",
        f"{'GPU':<10} {'':<5} {'size':<20} {'rows':>5} {'fitted':>15} {'left out':>15}",
    ]
    for gpu, precisions in data["errors"].items():
        for precision, sizes in precisions.items():
            for size, one in sizes.items():
                known, unknown = (
                    f"{one[f'{how}_mean']:.1%} ({one[f'{how}_bias']:+.1%})" for how in ("fitted", "left_out")
                )
                lines.append(f"{gpu:<10} {precision:<5} {size:<20} {one['rows']:>5} {known:>15} {unknown:>15}")
    return "\n".join(lines)


@lru_cache
def shipped() -> ProductFit:
    """Return the stored fit."""
    data = read(Path(__file__).with_name("products.yaml")).data
    values = {
        generation: {name: entry["value"] for name, entry in entries.items()}
        for generation, entries in data["generations"].items()
    }
    shares = {gpu: entry["value"] for gpu, entry in data["shares"].items()}
    deviations = {gpu: entry["uncertainty"] for gpu, entry in data["shares"].items()}
    return ProductFit(values, shares, deviations)
