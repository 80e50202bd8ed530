"""Measured times of single layers and matrix products beside the times priced by shape.

The layers were measured on a V100 (PipeDream).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

from clustersim.scenarios.accuracy.products import read_products, shipped
from clustersim.scenarios.accuracy.provenance import source_of_table
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.topologies import cluster
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.architectures.timed_models import MeasuredLayer, profile
from clustersim.workloads.operators.model import Layer, OperatorLayer
from clustersim.workloads.operators.operator import Operator
from clustersim.workloads.software_stack import software

SAMPLES = {"alexnet": 256, "vgg16": 128, "resnet50": 128, "resnet101": 64}
"""Models that can be priced by shape, and their measured batch sizes, inferred from the bytes of activations."""

CLASSES = ("convolution", "linear", "batch norm", "other elementwise")

COLUMNS = (
    "model",
    "layers",
    "forward, measured",
    "priced",
    "error",
    "backward, measured",
    "priced",
    "error",
)


@dataclass(frozen=True)
class LayerClass:
    """All layers of one *kind* of a model: (measured, priced) milliseconds of the *forward* and *backward* passes."""

    model: str
    kind: str
    forward: tuple[float, float]
    backward: tuple[float, float]

    def row(self) -> list[str]:
        """Return a row of `COLUMNS`."""
        return [f"{self.model}", self.kind, *_compared(*self.forward), *_compared(*self.backward)]


def _compared(measured: float, priced: float) -> list[str]:
    return [f"{measured:.1f}", f"{priced:.1f}", f"{priced / measured - 1:+.0%}" if measured else "-"]


def layer_classes(path: Path, preset: str = "dgx1") -> list[LayerClass]:
    """Return the classes of each model of `SAMPLES` in the profiles at *path*, priced on a GPU of *preset*."""
    node = cluster(preset)
    device = node.accelerator(node.gpus[0])
    return [one for name in SAMPLES for one in _of_a_model(path, name, device)]


def _of_a_model(path: Path, name: str, device: Accelerator) -> Iterator[LayerClass]:
    samples = SAMPLES[name]
    measured = _measured(profile(path, name, samples).layers)
    priced = _priced(model(name, fused=False).layers, samples, device)
    both = {kind: (_sum(measured.get(kind, ())), _sum(priced.get(kind, ()))) for kind in CLASSES}
    every = [*both.values()]
    both["all"] = _sum(one for one, _ in every), _sum(one for _, one in every)
    for kind, ((forward, backward), (forward_priced, backward_priced)) in both.items():
        yield LayerClass(name, kind, (forward, forward_priced), (backward, backward_priced))


def _sum(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    pairs = list(pairs)
    return sum(forward for forward, _ in pairs), sum(backward for _, backward in pairs)


def _measured(layers: Iterable[Layer]) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for layer in layers:
        if isinstance(layer, MeasuredLayer):
            times = 1e3 * layer.forward_seconds, 1e3 * layer.backward_seconds
            found.setdefault(_class_of_kind(layer.kind), []).append(times)
    return found


def _class_of_kind(kind: str) -> str:
    classes = {"Conv2d": "convolution", "Linear": "linear", "BatchNorm2d": "batch norm"}
    return classes.get(kind.partition("(")[0], "other elementwise")


def _priced(layers: Iterable[Layer], samples: int, device: Accelerator) -> dict[str, list[tuple[float, float]]]:
    stack = software("ddp")

    def milliseconds(kernels: Iterable[Kernel]) -> float:
        return 1e3 * device.seconds(tuple(kernels), stack)

    found: dict[str, list[tuple[float, float]]] = {}
    for layer in layers:
        for operator in layer.operators if isinstance(layer, OperatorLayer) else ():
            backward = (*operator.backward_input(samples), *operator.backward_weights(samples))
            times = milliseconds(operator.forward(samples)), milliseconds(backward)
            found.setdefault(_class_of(operator), []).append(times)
    return found


def _class_of(operator: Operator) -> str:
    name = operator.operation.operator
    return name if name in CLASSES else "other elementwise"


TABLE = "published/products.csv"
"""Every ninth by size of 13,500 products measured by ai-dynamo/aiconfigurator: gpu, dtype, m, n, k, us, framework."""

LONG = 1e-4
"""s. A longer product is a large part of a training step; shorter ones are those of decoding."""


@dataclass(frozen=True)
class ProductErrors:
    """The relative *errors* of the priced times of products on *gpu* in *precision*, and the measured *seconds*."""

    source: str
    gpu: str
    precision: str
    errors: Sequence[float]
    seconds: Sequence[float]

    @property
    def long(self) -> list[float]:
        """The errors of products that take longer than `LONG`."""
        return [error for error, seconds in zip(self.errors, self.seconds, strict=True) if seconds > LONG]


def products(path: Path) -> list[ProductErrors]:
    """Return the errors of the products of the table at *path*, by GPU and precision in the order of the table.

    Each is priced as it was measured: alone, in a burst, by the shipped fit to products.
    """
    fit, source = shipped(), source_of_table(path.stem)
    return [
        ProductErrors(source, one.gpu, one.precision, one.errors(fit.values(one.gpu)).tolist(), one.seconds.tolist())
        for one in read_products(path)
    ]


def mean_error(errors: Sequence[float]) -> float:
    """Return the mean of the absolute *errors*; 0 without any."""
    return fmean(map(abs, errors)) if errors else 0.0
