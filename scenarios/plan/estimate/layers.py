"""Priced layers: each phase of a layer is one kernel with the duration of its operators and their exchanges.

The operators of each distinct layer are simulated once, with the exchanges over inner axes such as ``tp``. A schedule
of priced layers has some ten times fewer ops than one of operators, and takes the same time where exchanges do not run
beside other layers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from simulator.kernel import Kernel, measured
from simulator.schedule import Compute, Op, Program
from simulator.schedule.order import Action
from workloads.model import Layer, Model
from workloads.operators.layer import OperatorLayer
from workloads.operators.lowering import Overlap, lowered
from workloads.operators.parameter import ParameterTensor

PHASES = ("F", "B", "I", "W")

AGAIN = "R"
"""The part of the forward pass that selective recomputation runs again."""


@dataclass(frozen=True)
class PricedLayer(Layer):
    """A layer with *seconds* and *flops* by phase, and the bytes of the layer that it stands for.

    *transient*: bytes held only during a phase, buffers of exchanges included.
    """

    name: str
    kind: str
    weights: tuple[ParameterTensor, ...]
    seconds: Mapping[str, float]
    flops: Mapping[str, float]
    kept: float
    output: float
    input_of_next: float
    transient: Mapping[str, float]
    kept_for_weights: float
    recomputable: float

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Those of the layer."""
        return self.weights

    def forward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """Two kernels where selective recomputation runs only the second one again, else one."""
        again = self.recomputable_forward(micro_batch_size)
        rest = measured(self.seconds["F"] - self.seconds[AGAIN], self.flops["F"] - self.flops[AGAIN])
        return (rest, *again) if again else (rest,)

    def backward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """One kernel."""
        return (measured(self.seconds["B"], self.flops["B"]),)

    def backward_input(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """One kernel."""
        return (measured(self.seconds["I"], self.flops["I"]),)

    def backward_weights(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """One kernel, or none."""
        return (measured(self.seconds["W"], self.flops["W"]),) if self.seconds["W"] else ()

    def recomputable_forward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """One kernel, or none."""
        return (measured(self.seconds[AGAIN], self.flops[AGAIN]),) if self.seconds[AGAIN] else ()

    def activation_bytes(self, micro_batch_size: int) -> float:
        """Those of the layer."""
        return self.kept

    def output_bytes(self, micro_batch_size: int) -> float:
        """Those of the layer."""
        return self.output

    def input_bytes_of_next(self, micro_batch_size: int) -> float:
        """Those of the layer."""
        return self.input_of_next

    def transient_bytes(self, phase: str, micro_batch_size: int) -> float:
        """Those of the layer, and its buffers."""
        return self.transient.get(phase, 0.0)

    def weight_bytes(self, micro_batch_size: int) -> float:
        """Those of the layer."""
        return self.kept_for_weights

    def recomputable_bytes(self, micro_batch_size: int) -> float:
        """Those of the layer."""
        return self.recomputable


def content(layer: Layer) -> Hashable:
    """Return a key that is equal for layers of a model that differ in name only."""
    return (layer.kind, id(layer.operators)) if isinstance(layer, OperatorLayer) else layer.name


def distinct_layers(model: Model) -> dict[Hashable, Layer]:
    """Return the first layer of each `content`."""
    found: dict[Hashable, Layer] = {}
    for layer in model.layers:
        found.setdefault(content(layer), layer)
    return found


def probe(layers: Sequence[Layer], samples: int, overlap: Mapping[str, Overlap], phases: Sequence[str]) -> Program:
    """Return a program that computes each phase of each of *layers*, one after the other.

    The first op of a phase is ``<action>.<layer>.begin``, without kernels; the last one is ``<action>.<layer>``.
    """
    return Program("probe", tuple(_probe_ops(layers, samples, overlap, phases)))


def _probe_ops(
    layers: Sequence[Layer], samples: int, overlap: Mapping[str, Overlap], phases: Sequence[str]
) -> Iterator[Op]:
    for layer in layers:
        for phase in phases:
            action = Action(phase, 0, 0)
            ops = lowered(action, layer, samples, overlap)
            yield Compute(name=f"{ops[-1].name}.begin", kernels=(), action=action, layer=layer.name)
            yield from ops
        action = Action(AGAIN, 0, 0)
        kernels = layer.recomputable_forward(samples)
        yield Compute(name=f"{action}.{layer.name}.begin", kernels=(), action=action, layer=layer.name)
        yield Compute(name=f"{action}.{layer.name}", kernels=kernels, action=action, layer=layer.name)


def priced(layer: Layer, samples: int, seconds: Mapping[str, float], buffers: Mapping[str, float]) -> PricedLayer:
    """Return *layer* for micro-batches of *samples*, with *seconds* and *buffers* (bytes) by phase."""
    kernels = {
        "F": layer.forward(samples),
        "B": layer.backward(samples),
        "I": layer.backward_input(samples),
        "W": layer.backward_weights(samples),
        AGAIN: layer.recomputable_forward(samples),
    }
    return PricedLayer(
        layer.name,
        layer.kind,
        layer.tensors,
        seconds,
        {phase: sum(kernel.flops for kernel in several) for phase, several in kernels.items()},
        layer.activation_bytes(samples),
        layer.output_bytes(samples),
        layer.input_bytes_of_next(samples),
        {phase: layer.transient_bytes(phase, samples) + buffers.get(phase, 0.0) for phase in ("F", "I")},
        layer.weight_bytes(samples),
        layer.recomputable_bytes(samples),
    )


def most_buffers(ops: Sequence[Op]) -> float:
    """Return the most bytes of buffers that *ops* hold at once, in order of issue."""
    held = most = 0.0
    for op in ops:
        held += op.allocates.get("buffers", 0.0)
        most = max(most, held)
        held -= op.frees.get("buffers", 0.0)
    return most


def of_priced_layers(model: Model, layers: Mapping[Hashable, PricedLayer]) -> Model:
    """Return *model* with the priced layer of each content."""
    own = [replace(layers[content(layer)], name=layer.name, kind=layer.kind) for layer in model.layers]
    return replace(model, layers=own)
