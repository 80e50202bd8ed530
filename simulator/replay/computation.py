"""Computation on a real device: sleep or spin for the modelled time, or execute the kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

import torch

from clustersim.simulator.hardware.kernel import EXECUTED, Kernel
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.replay.clock import now, sleep_until
from clustersim.simulator.schedule.ops import Compute

Computation = Callable[[Compute, float], None]
"""Executes an op whose modelled end is the given time (of `clock.now`)."""

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}

Shape = tuple[int, int, int, int]

SPUN = 64
"""Rows of the product that a spin repeats: some 10 µs on a core, without the lock that Python's threads share."""


def computation(how: str, device: str) -> Computation:
    """Return the computation named *how*: ``sleep``, ``spin``, or ``kernels`` on *device*."""
    match how:
        case "sleep":
            return _sleep
        case "spin":
            return _spinning()
        case "kernels":
            return DeviceKernels(device)
    raise ValueError(how)


def _sleep(op: Compute, end: float) -> None:
    sleep_until(end)


def _spinning() -> Computation:
    square, result = torch.zeros(SPUN, SPUN), torch.zeros(SPUN, SPUN)

    def spin(op: Compute, end: float) -> None:
        while now() < end:
            torch.mm(square, square, out=result)

    return spin


@dataclass
class DeviceKernels:
    """Executes kernels on *device*: products of their shapes, copies of their bytes. Measured kernels sleep.

    Operands are random numbers in memory that all kernels share: a GPU at its power limit multiplies zeros faster (an
    H100 822 in place of 685 TFLOP/s in bf16). The memory grows to the size of the
    largest kernel in the warm-up.
    """

    device: str
    _memory: dict[tuple[int, torch.dtype], torch.Tensor] = field(default_factory=dict)
    _attentions: dict[tuple[Shape, str], AttentionKernel] = field(default_factory=dict)

    def __call__(self, op: Compute, end: float) -> None:
        """Execute the kernels of *op* in turn, those of a host on the host."""
        device = self.device if op.on == "gpu" else "cpu"
        for kernel in op.kernels:
            self._execute(kernel, device)
        if device != "cpu":
            torch.cuda.current_stream().synchronize()

    def _execute(self, kernel: Kernel, device: str) -> None:
        if kernel.seconds is not None:
            sleep_until(now() + kernel.seconds)
        elif kernel.attention and kernel.shape is not None:
            self._attend(kernel.shape, kernel.attention, DTYPES[kernel.precision], device)
        elif kernel.shape is not None:
            torch.backends.cuda.matmul.allow_tf32 = kernel.precision == "tf32"
            self._multiply(*kernel.shape, DTYPES[kernel.precision], device)
        else:
            for _ in range(kernel.launches):
                self._copy(kernel.nbytes / kernel.launches, device)

    def _multiply(self, batch: int, m: int, n: int, k: int, dtype: torch.dtype, device: str) -> None:
        a = self._operand(0, batch * m * k, dtype, device).view(batch, m, k)
        b = self._operand(1, batch * k * n, dtype, device).view(batch, k, n)
        torch.bmm(a, b, out=self._operand(2, batch * m * n, dtype, device).view(batch, m, n))

    def _attend(self, shape: Shape, which: str, dtype: torch.dtype, device: str) -> None:
        """Execute torch's fused attention, all of whose scores are computed, or its backward pass."""
        key = shape, device
        if key not in self._attentions:
            self._attentions[key] = AttentionKernel(shape, which, dtype, device)
        self._attentions[key]()

    def _copy(self, nbytes: float, device: str) -> None:
        """Read half of *nbytes* and write the other half."""
        half = int(nbytes / 2)
        self._operand(1, half, torch.uint8, device).copy_(self._operand(0, half, torch.uint8, device))

    def _operand(self, operand: int, count: int, dtype: torch.dtype, device: str) -> torch.Tensor:
        held = self._memory.get((operand, dtype))
        if held is None or len(held) < count or held.device != torch.device(device):
            held = self._memory[operand, dtype] = torch.zeros(count, dtype=dtype, device=device)
            if dtype.is_floating_point:
                held.normal_()
        return held[:count]


class AttentionKernel:
    """One pass of fused attention. *shape*: (heads of all samples x products, rows, columns, head size)."""

    def __init__(self, shape: Shape, which: str, dtype: torch.dtype, device: str) -> None:
        heads, rows, columns, size = shape
        heads = max(1, heads // EXECUTED[which])
        self._inputs = [
            torch.randn(1, heads, length, size, dtype=dtype, device=device, requires_grad=which == "backward")
            for length in (rows, columns, columns)
        ]
        self._output = self._forward() if which == "backward" else None
        self._gradient = None if self._output is None else torch.randn_like(self._output)

    def _forward(self) -> torch.Tensor:
        queries, keys, values = self._inputs
        return torch.nn.functional.scaled_dot_product_attention(queries, keys, values)

    def __call__(self) -> None:
        """Execute it once."""
        if self._output is None:
            self._forward()
        else:
            torch.autograd.grad(self._output, self._inputs, self._gradient, retain_graph=True)
