"""The matrix products of the experts of a rank, one launch for all of them.

Each expert multiplies as many rows as it has tokens. A launch of unequal products computes the tiles of all of them in
waves (grouped GEMM: NVIDIA CUTLASS, "examples/24_gemm_grouped"). Rows that do not fill a tile cost a whole one.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.kernel import BYTES, Kernel, grouped_matmul, memory_bound
from workloads.operators.parameter import ParameterTensor


@dataclass(frozen=True)
class GroupedLinear:
    """y = x W^T + b of *experts* experts of a rank, from *inputs* to *outputs* features; *splits* as in `Linear`.

    *tokens* are the rows of each expert.
    """

    experts: int
    inputs: int
    outputs: int
    bias: bool
    precision: str
    reduced_over: str

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Weight, then bias, of each expert."""
        counts = (self.outputs * self.inputs, *((self.outputs,) if self.bias else ()))
        return tuple(ParameterTensor(count, (self.reduced_over,)) for count in counts) * self.experts

    def forward(self, tokens: tuple[float, ...]) -> tuple[Kernel, ...]:
        """One launch."""
        return (self._rows(tokens, self.outputs, self.inputs),) if sum(tokens) else ()

    def backward_input(self, tokens: tuple[float, ...]) -> tuple[Kernel, ...]:
        """dx = dy W, and the sums of dy for the biases."""
        if not sum(tokens):
            return ()
        product = self._rows(tokens, self.inputs, self.outputs)
        read = sum(tokens) * self.outputs * BYTES[self.precision]
        return (product, memory_bound(read, precision=self.precision)) if self.bias else (product,)

    def backward_weights(self, tokens: tuple[float, ...]) -> tuple[Kernel, ...]:
        """dW = dy^T x of each expert."""
        if not sum(tokens):
            return ()
        sides = self.outputs, self.inputs
        every = (float(self.outputs),) * self.experts
        return (grouped_matmul(every, self.inputs, tokens, precision=self.precision, rows=sides),)

    def _rows(self, tokens: tuple[float, ...], outputs: int, inputs: int) -> Kernel:
        return grouped_matmul(tokens, outputs, (float(inputs),) * self.experts, precision=self.precision)
