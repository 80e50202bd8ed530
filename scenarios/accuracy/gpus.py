"""The fit of GPUs and software stacks: their parameters, rows of layer profiles, and the calibration file.

The profiler waits for the GPU after each layer, which adds a constant to each layer's forward and backward pass. The
constants are fitted too, but go to no file (PipeDream's profiler: Narayanan et al. 2019, arXiv:1806.03377, section
3.1).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from clustersim.scenarios.accuracy import published_runs
from clustersim.scenarios.accuracy.published_runs import landed
from clustersim.scenarios.accuracy.robust_fit import (
    FOLDS,
    Fit,
    FitRow,
    HeldOut,
    Parameter,
    Values,
    cross_validated,
    fit_report,
    least_squares,
)
from clustersim.scenarios.results.uncertainty import Extent, calibrated_range, joined
from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.ops import Compute
from clustersim.topologies.catalogue import GPUS, device
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.operators.convolution import Convolution
from clustersim.workloads.operators.elementwise import Elementwise
from clustersim.workloads.operators.model import OperatorLayer

A100 = ("clustersim.topologies.gpus.a100_40gb", "clustersim.topologies.gpus.a100_80gb")
"""One type of GPU with two sizes of memory: all fitted parameters are common to both."""

V100 = ("clustersim.topologies.gpus.v100_16gb", "clustersim.topologies.gpus.v100_32gb")


def of_gpu(name: str, files: tuple[str, ...], *, matmul: float = 0.75) -> tuple[Parameter, ...]:
    """Return the parameters of the GPU *name*, whose values go to *files*; *matmul*: start of its efficiency."""

    def parameter(
        key: str, start: float, low: float, high: float, meaning: str, spread: float | None = None, unit: str = ""
    ) -> Parameter:
        lands = tuple(f"{file}:{key}" for file in files)
        return Parameter(f"{name}.{key}", start, low, high, unit, meaning, lands, spread=spread)

    # depths, tiles and latencies of products are fitted to products (scenarios.accuracy.products)
    reached = "share of the peak that long products of full waves reach"
    return (
        parameter("matmul_efficiency", matmul, 0.3, 0.95, reached),
        # copies of 100 MB reach 0.9 (Calculon, systems/a100_80g.json); kernels that compute reach less
        parameter(
            "memory_efficiency",
            0.88,
            0.3,
            0.98,
            "share of the memory's bandwidth that memory-bound kernels reach",
            0.07,
        ),
        # kernels of several generations: 30 to 50 % of the A100's peak forward, 73 % at best (arXiv:2307.08691,
        # abstract and section 4.1)
        parameter(
            "attention_efficiency",
            0.45,
            0.05,
            0.73,
            "share of the peak that the products of fused attention reach",
            0.25,
        ),
        parameter("attention_backward", 0.25, 0.05, 0.95, "the same in its backward pass"),
        # Sinha et al. 2022 (arXiv:2208.11035): 8 % between GPUs of one cluster, a few standard deviations; 3 % if only
        # three
        parameter("spread", 0.015, 0.002, 0.03, "coefficient of variation of the speed of products among GPUs", 0.7),
    )


def _stack(
    name: str, key: str, start: float, low: float, high: float, meaning: str, spread: float | None = None
) -> Parameter:
    alike = {"exchange": MESSAGES, "launch": LAUNCHES}.get(key, ALIKE.get(name, ()))
    lands = tuple(f"clustersim.workloads.software.{one}:{key}" for one in (name, *alike))
    return Parameter(f"{name}.{key}", start, low, high, "s", meaning, lands, spread=spread)


ALIKE = {
    "megatron_deepspeed": ("huggingface_deepspeed",),
    "fsdp": ("fsdp_sdpa",),
}
"""Further entries of a stack that have its fitted parameters. A stack that is composed of another has those of that
one."""

MESSAGES = ("megatron_core", "megatron_deepspeed")
"""Stacks that lose as much time with each message of a pipeline as Megatron-LM."""

LAUNCHES = ("megatron_core", "megatron_deepspeed")
"""Stacks whose layers are Megatron-LM's, with the same operators and Python around a kernel."""

# first estimates: ten milliseconds of host work for a step, a few lines of Python for a tensor; as much beside the
# operators after a message as these take
STACKS = (
    _stack("megatron", "exchange", 1e-4, 1e-6, 3e-3, "lost with each message beside its operators", 1.0),
    _stack("megatron", "launch", 4e-5, 5e-6, 2e-4, "host time to launch a kernel that is priced"),
    _stack("megatron_deepspeed", "tensor", 2e-5, 1e-7, 1e-3, "of a step for each tensor beside its operators", 1.0),
    # a twentieth of the shortest published step, 0.41 s, at the most
    _stack("fsdp", "load", 1e-2, 1e-4, 0.02, "host time of each step for loading data and logging", 0.7),
)

A100_PARAMETERS = (*of_gpu("a100", A100), *STACKS)
"""The parameters that the published runs on A100 determine."""


def _v100(key: str, start: float, low: float, high: float, meaning: str, spread: float, unit: str = "") -> Parameter:
    lands = tuple(f"{file}:{key}" for file in V100)
    return Parameter(f"v100.{key}", start, low, high, unit, meaning, lands, spread=spread)


V100_PARAMETERS = (
    _v100("matmul_efficiency", 0.75, 0.3, 0.95, "share of the fp16 peak that long products of full waves reach", 0.3),
    _v100("fp32_efficiency", 0.85, 0.3, 0.99, "the same of products in fp32", 0.3),
    _v100("convolution_efficiency", 0.75, 0.3, 0.95, "the same of convolutions in fp32", 0.3),
    _v100(
        "convolution_k_half",
        64.0,
        4.0,
        512.0,
        "inner dimension at which a convolution reaches half of it",
        0.5,
        "elements",
    ),
    _v100(
        "memory_efficiency", 0.88, 0.3, 0.98, "share of the memory's bandwidth that memory-bound kernels reach", 0.07
    ),
)
"""The parameters that published runs and layer profiles on V100 determine."""

PROFILE_PARAMETERS = (
    *(
        p
        for p in V100_PARAMETERS
        if p.name.rpartition(".")[2] in ("convolution_efficiency", "convolution_k_half", "memory_efficiency")
    ),
    *(
        Parameter(f"profiler.{phase}", 2e-4, 1e-6, 2e-3, "s", f"what the profiler takes of each layer's {phase} pass")
        for phase in ("forward", "backward")
    ),
)

BATCHES = {"alexnet": 256, "vgg16": 128, "resnet50": 128, "resnet101": 64}
"""Images of the profiled batches: bytes of the last layer's output over 4 x 1,000 classes."""

CLASSES = {"Conv2d": Convolution, "BatchNorm2d": Elementwise, "ReLU": Elementwise, "MaxPool2d": Elementwise}
"""The operator by which each of torch's modules is priced."""


_OPERATORS = Convolution, Elementwise


@dataclass(frozen=True)
class _Layers:
    """All layers of one class of a model: their count, their measured seconds and the kernels that price them."""

    count: int
    seconds: float
    kernels: tuple[Kernel, ...]


def profile_rows(file: Path) -> list[FitRow]:
    """Return a row for each model, class of layers and direction in *file*."""
    return list(_profile_rows(file))


def profiled_range() -> dict[str, Extent]:
    """Return the calibrated range of the profiled models."""
    kernels = (
        _kernels(name, operator, phase)
        for name in BATCHES
        for operator in _OPERATORS
        for phase in ("forward", "backward")
    )
    return calibrated_range(Compute(name="", kernels=own) for own in kernels)


def _profile_rows(file: Path) -> Iterator[FitRow]:
    with file.open(newline="") as opened:
        lines = [line for line in csv.DictReader(opened) if line["model"] in BATCHES]
    for name in BATCHES:
        for operator in _OPERATORS:
            own = [line for line in lines if line["model"] == name and CLASSES.get(_operator(line)) is operator]
            for phase in ("forward", "backward") if own else ():
                seconds = sum(float(line[f"{phase}_ms"]) for line in own) / 1e3
                layers = _Layers(len(own), seconds, _kernels(name, operator, phase))
                groups = {"data": file.stem, "model": name, "class": operator.__name__, "phase": phase}
                uses = frozenset(p.name for p in PROFILE_PARAMETERS if p.lands or p.name.endswith(phase))
                yield FitRow(
                    f"{name} {operator.__name__} {phase}", seconds, _predicted(layers, phase), groups, uses, 0.1
                )


def _operator(line: Mapping[str, str]) -> str:
    return line["op"].partition("(")[0]


@lru_cache
def _kernels(name: str, operator: type, phase: str) -> tuple[Kernel, ...]:
    images = BATCHES[name]
    every = [
        one
        for layer in model(name, "fp32", fused=False).layers
        if isinstance(layer, OperatorLayer)
        for one in layer.operators
    ]
    own = [one for one in every if isinstance(one, operator)]
    if phase == "forward":
        return tuple(kernel for p in own for kernel in p.forward(images))
    return tuple(kernel for p in own for kernel in (*p.backward_input(images), *p.backward_weights(images)))


def _predicted(layers: _Layers, phase: str) -> Callable[[Values], float]:
    def predicted(values: Values) -> float:
        gpu = device(GPUS, "v100_16gb").model_copy(update=landed(PROFILE_PARAMETERS, values, V100[0])).accelerator()
        return gpu.seconds(layers.kernels) + layers.count * values[f"profiler.{phase}"]

    return predicted


PROFILES = "layer_profiles_v100"
"""The stem of the file of profiles; all other files are those of `published_runs.PUBLICATIONS`."""


def takes(path: Path) -> bool:
    """Return whether the file at *path* measures computation."""
    return path.stem == PROFILES or path.stem in published_runs.PUBLICATIONS


def calibration(paths: Sequence[Path]) -> tuple[dict[str, Any], str]:
    """Return the calibration file of the measurements at *paths*, as plain data, and the report of the fit.

    Parameters on which no row depends are left out.
    """
    rows = [row for path in paths for row in rows_of(path)]
    used = frozenset().union(*(row.uses for row in rows))
    known = dict.fromkeys((*A100_PARAMETERS, *V100_PARAMETERS, *PROFILE_PARAMETERS))
    fit = least_squares([p for p in known if p.name in used], rows)
    held_out = {f"one in {FOLDS} at a time": cross_validated(fit)}
    if len(paths) > 1:
        held_out["one source at a time"] = cross_validated(fit, lambda _, row: row.groups["data"])
    return contents(fit, held_out, paths), fit_report(fit, held_out)


def rows_of(path: Path) -> list[FitRow]:
    """Return the rows of *path*. Rows on V100 determine nothing of a software stack: the A100's, which are more, do."""
    if path.stem == PROFILES:
        return profile_rows(path)
    return published_runs.rows(path, V100_PARAMETERS if path.stem in published_runs.ON_V100 else A100_PARAMETERS)


def _covered(paths: Sequence[Path]) -> dict[str, Extent]:
    extents: dict[str, Extent] = {}
    for path in paths:
        extents = joined(extents, profiled_range() if path.stem == PROFILES else published_runs.covered(path))
    return dict(sorted(extents.items()))


def contents(fit: Fit, held_out: Mapping[str, HeldOut], paths: Sequence[Path]) -> dict[str, Any]:
    """Return the calibration file of *fit* as plain data; *held_out*: errors of cross-validations by method."""
    return {
        "version": 1,
        "parameters": {p.name: _entry(p, fit) for p in fit.parameters},
        "covariance": [[_rounded(float(x), 4) for x in line] for line in fit.covariance],
        "covered": {quantity: [float(low), float(high)] for quantity, (low, high) in _covered(paths).items()},
        "provenance": {
            "date": datetime.now(UTC).date().isoformat(),
            "data": [path.name for path in paths],
            "rows": len(fit.rows),
            "held_out": {how: _errors(errors) for how, errors in held_out.items()},
        },
    }


def _entry(parameter: Parameter, fit: Fit) -> dict[str, Any]:
    return {
        "value": _rounded(fit.found[parameter.name], 3),
        "uncertainty": _rounded(fit.deviation(parameter.name), 2),
        "unit": parameter.unit or "share",
        "meaning": parameter.meaning,
        "lands": list(parameter.lands),
    }


def _errors(errors: HeldOut) -> dict[str, dict[str, float]]:
    return {
        str(data): {
            "rows": len(part.rows),
            "mean": _rounded(part.mean, 2),
            "median": _rounded(part.median, 2),
            "worst": _rounded(part.worst, 2),
        }
        for data, part in errors.by("data").items()
    }


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
