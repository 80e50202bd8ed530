"""What recurrent mixers (state-space models, linear attention) have in common: causal convolution, scan in chunks."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, matmul, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.workloads.operators.operator import Operator, ParameterTensor

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


@dataclass(frozen=True)
class ChunkedScan(Operator):
    """States of *heads*, each *key* x *value* numbers, passed over *length* positions in chunks of *chunk*.

    FLOPs are model FLOPs: whole squares of a chunk, nothing twice. Shapes are what runs.
    """

    length: int
    heads: int
    key: int
    value: int
    chunk: int
    precision: str = "fp32"

    @property
    def side(self) -> int:
        """Positions of a chunk; of a sequence that is shorter, all."""
        return min(self.chunk, self.length)

    def bytes(self, samples: int) -> tuple[float, float, float, float]:
        """Bytes of keys, of values, of squares of chunks, and of states of chunks."""
        positions, width = samples * self.heads * self.length, BYTES[self.precision]
        chunks = samples * self.heads * ceil(self.length / self.side)
        return (
            float(positions * self.key * width),
            float(positions * self.value * width),
            float(chunks * self.side**2 * width),
            float(chunks * self.key * self.value * width),
        )

    def memory(self, nbytes: float, launches: int) -> Kernel:
        """Kernels that move *nbytes*."""
        return memory_bound(nbytes, precision=self.precision, launches=launches)

    def squares(self, samples: int, depth: int, nbytes: float, *, counts: int = 1, runs: int = 1) -> Kernel:
        """Products of chunk x chunk x *depth*, for each head and chunk. *counts* of *runs* are model FLOPs."""
        batch = samples * self.heads * ceil(self.length / self.side)
        return self.product((batch * runs, self.side, self.side, depth), nbytes, counts, runs)

    def chunks(self, samples: int, nbytes: float, *, counts: int = 1) -> Kernel:
        """Products of chunk x value x key, for each head and chunk."""
        batch = samples * self.heads * ceil(self.length / self.side)
        return self.product((batch * counts, self.side, self.value, self.key), nbytes, counts, counts)

    def states(self, samples: int, nbytes: float, *, counts: int, runs: int) -> Kernel:
        """Products of key x value x position, for each head: chunks run one after the other, heads side by side."""
        shape = samples * self.heads, self.key, self.value, runs * self.length
        return self.product(shape, nbytes, counts, runs, launches=max(1, runs // 2))

    def product(
        self, shape: tuple[int, int, int, int], nbytes: float, counts: int, runs: int, launches: int = 0
    ) -> Kernel:
        """Products of *shape* that move *nbytes*; *counts* of its *runs* are model FLOPs."""
        batch, m, n, k = shape
        one = matmul(m, n, k, batch=batch, precision=self.precision)
        return replace(one, flops=one.flops * counts / runs, nbytes=nbytes, launches=launches or runs)
