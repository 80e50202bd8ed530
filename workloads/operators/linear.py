"""A linear map, the matrix product of a layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.kernel import BYTES, Kernel, matmul, memory_bound
from simulator.operation import Operation
from workloads.operators.operator import Operator
from workloads.operators.parameter import ParameterTensor, matrix

BIAS_GRADIENT = Operation("bias gradient", "elementwise", "linear")


@dataclass(frozen=True)
class Linear(Operator):
    """y = x W^T + b over *rows* rows a sample, from *inputs* to *outputs* features; one kernel adds the bias too.

    *splits*: the outputs of each weight tensor if there are several (query, key and value). *shared*: the weight
    belongs to another layer and is not counted. *kept_share*: it keeps one part in so many of its input (sequence
    parallelism keeps a shard and gathers it again). *keeps_input*: false if another operator keeps it. *frozen*: its
    parameters have no gradients, so that it keeps nothing; that of its input passes through. *hidden*: false if it
    makes the classes of a head.
    """

    rows: int
    inputs: int
    outputs: int
    bias: bool = True
    precision: str = "fp32"
    splits: tuple[int, ...] = ()
    shared: bool = False
    kept_share: int = 1
    keeps_input: bool = True
    frozen: bool = False
    hidden: bool = True

    @property
    def operation(self) -> Operation:
        """Beside the products there is the sum of the bias gradient."""
        return BIAS_GRADIENT

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Weight, then bias, of each split."""
        made: list[ParameterTensor] = []
        for outputs in self.splits or (self.outputs,):
            if not self.shared:
                made.append(matrix(outputs, self.inputs, hidden=self.hidden))
            if self.bias:
                made.append(ParameterTensor(outputs))
        return tuple(replace(tensor, trainable=not self.frozen) for tensor in made)

    def apart(self) -> tuple[Linear, ...]:
        """A product for each of the *splits*."""
        return tuple(replace(self, outputs=outputs, splits=()) for outputs in self.splits)

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """One product."""
        return (matmul(samples * self.rows, self.outputs, self.inputs, precision=self.precision),)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """dx = dy W, and the bias gradient, a sum over the rows of dy."""
        product = matmul(samples * self.rows, self.inputs, self.outputs, precision=self.precision)
        if not self.bias or self.frozen:
            return (product,)
        read = samples * self.rows * self.outputs * BYTES[self.precision]
        return product, memory_bound(read, precision=self.precision)

    def backward_weights(self, samples: int) -> tuple[Kernel, ...]:
        """dW = dy^T x."""
        if self.frozen:
            return ()
        sides = self.outputs, self.inputs
        return (matmul(*sides, samples * self.rows, precision=self.precision, rows=sides),)

    def kept_bytes(self, samples: int) -> float:
        """Its input."""
        nbytes = samples * self.rows * self.inputs * BYTES[self.precision] / self.kept_share
        return nbytes if self.keeps_input and not self.frozen else 0.0

    def kept_beside_input(self, samples: int) -> float:
        """Bytes of what it keeps beside its input."""
        return 0.0

    @property
    def keeps_inputs(self) -> bool:
        """True."""
        return True

    def weight_bytes(self, samples: int) -> float:
        """Its input and the gradient of its output."""
        if self.frozen:
            return 0.0
        return self.kept_bytes(samples) + samples * self.rows * self.outputs * BYTES[self.precision]

    @property
    def gathered_input_bytes(self) -> float:
        """Bytes of an element of its input, where ranks gather it."""
        return BYTES[self.precision]

    @property
    def gathered_gradient_bytes(self) -> float:
        """Bytes of an element of the gradient of its output, where ranks gather it."""
        return BYTES[self.precision]
