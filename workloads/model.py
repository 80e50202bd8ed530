"""A model is a row of layers; a layer knows its parameters, its kernels in each phase and the bytes it keeps.

Workload passes see models only through these classes; what makes them (shapes, layers, profiles, units) stands beside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from simulator.errors import ScenarioError
from simulator.kernel import Kernel
from workloads.passage import Passage


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

    @property
    def partial_parameters(self) -> int:
        """Those of which each tensor-parallel rank has the gradient of its own part of the sequence only."""
        return 0

    def passages(self, phase: str, micro_batch_size: int) -> tuple[Passage, ...]:
        """The kernels of *phase*, F, B, I or W, cut where the ranks of a tensor-parallel group exchange."""
        kernels = {"F": self.forward, "B": self.backward, "I": self.backward_input, "W": self.backward_weights}
        return (Passage(kernels[phase](micro_batch_size)),)

    def weight_bytes(self, micro_batch_size: int) -> float:
        """What phase W needs, held between I and W: all activations unless the layer knows better."""
        return self.activation_bytes(micro_batch_size) if self.backward_weights(micro_batch_size) else 0.0

    def recomputable_forward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The kernels that selective recomputation runs again: those of core attention, where there is one."""
        return ()

    def recomputable_bytes(self, micro_batch_size: int) -> float:
        """What those kernels make and selective recomputation does not keep."""
        return 0.0


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

    def sharded(self, tensor_parallel: int, sequence_parallel: bool = False) -> Model:
        """One rank's share under tensor parallelism. Raises `ScenarioError` for a model that cannot be cut."""
        if tensor_parallel == 1:
            return self
        raise ScenarioError(f"tp = {tensor_parallel}: only a transformer is cut by tensors, {self.name} is not; try 1")

    def with_softmax(self, group: int) -> Model:
        """The model whose fused softmax takes heads x samples by *group*; one that has none as it is."""
        return self

    def parameters_of(self, layers: Collection[str]) -> int:
        """How many parameters a rank holds with the layers of these names: with the last one all that it shares.

        The shared ones stand with the first layer; a rank that holds the last but not the first has its own copy.
        """
        own = sum(layer.parameters for layer in self.layers if layer.name in layers)
        copied = self.layers[-1].name in layers and self.layers[0].name not in layers
        return own + (self.tied_parameters if copied else 0)

    def flops(self, samples: int = 1) -> float:
        """Model FLOPs, forward and backward, of a training step over *samples*: products only, nothing recomputed."""
        return sum(
            kernel.flops for layer in self.layers for kernel in (*layer.forward(samples), *layer.backward(samples))
        )
