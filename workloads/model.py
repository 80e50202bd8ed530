"""A model is a list of layers. A layer has its parameters, its kernels in each phase and the bytes that it keeps.

The passes use models only through these two classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from simulator.accelerator import Software
from simulator.kernel import Kernel
from workloads.operators.fusion import Fused
from workloads.operators.parameter import ParameterTensor
from workloads.operators.segment import Segment


class Layer(ABC):
    """One layer, the unit of a schedule: an op computes one phase of one layer."""

    name: str
    kind: str
    """embedding, transformer, head, convolution, linear ..."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Its parameter tensors, in order of registration."""

    @abstractmethod
    def forward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The kernels of the forward pass over *micro_batch_size* samples."""

    @abstractmethod
    def backward_input(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The kernels of the gradient of the layer's input: phase I."""

    @abstractmethod
    def backward_weights(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The kernels of the gradients of the layer's weights: phase W."""

    def backward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The kernels of the whole backward pass, I then W: phase B."""
        return (*self.backward_input(micro_batch_size), *self.backward_weights(micro_batch_size))

    @abstractmethod
    def activation_bytes(self, micro_batch_size: int) -> float:
        """Bytes that the forward pass keeps for the backward pass."""

    @abstractmethod
    def output_bytes(self, micro_batch_size: int) -> float:
        """Bytes that the layer passes to the next one (and gets back as a gradient)."""

    def input_bytes_of_next(self, micro_batch_size: int) -> float:
        """Bytes of its output that the next layer keeps if that is recomputed. Default: all."""
        return self.output_bytes(micro_batch_size)

    @property
    def parameters(self) -> int:
        """How many parameters the layer has."""
        return sum(tensor.count for tensor in self.tensors)

    @property
    def trainable_parameters(self) -> int:
        """How many of them have gradients."""
        return sum(tensor.count for tensor in self.tensors if tensor.trainable)

    @property
    def active_parameters(self) -> int:
        """How many parameters one token uses: all but those of experts that it does not pass."""
        return self.parameters

    def segments(self, phase: str, micro_batch_size: int) -> tuple[Segment, ...]:
        """The kernels of *phase* (F, B, I or W), with the exchanges between ranks around them."""
        kernels = {"F": self.forward, "B": self.backward, "I": self.backward_input, "W": self.backward_weights}
        return (Segment(kernels[phase](micro_batch_size)),)

    def transient_bytes(self, phase: str, micro_batch_size: int) -> float:
        """Bytes held beside the activations while *phase* (F or I) runs, and no longer."""
        return 0.0

    def buffer_bytes(self, phase: str, micro_batch_size: int) -> float:
        """Those of the transient bytes that are buffers of exchanges, not activations."""
        return 0.0

    def weight_bytes(self, micro_batch_size: int) -> float:
        """Bytes that phase W needs, held between I and W. Default: all activations."""
        return self.activation_bytes(micro_batch_size) if self.backward_weights(micro_batch_size) else 0.0

    def unneeded_forward(self, micro_batch_size: int) -> int:
        """How many kernels at the end of the forward pass make nothing that the backward pass needs."""
        return 0

    def recomputable_forward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The forward kernels that selective recomputation runs again: core attention, if it has one."""
        return ()

    def recomputable_segments(self, micro_batch_size: int) -> tuple[Segment, ...]:
        """These kernels with the exchanges around them."""
        return (Segment(self.recomputable_forward(micro_batch_size)),)

    def recomputable_bytes(self, micro_batch_size: int) -> float:
        """Bytes that these kernels compute and selective recomputation does not keep."""
        return 0.0


@dataclass(frozen=True)
class Model:
    """*layers* in order of the forward pass.

    *sample_bytes*: one input sample on the GPU. *tokens_per_sample*: the sequence length, 0 if samples are not
    sequences. *precision*: of parameters and activations, fp32 if products are in tf32. *optimizer_seconds*: the given
    duration of the optimizer step of a unit model; None: it is priced from bytes. *fused*: operators that are.
    *tied_parameters*: how many parameters of the first layer others share, the *tied_layers* (none given: the last); a
    pipeline holds a copy on each stage with such a layer. *notes*: what a reader of results should know about how the
    model was made.
    *boundary_axis*: the axis whose ranks hold equal outputs of a layer; "" if there is none.
    """

    of_shape: ClassVar[bool] = False
    """A `workloads.transformer.Transformer`, which has a shape."""

    name: str
    layers: Sequence[Layer]
    sample_bytes: float
    tokens_per_sample: int = 0
    precision: str = "fp32"
    optimizer_seconds: float | None = None
    fused: Fused = True
    tied_parameters: int = 0
    tied_layers: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    boundary_axis: str = ""

    def __post_init__(self) -> None:
        if self.precision == "tf32":
            # a format of products: what they read and write is fp32
            object.__setattr__(self, "precision", "fp32")

    @cached_property
    def parameters(self) -> int:
        """How many parameters the model has."""
        return sum(layer.parameters for layer in self.layers)

    @cached_property
    def trainable_parameters(self) -> int:
        """How many of them have gradients and optimizer states: all but frozen ones."""
        return sum(layer.trainable_parameters for layer in self.layers)

    @property
    def trains_tied(self) -> bool:
        """True if layers share parameters that are trained, so that copies exchange their gradients."""
        return bool(self.tied_parameters) and any(tensor.trainable for tensor in self.layers[0].tensors)

    @cached_property
    def active_parameters(self) -> int:
        """How many parameters one token uses; the whole embedding counts, as published counts of mixtures have it."""
        return sum(layer.active_parameters for layer in self.layers)

    def with_software(self, software: Software) -> Model:
        """The model with the kernels that *software* has for it."""
        return self

    def tensors_of(self, layers: Collection[str]) -> list[ParameterTensor]:
        """The parameter tensors of a rank that has *layers*, given by name.

        Tied parameters count with the first layer. A rank with a layer that shares them but not the first has a copy.
        """
        own = [tensor for layer in self.layers if layer.name in layers for tensor in layer.tensors]
        if self.layers[0].name not in layers and not set(self.sharing).isdisjoint(layers):
            own.append(self.tied_copy)
        return own

    @property
    def tied_copy(self) -> ParameterTensor:
        """The tensor of the parameters that layers share, as a stage without the first layer holds it."""
        first = self.layers[0].tensors[0]
        return ParameterTensor(self.tied_parameters, trainable=self.trains_tied, rows=first.rows)

    @property
    def sharing(self) -> tuple[str, ...]:
        """The layers that share parameters of the first one, by name; none if nothing is tied."""
        return (self.tied_layers or (self.layers[-1].name,)) if self.tied_parameters else ()

    def flops(self, samples: int = 1) -> float:
        """Model FLOPs of a training step over *samples*: matrix products forward and backward, no recomputation."""
        return sum(
            kernel.flops for layer in self.layers for kernel in (*layer.forward(samples), *layer.backward(samples))
        )
