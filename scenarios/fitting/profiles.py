"""Layer profiles of convolutional models: rows of the fit of a V100, for convolutions and for elementwise layers.

The profiler waits for the GPU after each layer, which adds a constant to each layer's forward and backward pass. The
constants are fitted too, but go to no file (PipeDream's profiler: Narayanan et al. 2019, arXiv:1806.03377, section
3.1).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from scenarios.fitting.computation import V100, V100_PARAMETERS
from scenarios.fitting.parameter import Parameter, Values
from scenarios.fitting.rerun import landed
from scenarios.fitting.row import Row
from scenarios.results.calibrated_range import Extent, calibrated_range
from simulator.kernel import Kernel
from simulator.schedule import Compute
from topologies.catalogue import GPUS, device
from workloads.operators.convolution import Convolution
from workloads.operators.elementwise import Elementwise
from workloads.operators.layer import OperatorLayer
from workloads.specification import model

PARAMETERS = (
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


def rows(file: Path) -> list[Row]:
    """Return a row for each model, class of layers and direction in *file*."""
    return list(_rows(file))


def covered() -> dict[str, Extent]:
    """Return the calibrated range of the profiled models."""
    kernels = (
        _kernels(name, operator, phase)
        for name in BATCHES
        for operator in _OPERATORS
        for phase in ("forward", "backward")
    )
    return calibrated_range(Compute(name="", kernels=own) for own in kernels)


def _rows(file: Path) -> Iterator[Row]:
    with file.open(newline="") as opened:
        lines = [line for line in csv.DictReader(opened) if line["model"] in BATCHES]
    for name in BATCHES:
        for operator in _OPERATORS:
            own = [line for line in lines if line["model"] == name and CLASSES.get(_operator(line)) is operator]
            for phase in ("forward", "backward") if own else ():
                seconds = sum(float(line[f"{phase}_ms"]) for line in own) / 1e3
                layers = _Layers(len(own), seconds, _kernels(name, operator, phase))
                groups = {"data": file.stem, "model": name, "class": operator.__name__, "phase": phase}
                uses = frozenset(p.name for p in PARAMETERS if p.lands or p.name.endswith(phase))
                yield Row(f"{name} {operator.__name__} {phase}", seconds, _predicted(layers, phase), groups, uses, 0.1)


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
        gpu = device(GPUS, "v100_16gb").model_copy(update=landed(PARAMETERS, values, V100[0])).accelerator()
        return gpu.seconds(layers.kernels) + layers.count * values[f"profiler.{phase}"]

    return predicted
