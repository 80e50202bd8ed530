"""What recurrent mixers (state-space models, linear attention) have in common: a causal convolution over positions."""

from __future__ import annotations

from dataclasses import dataclass

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, memory_bound
from clustersim.workloads.operators.operator import Operator
from clustersim.workloads.operators.parameter import ParameterTensor

CONVOLUTION = Operation("causal convolution", "elementwise")


@dataclass(frozen=True)
class CausalConvolution(Operator):
    """A convolution of each of *channels* by itself, over the last *kernel* of *length* positions, with SiLU.

    One kernel, bound by memory: a position is read once (Dao-AILab/causal-conv1d). It keeps its input. *again*: its
    output is not kept, but computed again ahead of the backward pass.
    """

    length: int
    channels: int
    precision: str
    kernel: int
    parameters: tuple[ParameterTensor, ...]
    again: bool = False

    @property
    def operation(self) -> Operation:
        """A convolution that is no matrix product."""
        return CONVOLUTION

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """As given: the weights, and a bias if there is one."""
        return self.parameters

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """Reads x, writes y."""
        return (self._pass(samples, 2, 1),)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """It reads x and dy, and writes dx and the gradients of the weights."""
        return (self._pass(samples, 5, 2) if self.again else self._pass(samples, 3, 1),)

    def kept_bytes(self, samples: int) -> float:
        """Its input."""
        return float(samples * self.length * self.channels * BYTES[self.precision])

    @property
    def keeps_inputs(self) -> bool:
        """True."""
        return True

    def _pass(self, samples: int, tensors: int, launches: int) -> Kernel:
        nbytes = tensors * self.kept_bytes(samples)
        return memory_bound(nbytes, precision=self.precision, launches=launches, operation=CONVOLUTION)
