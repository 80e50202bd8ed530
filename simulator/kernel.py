"""A kernel is what a GPU is asked to execute: a matrix product by its shape, or bytes to move, or measured seconds.

Workloads describe computation in kernels, accelerators price them; neither knows the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kind of launch.

    *flops* are the floating-point operations of matrix products (the part that counts for MFU), *nbytes* what is read
    from and written to device memory, *shape* the (batch, m, n, k) of the product, *precision* that of its operands
    (``bf16``, ``fp16``, ``tf32``, ``fp32``). *seconds*, where given, is a measured duration, which stands as it is.
    *launches* is how many kernels the host issues for it. *winograd*, of a convolution in tf32, is the shape of the
    products by which Winograd's algorithm computes it with fewer multiplications, where there is no tf32. *attention*:
    ``forward`` or ``backward`` of fused attention, whose *shape* (batch x heads x products, rows, columns, head size)
    is worked tile by tile with a softmax in between.
    """

    flops: float = 0.0
    nbytes: float = 0.0
    shape: tuple[int, int, int, int] | None = None
    precision: str = "fp32"
    seconds: float | None = None
    launches: int = 1
    winograd: tuple[int, int, int, int] | None = None
    attention: Literal["", "forward", "backward"] = ""


BYTES = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4}
"""Bytes of one element by precision."""


def matmul(m: int, n: int, k: int, *, batch: int = 1, precision: str = "fp32") -> Kernel:
    """The product of an m x k and a k x n matrix, *batch* times in one launch.

    >>> matmul(2, 3, 4).flops
    48
    """
    flops = 2 * batch * m * n * k
    nbytes = BYTES[precision] * batch * (m * k + k * n + m * n)
    return Kernel(flops, nbytes, (batch, m, n, k), precision)


def memory_bound(nbytes: float, *, precision: str = "fp32", launches: int = 1) -> Kernel:
    """An elementwise, normalising or copying kernel: *nbytes* read and written, arithmetic hidden behind them."""
    return Kernel(0.0, nbytes, None, precision, None, launches)


def measured(seconds: float, flops: float = 0.0) -> Kernel:
    """A duration taken as it is, in seconds; *flops* only for accounting."""
    return Kernel(flops, 0.0, None, "fp32", seconds)
