"""The fit to measured fused attention: one share of the peak by generation, beside exponentials at their units' rate.

A row is the forward pass of causal attention, alone on one GPU. Its arithmetic is that of `Accelerator`: products, and
one exponential for each score. What belongs to the measurement is fitted too: an inference server also writes keys and
values to its cache, and each call has a latency. Inputs and outputs are read and written beside the arithmetic.

Backward passes are not in the tables, nor is precision other than 16 bits. This stands apart from
`scenarios.accuracy.products`, since a kernel of attention has other sides and other units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from clustersim.simulator.hardware.matrix_products import Numbers
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import CalibrationError, SimulatorError
from clustersim.simulator.reading.files import UnreadableFile, read_rows
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.topologies.catalogue import GPUS, IN_STEPS, device
from clustersim.workloads.operators.attentions.core_attention import TILE

COLUMNS = ("batch", "length", "heads", "key_value_heads", "head_size", "us")
"""The numbers of a row, beside its *gpu*."""

PRECISION, BYTES = "bf16", 2

FLOP_A_CLOCK = {"ampere": 2048, "hopper": 4096, "blackwell": 8192}
"""FLOP of a dense product of 16 bits a clock and SM (NVIDIA: architecture whitepapers of A100 and H100; B200: 2,250
TFLOP/s of 148 SMs at 1.86 GHz)."""

UNITS = 16
"""Exponentials a clock and SM (Shah et al. 2024, arXiv:2407.08608, section 3.1)."""

ULTRA = ("b300", "gb300")
"""GPUs with twice as many (NVIDIA, "Inside NVIDIA Blackwell Ultra")."""

START = {"share": 0.8, "cache": 1.0, "latency": 20.0}
"""Of the fit: share of the peak that products reach; passes over the keys and values that are written to the cache, in
reads and writes of them; microseconds of a call."""

SPREAD = {"share": 0.3, "cache": 1.5, "latency": 1.0}
"""Deviations of the logarithms about the start, wide: they hold parameters on which no row depends."""

NOISE = 0.1
"""Relative error of a row."""


@dataclass(frozen=True, eq=False)
class Attention:
    """The measured kernels of one *gpu*: *sides* (rows x 5) by `COLUMNS`, and *seconds* (rows)."""

    gpu: str
    sides: Numbers
    seconds: Numbers

    @property
    def generation(self) -> str:
        """The generation of the GPU."""
        return device(GPUS, self.gpu).generation or ""

    def predicted(self, values: Mapping[str, float]) -> Numbers:
        """Return the seconds of each row. *values*: those of `START`, by name."""
        gpu = device(GPUS, self.gpu).accelerator()
        batch, length, heads, key_value_heads, head_size = self.sides.T
        scores = batch * heads * length * np.minimum(length, length / 2 + TILE // 2)
        arithmetic = scores * (4 * head_size / (gpu.peak(PRECISION) * values["share"]) + 1.0 / exponentials(self.gpu))
        rows = 2 * BYTES * batch * length * head_size
        traffic = rows * (heads + key_value_heads) + values["cache"] * 2 * rows * key_value_heads
        memory = traffic / (gpu.memory_bandwidth * gpu.memory_efficiency)
        return np.asarray(np.hypot(arithmetic, memory) + values["latency"] * 1e-6)

    def errors(self, values: Mapping[str, float]) -> Numbers:
        """Return predicted / measured - 1 of each row."""
        return self.predicted(values) / self.seconds - 1.0


def exponentials(gpu: str) -> float:
    """Return the exponentials a second of all SMs of *gpu*, at the clock of its peak."""
    entry = device(GPUS, gpu)
    units = UNITS * (2 if gpu in ULTRA else 1)
    return units * entry.accelerator().peak(PRECISION) / FLOP_A_CLOCK[entry.generation or ""]


def read_attention(path: Path) -> list[Attention]:
    """Return the kernels of the table at *path* by GPU. Raises `CalibrationError`."""
    try:
        header, *rows = read_rows(path)
    except UnreadableFile as error:
        raise CalibrationError(str(error)) from None
    groups: dict[str, list[list[float]]] = {}
    for row in rows:
        cells, place = dict(zip(header.cells, row.cells, strict=False)), f"{path}:{row.line}"
        try:
            gpu, numbers = cells["gpu"], [float(cells[name]) for name in COLUMNS]
        except (KeyError, ValueError):
            raise CalibrationError(f"{place}: a kernel of attention needs gpu, {', '.join(COLUMNS)}") from None
        if not all(0 < one < float("inf") for one in numbers):
            raise CalibrationError(f"{place}: sides and times are above 0, not {', '.join(map(str, numbers))}")
        _check_gpu(place, gpu)
        groups.setdefault(gpu, []).append(numbers)
    if not groups:
        raise CalibrationError(f"{path}: has no rows")
    tables = ((gpu, np.array(numbers)) for gpu, numbers in groups.items())
    return [Attention(gpu, table[:, :5], table[:, 5] * 1e-6) for gpu, table in tables]


def _check_gpu(place: str, gpu: str) -> None:
    try:
        generation = device(GPUS, gpu).generation
    except SimulatorError as error:
        raise CalibrationError(f"{place}: {error}") from None
    if generation not in FLOP_A_CLOCK:
        raise CalibrationError(f"{place}: {gpu}: attention is fitted for {', '.join(FLOP_A_CLOCK)}, not {generation}")


def fitted(tables: Sequence[Attention]) -> dict[str, float]:
    """Return the values of `START` of the GPUs of one generation."""
    start, spread = np.log([*START.values()]), np.array([*SPREAD.values()])

    def residuals(x: Numbers) -> Numbers:
        values = dict(zip(START, np.exp(x).tolist(), strict=True))
        errors = [np.log(one.predicted(values) / one.seconds) / NOISE for one in tables]
        return np.concatenate([*errors, (x - start) / spread])

    found = least_squares(residuals, start, loss="soft_l1")
    return dict(zip(START, np.exp(found.x).tolist(), strict=True))


def calibration(path: Path) -> dict[str, Any]:
    """Return the fit to the kernels at *path*, with the mean absolute and the mean error of each GPU, as plain data.

    The errors of a GPU left out are those of a fit to the others of its generation.
    """
    tables = read_attention(path)
    data: dict[str, Any] = {"version": 1, "generations": {}, "errors": {}, "provenance": {"data": [path.name]}}
    for generation in dict.fromkeys(one.generation for one in tables):
        own = [one for one in tables if one.generation == generation]
        values = fitted(own)
        data["generations"][generation] = {name: float(f"{value:.3g}") for name, value in values.items()}
        for one in own:
            others = [other for other in own if other is not one]
            known = {"rows": len(one.seconds), **_errors("fitted", one.errors(values))}
            data["errors"][one.gpu] = known | (_errors("left_out", one.errors(fitted(others))) if others else {})
    return data


def _errors(how: str, errors: Numbers) -> dict[str, float]:
    mean, bias = (float(f"{one:.2g}") for one in (np.abs(errors).mean(), errors.mean()))
    return {f"{how}_mean": mean, f"{how}_bias": bias}


def shipped() -> dict[str, dict[str, float]]:
    """Return the stored values by generation."""
    return {
        name: dict(values)
        for name, values in read(Path(__file__).with_name("attention.yaml")).data["generations"].items()
    }


def landed(gpu: str) -> dict[str, float]:
    """Return what the catalogue's entry of *gpu* has of the fit, by key: in a step, at the rate `IN_STEPS`."""
    entry = device(GPUS, gpu)
    share = shipped()[entry.generation or ""]["share"]
    each = exponentials(gpu) / entry.accelerator().sms
    return {"cudnn_attention_efficiency": share * IN_STEPS, "exponentials": each * IN_STEPS}
