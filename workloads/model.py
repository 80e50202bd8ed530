"""A model is a row of layers; a layer knows its parameters, its kernels in each phase and the bytes it keeps.

Workload passes see models only through these classes; what makes them (shapes, layers, profiles, units) stands beside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from simulator.kernel import Kernel


class Layer(ABC):
    """One layer: the unit of which schedules are made."""

    name: str
    kind: str
    """embedding, transformer, head, convolution, linear ...: layers of one kind and shape cost the same."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[int, ...]:
        """The element counts of its parameter tensors, in order of registration."""

    @abstractmethod
    def forward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The kernels of the forward pass over *micro_batch_size* samples."""

    @abstractmethod
    def backward_input(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The kernels of the backward pass that make the gradient of the layer's input: phase I."""

    @abstractmethod
    def backward_weights(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The kernels of the backward pass that make the gradients of the layer's weights: phase W."""

    def backward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The kernels of the whole backward pass, for the input and for the weights: phase B."""
        return (*self.backward_input(micro_batch_size), *self.backward_weights(micro_batch_size))

    @abstractmethod
    def activation_bytes(self, micro_batch_size: int) -> float:
        """What the forward pass keeps for the backward pass."""

    @abstractmethod
    def output_bytes(self, micro_batch_size: int) -> float:
        """What the layer hands to the next one (and gets back as a gradient)."""

    @property
    def parameters(self) -> int:
        """How many parameters the layer has."""
        return sum(self.tensors)


@dataclass(frozen=True)
class Model:
    """*layers* in order of the forward pass.

    *sample_bytes*: one input sample as it reaches the GPU; *tokens_per_sample*: the sequence length, 0 where samples
    are not sequences; *precision*: of parameters and activations; *optimizer_seconds*: given for unit models, whose
    optimizer is not priced from bytes (None: it is); *fused*: whether its elementwise kernels are; *tied_parameters*:
    how many the last layer shares with the first (a pipeline holds them on both ends); *notes*: what a reader of
    results should know about how the model was made.
    """

    name: str
    layers: Sequence[Layer]
    sample_bytes: float
    tokens_per_sample: int = 0
    precision: str = "fp32"
    optimizer_seconds: float | None = None
    fused: bool = True
    tied_parameters: int = 0
    notes: tuple[str, ...] = field(default=())

    @cached_property
    def parameters(self) -> int:
        """How many parameters the model has."""
        return sum(layer.parameters for layer in self.layers)

    def flops(self, samples: int = 1) -> float:
        """Model FLOPs, forward and backward, of a training step over *samples*: products only, nothing recomputed."""
        return sum(
            kernel.flops for layer in self.layers for kernel in (*layer.forward(samples), *layer.backward(samples))
        )
