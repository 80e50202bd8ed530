"""Priced layers: each phase of a layer is one kernel with the duration of its operators and their exchanges.

The operators of each distinct layer are simulated once, with the exchanges over inner axes such as ``tp``. A schedule
of priced layers has some ten times fewer ops than one of operators, and takes the same time where exchanges do not run
beside other layers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from clustersim.scenarios.build.layer_probe import AGAIN, content
from clustersim.simulator.hardware.kernel import Kernel, measured
from clustersim.workloads.operators.model import Layer, Model
from clustersim.workloads.operators.parameter import ParameterTensor


@dataclass(frozen=True)
class PricedLayer(Layer):
    """A layer with *seconds* and *flops* by phase, and the bytes of the layer that it stands for.

    *transient*: bytes held only during a phase, the *buffers* of exchanges included.
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
    buffers: Mapping[str, float]

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

    def buffer_bytes(self, phase: str, micro_batch_size: int) -> float:
        """Those of the layer's exchanges."""
        return self.buffers.get(phase, 0.0)

    def weight_bytes(self, micro_batch_size: int) -> float:
        """Those of the layer."""
        return self.kept_for_weights

    def recomputable_bytes(self, micro_batch_size: int) -> float:
        """Those of the layer."""
        return self.recomputable


@dataclass(frozen=True, slots=True)
class LayerPrice:
    """The *seconds* of a layer for one micro-batch and the bytes of the *buffers* of its exchanges, by phase."""

    seconds: Mapping[str, float]
    buffers: Mapping[str, float] = field(default_factory=dict)


def priced(layer: Layer, samples: int, price: LayerPrice) -> PricedLayer:
    """Return *layer* for micro-batches of *samples* at its *price*."""
    seconds, buffers = price.seconds, price.buffers
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
        buffers,
    )


def of_priced_layers(model: Model, layers: Mapping[Hashable, PricedLayer]) -> Model:
    """Return *model* with the priced layer of each content."""
    own = [replace(layers[content(layer)], name=layer.name, kind=layer.kind) for layer in model.layers]
    return replace(model, layers=own)
