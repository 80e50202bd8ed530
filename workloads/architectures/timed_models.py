"""Models whose layers have given times, a profile and a unit model, and their `model:` sections.

Models whose layers have given times: a profile, and a unit model.

A profile is a measured graph of layers with their times, activations and parameters. The file is CSV with the columns
model, node, op, forward_ms, backward_ms, activation_bytes, parameter_bytes and preds (names joined by ``;``), one line
a layer, in any order; further columns are ignored. It is the graph that PipeDream's profiler writes (Narayanan et al.
2019, arXiv:1806.03377). Bytes are of fp32.

A unit model has equal layers, as in the figures of papers. In both durations, activations and parameters are given, so
nothing depends on the accelerator or on the size of a micro-batch.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from math import isfinite
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from clustersim.simulator.hardware.kernel import BYTES, Kernel, measured
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import TableRow, UnreadableFile, read_rows
from clustersim.simulator.reading.lookup import nearest
from clustersim.simulator.reading.plain_text import text_fault
from clustersim.simulator.reading.quantities import LARGEST, Amount, Count, Quantity, Time
from clustersim.simulator.reading.validation import Fault
from clustersim.workloads.architectures.model_keys import KNOWN, MOST_LAYERS, Named, most
from clustersim.workloads.operators.model import Layer, Model
from clustersim.workloads.operators.operator import Fused, ParameterTensor, parameter_tensors


class ProfileSpecification(Named):
    """Measured layers."""

    kind: Annotated[Literal["profile"], KNOWN] = "profile"
    """profile: from measured layers."""
    profile: Annotated[str, Field(min_length=1)]
    """CSV file of measured layers, relative to the scenario: forward_ms, backward_ms, activation_bytes,
    parameter_bytes. Required."""
    model: str | None = None
    """The model, where the file has several."""
    batch_size: Count | None = None
    """Samples on which the layers were measured, where the file does not say."""

    def build(self, precision: str = "fp32", fused: Fused = True, folder: Path | None = None) -> Model:
        """The model; durations are as measured, whatever *precision* and *fused*. Paths are relative to *folder*."""

        return profile((folder or Path()) / self.profile, self.model, self.batch_size, precision)


class UnitSpecification(Named):
    """Durations that are given per layer and micro-batch; the optimizer takes no time."""

    kind: Annotated[Literal["unit"], KNOWN]
    """unit: given durations. Required."""
    num_layers: Count
    """Layers. Required."""
    forward: Time
    """Time of a layer's forward pass of one micro-batch. Required"""
    backward: Time
    """Time of a layer's backward pass of one micro-batch. Required"""
    parameters: Quantity = 0.0
    """Parameters of the whole model, e.g. 25.6M."""
    activations: Amount = 0.0
    """Bytes of the activations at a layer's boundary, for one micro-batch"""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        most("num_layers", self.num_layers, MOST_LAYERS)
        if not self.parameters.is_integer():
            raise Fault("parameters", f"must be a whole number, not {self.parameters}")
        return self

    def build(self, precision: str = "fp32", fused: Fused = True, folder: Path | None = None) -> Model:
        """The model; durations are as given, whatever *precision* and *fused*."""

        sizes = int(self.parameters), self.activations
        return unit_model(self.num_layers, self.forward, self.backward, *sizes, precision=precision, name=self.title)


COLUMNS = ("model", "node", "op", "forward_ms", "backward_ms", "activation_bytes", "parameter_bytes", "preds")
"""What a profile must have."""

_ALIAS = re.compile(r"(View|Size|__getitem__)\b|.*\binplace\b", re.DOTALL)
"""Operators, as torch prints them, whose output is the memory of their input."""


@dataclass(frozen=True)
class MeasuredLayer(Layer):
    """One line of a profile. *scale*: the samples of the measured micro-batch; 0: the times hold for any micro-batch.

    Times and bytes are proportional to the samples. The measured backward pass is both gradients together; half of it
    counts as that of the weights, if there are any. *cut_bytes*: all bytes that pass from the layers up to this one to
    the layers after it. *aliased*: its output is the memory of its input.
    """

    name: str
    kind: str
    forward_seconds: float
    backward_seconds: float
    held_bytes: float
    parameter_bytes: float
    before: tuple[str, ...] = ()
    line: int = 0
    cut_bytes: float = 0.0
    scale: int = 0

    @property
    def aliased(self) -> bool:
        """True if it works in place, or is only a view of its input."""
        return _ALIAS.match(self.kind) is not None

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """One tensor of all its parameters, or none."""
        count = round(self.parameter_bytes / BYTES["fp32"])
        return parameter_tensors(count) if count else ()

    def forward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """Its measured forward time."""
        return self._measured(self.forward_seconds, micro_batch_size)

    def backward_input(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """Its measured backward time, or half of it if it has weights."""
        return self._measured(self.backward_seconds / (2 if self.tensors else 1), micro_batch_size)

    def backward_weights(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """Half of its measured backward time, if it has weights."""
        return self._measured(self.backward_seconds / 2, micro_batch_size) if self.tensors else ()

    def activation_bytes(self, micro_batch_size: int) -> float:
        """Its output, unless that is the memory of its input."""
        return 0.0 if self.aliased else self.held_bytes * self._factor(micro_batch_size)

    def output_bytes(self, micro_batch_size: int) -> float:
        """What would cross a cut behind this layer."""
        return self.cut_bytes * self._factor(micro_batch_size)

    def _measured(self, seconds: float, samples: int) -> tuple[Kernel, ...]:
        return (measured(seconds * self._factor(samples)),) if seconds else ()

    def _factor(self, samples: int) -> float:
        return samples / self.scale if self.scale else 1.0


def profile(path: Path, model: str | None = None, batch_size: int | None = None, precision: str = "fp32") -> Model:
    """The model named *model* (None: the only one) of the file at *path*, its layers in topological order.

    *batch_size* is the number of samples that were measured at once: times and activations of another micro-batch are
    taken as proportional. Without it they stand for a micro-batch of any size, and the model's notes say so. Inputs
    are no layers: their time is that of loading data. Raises `ScenarioError` naming file and line.
    """
    rows = [_layer(path, line, row) for line, row in _chosen(path, _rows(path), model)]
    ordered = _sorted(path, rows)
    inputs = {layer.name for layer in ordered if layer.kind.startswith("Input")}
    layers = [
        replace(layer, cut_bytes=cut, scale=batch_size or 0)
        for layer, cut in zip(ordered, _cuts(ordered), strict=True)
        if layer.name not in inputs
    ]
    if not layers:
        raise ScenarioError(f"{path}: the model has no layers beside its inputs")
    loaded = sum(layer.held_bytes for layer in ordered if layer.name in inputs)
    note = (
        f"measured with {batch_size} samples at once; other micro-batches are taken as proportional"
        if batch_size
        else "measured durations stand for a micro-batch of any size; give batch_size, as measured, to scale them"
    )
    name = model or path.stem
    return Model(name, layers, loaded / batch_size if batch_size else 0.0, precision=precision, notes=(note,))


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Each line's number and fields, those of `COLUMNS` at least."""
    try:
        header, *rows = [*read_rows(path)] or [TableRow(1, "", [])]
    except UnreadableFile as error:
        raise _unreadable(path, error) from None
    missing = [column for column in COLUMNS if column not in header.cells]
    if missing:
        raise ScenarioError(f"{path}:1: a profile needs the columns {', '.join(COLUMNS)}; no {missing[0]}")
    for row in rows:
        if fault := text_fault(row.text):
            raise ScenarioError(f"{path}:{row.line}: {fault}")
    lines = [(row.line, dict(zip(header.cells, row.cells, strict=False))) for row in rows]
    for line, fields in lines:
        if not fields.keys() >= set(COLUMNS):
            raise ScenarioError(f"{path}:{line}: has fewer fields than the header")
    return lines


def _unreadable(path: Path, error: UnreadableFile) -> ScenarioError:
    if error.missing:
        return ScenarioError(f"{path}: there is no such profile")
    if error.reason.startswith("is not a text file"):
        return ScenarioError(f"{path}: is not a CSV file in UTF-8")
    return ScenarioError(f"{error}; a profile is a CSV file")


def _chosen(
    path: Path, rows: Sequence[tuple[int, dict[str, str]]], model: str | None
) -> list[tuple[int, dict[str, str]]]:
    models = list(dict.fromkeys(row["model"] for _, row in rows))
    if not models:
        raise ScenarioError(f"{path}: has no layers, only a header")
    if model is None and len(models) > 1:
        raise ScenarioError(f"{path}: holds several models; choose one with model: {', '.join(models)}")
    if model is not None and model not in models:
        raise ScenarioError(f'{path}: has no model "{model}"; there are: {", ".join(nearest(model, models))}')
    return [(line, row) for line, row in rows if model is None or row["model"] == model]


def _layer(path: Path, line: int, row: Mapping[str, str]) -> MeasuredLayer:
    name = row["node"]
    if not name:
        raise ScenarioError(f"{path}:{line}: node: a layer needs a name")
    forward, backward, activations, parameters = (_number(path, line, column, row[column]) for column in COLUMNS[3:7])
    before = tuple(filter(None, row["preds"].split(";")))
    return MeasuredLayer(name, row["op"], forward / 1e3, backward / 1e3, activations, parameters, before, line)


def _number(path: Path, line: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ScenarioError(f'{path}:{line}: {column}: must be a number, not "{text}"') from None
    if not isfinite(value) or value < 0:
        raise ScenarioError(f"{path}:{line}: {column}: must be finite and at least 0, not {text}")
    if value > LARGEST["size"]:
        raise ScenarioError(f"{path}:{line}: {column}: {text} is absurd; the most that is taken is {LARGEST['size']:g}")
    return value


def _sorted(path: Path, layers: Sequence[MeasuredLayer]) -> list[MeasuredLayer]:
    """In topological order; of those that could be next, the least name by its numbers (node9 before node10)."""
    named: dict[str, MeasuredLayer] = {}
    for layer in layers:
        if layer.name in named:
            raise ScenarioError(f"{path}:{layer.line}: {layer.name} stands in line {named[layer.name].line} already")
        named[layer.name] = layer
    for layer in layers:
        for name in layer.before:
            if name not in named:
                raise ScenarioError(f'{path}:{layer.line}: preds: there is no layer "{name}"')
    sorter = TopologicalSorter({layer.name: layer.before for layer in layers})
    try:
        sorter.prepare()
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise ScenarioError(f"{path}:{named[error.args[1][0]].line}: layers wait for each other: {circle}") from None
    ready: list[tuple[list[tuple[int, str]], str]] = []
    ordered = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heappush(ready, (_natural(name), name))
        _, name = heappop(ready)
        ordered.append(named[name])
        sorter.done(name)
    return ordered


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(digits or 0), text) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def _cuts(layers: Sequence[MeasuredLayer]) -> Iterable[float]:
    """For each layer in order: the bytes of all outputs, up to its own, that are still needed after it."""
    last = {name: number for number, layer in enumerate(layers) for name in layer.before}
    alive: dict[str, float] = {}
    for number, layer in enumerate(layers):
        alive[layer.name] = layer.held_bytes
        alive = {name: nbytes for name, nbytes in alive.items() if last.get(name, -1) > number}
        yield sum(alive.values())


@dataclass(frozen=True)
class UnitLayer(Layer):
    """A layer of *forward_seconds* and *backward_seconds* for every micro-batch.

    Half of the backward pass is for the input and half for the weights, as the zero-bubble schedules draw it (Qi et al.
    2023, arXiv:2401.10241, figure 2). *boundary_bytes*: it passes on so many, and keeps so many for its backward pass.
    """

    name: str
    forward_seconds: float
    backward_seconds: float
    count: int = 0
    boundary_bytes: float = 0.0
    kind: str = "unit"

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """One tensor of all the layer's parameters, or none."""
        return parameter_tensors(self.count) if self.count else ()

    def forward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """One kernel of the given duration."""
        return (measured(self.forward_seconds),)

    def backward_input(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """One kernel of half the given duration."""
        return (measured(self.backward_seconds / 2),)

    def backward_weights(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """One kernel of half the given duration."""
        return (measured(self.backward_seconds / 2),)

    def activation_bytes(self, micro_batch_size: int) -> float:
        """The given bytes per layer boundary."""
        return self.boundary_bytes

    def output_bytes(self, micro_batch_size: int) -> float:
        """The given bytes per layer boundary."""
        return self.boundary_bytes


def unit_model(
    num_layers: int,
    forward: float,
    backward: float,
    parameters: int = 0,
    activations: float = 0.0,
    *,
    precision: str = "fp32",
    name: str = "unit",
) -> Model:
    """*num_layers* layers of *forward* and *backward* seconds each; the optimizer is free.

    *parameters* in all, spread as evenly as they go, the first layers taking one more; *activations* in bytes per layer
    boundary.

    >>> [layer.parameters for layer in unit_model(3, 1, 2, parameters=8).layers]
    [3, 3, 2]
    """
    share, more = divmod(parameters, num_layers)
    layers = [
        UnitLayer(f"layer {number}", forward, backward, share + (number < more), activations)
        for number in range(num_layers)
    ]
    return Model(name, layers, sample_bytes=0.0, precision=precision, optimizer_seconds=0.0)
