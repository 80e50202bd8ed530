"""A part is one operator of a layer - a linear map, a normalisation, an activation; a layer is a row of parts.

Each part knows its tensors, its kernels and what it keeps for its backward pass: its own input, unless the next part
holds the same memory anyway. Counts are of one sample, on one rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from simulator.kernel import BYTES, Kernel, matmul, memory_bound
from workloads.model import Layer
from workloads.passage import Exchange, Passage


class Part(ABC):
    """One operator. What a part has none of - tensors, kernels of a phase, kept bytes - it leaves as it is here."""

    @property
    def tensors(self) -> tuple[int, ...]:
        """The element counts of its parameter tensors, in order of registration."""
        return ()

    @abstractmethod
    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """The kernels of the forward pass."""

    @abstractmethod
    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """The kernels that make the gradient of its input, and those gradients of its tensors that are sums."""

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """The products that make the gradients of its tensors; only these are put off where the backward is split.

        As Qi et al. put them into a queue (sail-sg/zero-bubble-pipeline-parallelism, tensor_parallel/layers.py).
        """
        return ()

    def kept_bytes(self, samples: int) -> float:
        """What it keeps from the forward to the backward pass."""
        return 0.0

    def weight_bytes(self, samples: int) -> float:
        """What `backward_weights` needs, held from `backward_input` on where the two stand apart."""
        return 0.0

    def recomputable_forward(self, samples: int) -> tuple[Kernel, ...]:
        """What selective recomputation runs again."""
        return ()

    def recomputable_bytes(self, samples: int) -> float:
        """What selective recomputation does not keep."""
        return 0.0

    @property
    def partial_parameters(self) -> int:
        """Those of which each tensor-parallel rank has the gradient of its own part of the sequence only."""
        return 0

    def exchanges(self, phase: str, samples: int) -> tuple[tuple[Exchange, ...], tuple[Exchange, ...]]:
        """What tensor-parallel ranks exchange before and after its kernels in *phase*: F, I or W."""
        return (), ()

    def passage(self, phase: str, samples: int) -> Passage:
        """Its kernels in *phase*, F, I or W, between the exchanges."""
        kernels = {"F": self.forward, "I": self.backward_input, "W": self.backward_weights}[phase]
        return Passage(kernels(samples), *self.exchanges(phase, samples))


@dataclass(frozen=True)
class PartedLayer(Layer):
    """A layer made of *parts*; *sample_output_bytes* is what it hands on for each sample."""

    name: str
    kind: str
    parts: tuple[Part, ...]
    sample_output_bytes: float
    _kernels: dict[tuple[str, int], tuple[Kernel, ...]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    _passages: dict[tuple[str, int], tuple[Passage, ...]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    @property
    def tensors(self) -> tuple[int, ...]:
        """Those of its parts, in order."""
        return tuple(count for part in self.parts for count in part.tensors)

    def forward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The parts one after the other."""
        return self._remembered("forward", micro_batch_size, self.parts)

    def backward_input(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The parts in reverse."""
        return self._remembered("backward_input", micro_batch_size, self.parts[::-1])

    def backward_weights(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """The parts in reverse."""
        return self._remembered("backward_weights", micro_batch_size, self.parts[::-1])

    def activation_bytes(self, micro_batch_size: int) -> float:
        """What the parts keep."""
        return sum(part.kept_bytes(micro_batch_size) for part in self.parts)

    def output_bytes(self, micro_batch_size: int) -> float:
        """The output of all samples."""
        return self.sample_output_bytes * micro_batch_size

    def weight_bytes(self, micro_batch_size: int) -> float:
        """What the parts need."""
        return sum(part.weight_bytes(micro_batch_size) for part in self.parts)

    def recomputable_forward(self, micro_batch_size: int) -> tuple[Kernel, ...]:
        """That of the parts, one after the other."""
        return self._remembered("recomputable_forward", micro_batch_size, self.parts)

    def recomputable_bytes(self, micro_batch_size: int) -> float:
        """That of the parts."""
        return sum(part.recomputable_bytes(micro_batch_size) for part in self.parts)

    @property
    def partial_parameters(self) -> int:
        """Those of the parts."""
        return sum(part.partial_parameters for part in self.parts)

    def passages(self, phase: str, micro_batch_size: int) -> tuple[Passage, ...]:
        """Part by part, in reverse in the backward pass; in phase B each part's I, then its W."""
        key = phase, micro_batch_size
        if key not in self._passages:
            parts, phases = (self.parts, "F") if phase == "F" else (self.parts[::-1], "IW" if phase == "B" else phase)
            made = (part.passage(one, micro_batch_size) for part in parts for one in phases)
            self._passages[key] = tuple(passage for passage in made if passage.kernels or passage.exchanges)
        return self._passages[key]

    def _remembered(self, phase: str, samples: int, parts: tuple[Part, ...]) -> tuple[Kernel, ...]:
        """A schedule asks for the same kernels for every micro-batch."""
        key = phase, samples
        if key not in self._kernels:
            self._kernels[key] = tuple(kernel for part in parts for kernel in getattr(part, phase)(samples))
        return self._kernels[key]


@dataclass(frozen=True)
class Linear(Part):
    """y = x W^T + b over *rows* rows a sample, *inputs* to *outputs* features; the bias is added in the same kernel.

    *splits*: the outputs of each weight tensor where there are several (query, key and value); *shared*: the weight is
    another layer's and not counted; *kept_share*: one over the part of its input that it keeps itself (sequence
    parallelism keeps a shard and gathers it again).
    """

    rows: int
    inputs: int
    outputs: int
    bias: bool = True
    precision: str = "fp32"
    splits: tuple[int, ...] = ()
    shared: bool = False
    kept_share: int = 1

    @property
    def tensors(self) -> tuple[int, ...]:
        """Weight, then bias, of each split."""
        pairs = (((0 if self.shared else out * self.inputs), out * self.bias) for out in self.splits or (self.outputs,))
        return tuple(count for pair in pairs for count in pair if count)

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """One product."""
        return (matmul(samples * self.rows, self.outputs, self.inputs, precision=self.precision),)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """dx = dy W, and the bias gradient, a sum over the rows of dy."""
        product = matmul(samples * self.rows, self.inputs, self.outputs, precision=self.precision)
        if not self.bias:
            return (product,)
        read = samples * self.rows * self.outputs * BYTES[self.precision]
        return product, memory_bound(read, precision=self.precision)

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """dW = dy^T x."""
        return (matmul(self.outputs, self.inputs, samples * self.rows, precision=self.precision),)

    def kept_bytes(self, samples: int) -> float:
        """Its input."""
        return samples * self.rows * self.inputs * BYTES[self.precision] / self.kept_share

    def weight_bytes(self, samples: int) -> float:
        """Its input and the gradient of its output."""
        return self.kept_bytes(samples) + samples * self.rows * self.outputs * BYTES[self.precision]


@dataclass(frozen=True)
class Elementwise(Part):
    """An operator bound by memory: bytes read and written for each of *elements*, by phase, and bytes *kept*.

    *counts*: its tensors, if it has any, whose gradients cost *weights* bytes; *launches*: kernels of the forward pass,
    of the backward pass.
    """

    elements: int
    forwards: float
    backwards: float
    weights: float = 0.0
    kept: float = 0.0
    counts: tuple[int, ...] = ()
    launches: tuple[int, int] = (1, 1)
    precision: str = "fp32"

    @property
    def tensors(self) -> tuple[int, ...]:
        """Those given."""
        return self.counts

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """Its forward traffic."""
        return self._kernels(samples, self.forwards, self.launches[0])

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """Its backward traffic, and that of its weight gradients."""
        return (*self._kernels(samples, self.backwards, self.launches[1]), *self._kernels(samples, self.weights, 1))

    def kept_bytes(self, samples: int) -> float:
        """The given bytes of each element."""
        return samples * self.elements * self.kept

    def _kernels(self, samples: int, each: float, launches: int) -> tuple[Kernel, ...]:
        nbytes = samples * self.elements * each
        return (memory_bound(nbytes, precision=self.precision, launches=launches),) if nbytes else ()
