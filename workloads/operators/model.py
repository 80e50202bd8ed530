"""A model is a list of layers. A layer has its parameters, its kernels in each phase and the bytes that it keeps.

The passes use models only through `Model` and `Layer`. Most layers are made of operators (`OperatorLayer`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import ClassVar

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.records import changed
from clustersim.workloads.operators.operator import Fused, Operator, ParameterTensor, Segment

CONTAINERS = 3
"""Modules of a transformer layer without parameters: attention, MLP, and the activation or core attention (Hugging Face
Transformers, models/llama/modeling_llama.py, ``LlamaDecoderLayer``)."""


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
    def modules(self) -> int:
        """How many modules of torch run in a pass of the layer."""
        return 1

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
    """A `workloads.architectures.transformer.Transformer`, which has a shape."""

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


@dataclass(frozen=True)
class OperatorLayer(Layer):
    """*operators* in order; *sample_output_bytes*: what the layer passes on for each sample.

    *passed_on*: how many of these bytes it only hands on, so that a layer behind does not keep them as its own input.
    *reruns*: what recomputation by operator runs again, each with the bytes a sample that are then not kept; None: what
    operators say themselves, core attention.
    """

    name: str
    kind: str
    operators: tuple[Operator, ...]
    sample_output_bytes: float
    passed_on: float = 0.0
    reruns: tuple[tuple[Operator, float], ...] | None = None
    _kernels: dict[tuple[str, int], tuple[Kernel, ...]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    _segments: dict[tuple[str, int], tuple[Segment, ...]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def again(self, name: str) -> OperatorLayer:
        """A layer *name* of the same operators, which shares what is known of them."""
        other = replace(self, name=name)
        object.__setattr__(other, "_kernels", self._kernels)
        object.__setattr__(other, "_segments", self._segments)
        other.__dict__["tensors"] = self.tensors
        return other

    @cached_property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """The tensors of all operators, in order."""
        return tuple(tensor for operator in self.operators for tensor in operator.tensors)

    @property
    def modules(self) -> int:
        """Those of the operators; around them the layer itself, and in a transformer `CONTAINERS`."""
        around = CONTAINERS if self.kind == "transformer" else 0
        return 1 + around + sum(operator.modules for operator in self.operators)

    @property
    def active_parameters(self) -> int:
        """The sum over the operators."""
        return sum(operator.active_parameters for operator in self.operators)

    def forward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The kernels of all operators, in order."""
        return self._cached("forward", micro_batch_size, self.operators)

    def backward_input(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The kernels of all operators, last operator first."""
        return self._cached("backward_input", micro_batch_size, self.operators[::-1])

    def backward_weights(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The kernels of all operators, last operator first."""
        return self._cached("backward_weights", micro_batch_size, self.operators[::-1])

    def activation_bytes(self, micro_batch_size: int) -> float:
        """The sum over the operators."""
        return sum(operator.kept_bytes(micro_batch_size) for operator in self.operators)

    def output_bytes(self, micro_batch_size: int) -> float:
        """The output of all samples."""
        return self.sample_output_bytes * micro_batch_size

    def input_bytes_of_next(self, micro_batch_size: int) -> float:
        """The output without what is only passed on."""
        return (self.sample_output_bytes - self.passed_on) * micro_batch_size

    def transient_bytes(self, phase: str, micro_batch_size: int) -> float:
        """Those of the operator with most: they run one after the other."""
        return max((operator.transient_bytes(phase, micro_batch_size) for operator in self.operators), default=0.0)

    def weight_bytes(self, micro_batch_size: int) -> float:
        """The sum over the operators."""
        return sum(operator.weight_bytes(micro_batch_size) for operator in self.operators)

    def unneeded_forward(self, micro_batch_size: int) -> int:
        """The kernels behind the last operator that keeps anything, and its own if it keeps its inputs only."""
        count = 0
        for operator in reversed(self.operators):
            kept = operator.kept_bytes(micro_batch_size)
            if kept and not operator.keeps_inputs:
                return count
            count += len(operator.forward(micro_batch_size))
            if kept:
                return count
        return count

    def recomputable_forward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The kernels of all operators, in order."""
        if self.reruns is None:
            return self._cached("recomputable_forward", micro_batch_size, self.operators)
        return tuple(kernel for segment in self.recomputable_segments(micro_batch_size) for kernel in segment.kernels)

    def recomputable_segments(self, micro_batch_size: int) -> tuple[Segment, ...]:
        """The forward segments of the operators that are run again."""
        if self.reruns is None:
            again = [operator for operator in self.operators if operator.recomputable_forward(micro_batch_size)]
        else:
            again = [operator for operator, _ in self.reruns]
        return tuple(segment for operator in again for segment in _named(operator, "F", micro_batch_size))

    def recomputable_bytes(self, micro_batch_size: int) -> float:
        """The sum over the operators."""
        if self.reruns is not None:
            return micro_batch_size * sum(nbytes for _, nbytes in self.reruns)
        return sum(operator.recomputable_bytes(micro_batch_size) for operator in self.operators)

    def segments(self, phase: str, micro_batch_size: int) -> tuple[Segment, ...]:
        """The segments of all operators, last operator first in a backward phase; in phase B each one's I, then its W.

        One segment where no operator exchanges anything.
        """
        key = phase, micro_batch_size
        if key not in self._segments:
            found = self._operator_segments(phase, micro_batch_size)
            alone = not any(segment.exchanges for segment in found)
            self._segments[key] = super().segments(phase, micro_batch_size) if alone else found
        return self._segments[key]

    def _operator_segments(self, phase: str, samples: int) -> tuple[Segment, ...]:
        operators, phases = (self.operators, "F") if phase == "F" else (self.operators[::-1], _halves(phase))
        every = (s for operator in operators for half in phases for s in _named(operator, half, samples))
        return tuple(segment for segment in every if segment.kernels or segment.exchanges)

    def _cached(self, phase: str, samples: int, operators: tuple[Operator, ...]) -> tuple[Kernel, ...]:
        key = phase, samples
        if key not in self._kernels:
            made = (operator.named(getattr(operator, phase)(samples)) for operator in operators)
            self._kernels[key] = tuple(kernel for kernels in made for kernel in kernels)
        return self._kernels[key]


def _named(operator: Operator, phase: str, samples: int) -> Iterator[Segment]:
    """The segments of *operator*, with the operations of their kernels."""
    for segment in operator.segments(phase, samples):
        named = operator.named(segment.kernels)
        yield segment if named is segment.kernels else changed(segment, kernels=named)


def _halves(phase: str) -> str:
    return "IW" if phase == "B" else phase
