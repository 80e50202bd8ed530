"""A kernel: a matrix product with its shape, bytes to move, or a measured duration; and the elementary operation that
it does.

The operator is what a layer is made of (attention, layer norm, GELU); its kernels are elementary operations (matmul,
softmax, dropout). Classes are those of Ivanov et al. 2021, "Data Movement Is All You Need" (arXiv:2007.00072, section
2.3), which divide kernels by their arithmetic intensity, and those that only some layers or the optimizer have.

Workloads describe computation by kernels, accelerators price them; neither imports the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from math import ceil
from typing import Literal

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScheduleError

CLASSES = (
    "product",
    "attention",
    "normalisation",
    "elementwise",
    "embedding",
    "loss",
    "optimizer",
    "measured",
)
"""*product*: matrix products and convolutions; *attention*: products and softmax in one kernel; *normalisation*: layer
norms, and softmaxes with scale, mask and dropout of the scores; *optimizer*: passes over parameters, gradients and
states; *measured*: a duration is given, and what runs in it is not known. To add a class, name it here."""

EXECUTED = {"forward": 2, "backward": 5}
"""Products of fused attention for each score: backward it recomputes the scores (Dao 2023, arXiv:2307.08691)."""

ALIGNMENT = 16
"""Bytes of the widest load of a thread. Tensor cores want rows of this alignment (NVIDIA, "Matrix Multiplication
Background User's Guide", section "Tensor Core Requirements": multiples of 16 bytes)."""

BYTES = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4}
"""Bytes of one element by precision."""

OPERAND_BYTES: dict[str, float] = {**BYTES, "fp8": 1, "int8": 1, "mxfp8": 1, "nvfp4": 0.5}
"""Bytes of one element of an operand of a product. ``fp8`` has one scale for a tensor or for a large block of it,
``int8`` one for a row,
``mxfp8`` one for each 32 elements (Open Compute Project, "Microscaling Formats", version 1.0), ``nvfp4`` one for 16."""


@dataclass(frozen=True, slots=True)
class Operation:
    """The elementary operation *name* of class *kind*, part of *operator* (default: an operator of the same name).

    >>> Operation("softmax", "normalisation", "attention")
    Operation(name='softmax', kind='normalisation', operator='attention')
    >>> Operation("layer norm", "normalisation").operator
    'layer norm'
    """

    name: str
    kind: str
    operator: str = ""

    def __post_init__(self) -> None:
        if self.kind not in CLASSES:
            raise ScheduleError(f'{self.name} is of the unknown class "{self.kind}"; there are: {", ".join(CLASSES)}')
        if not self.operator:
            object.__setattr__(self, "operator", self.name)


MEASURED = Operation("measured", "measured")
"""Of a kernel that stands for a measured duration."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kind of launch.

    *flops*: floating-point operations of matrix products, the part that counts for MFU. *nbytes*: bytes read from and
    written to device memory. *shape*: (batch, m, n, k) of the product. *precision*: that of its operands, one of
    `OPERAND_BYTES`. *seconds*, if given, is a measured duration, which is taken as it is.
    *launches*: the number of kernels that the host launches for it. *winograd*, for a convolution in tf32: the shape of
    the products of Winograd's algorithm, with fewer multiplications, used if there is no tf32. *attention*: ``forward``
    or ``backward`` of fused attention; its *shape* is (batch x heads x products, rows, columns, head size). *aligned*:
    the rows of its matrices begin at multiples of `ALIGNMENT` bytes. *rows*, *depths*: m or k of each product of a
    launch of unequal ones, whose *shape* has their number and the mean. *random_rows*: m of each is the mean of a count
    of tokens, which varies. *accesses*: elements that threads read and write one at a time; 0: several at a time, so
    that memory is the limit. *blocks*: of threads in all, if these are few, so that SMs are idle, and read and write
    one element at a time; 0: enough. *operators*: further small operators of the framework that the host dispatches for
    it. *products*: those of a grouped launch, which some libraries launch one by one. *copies*: the ranks that compute
    the same result; MFU counts it once. *of_weights*: the result of a product is the gradient of weights, which a stack
    may add to a sum within the product. *operation*: what it does, and for which operator; its cost, and whether it is
    equal to another kernel, do not depend on it.
    """

    flops: float = 0.0
    nbytes: float = 0.0
    shape: tuple[int, int, int, int] | None = None
    precision: str = "fp32"
    seconds: float | None = None
    launches: int = 1
    winograd: tuple[int, int, int, int] | None = None
    attention: Literal["", "forward", "backward"] = ""
    aligned: bool = True
    rows: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    products: int = 0
    random_rows: bool = False
    accesses: float = 0.0
    blocks: int = 0
    operators: int = 0
    copies: int = 1
    of_weights: bool = False
    operation: Operation | None = field(default=None, compare=False)

    @property
    def result_elements(self) -> int:
        """Elements of the result of a product."""
        batch, m, n, _ = self.shape or (0, 0, 0, 0)
        return batch * m * n


def matmul(
    m: int,
    n: int,
    k: int,
    *,
    batch: int = 1,
    precision: str = "fp32",
    rows: tuple[int, int] | None = None,
    result: str = "",
) -> Kernel:
    """Return the product of an m x k and a k x n matrix, *batch* times in one launch.

    *rows*: the lengths of the rows of its matrices as they lie in memory; n and k unless given. *result*: the precision
    of the result, if it is not that of the operands.

    >>> matmul(2, 3, 4).flops, matmul(64, 64, 108, precision="bf16").aligned
    (48, False)
    """
    flops = 2 * batch * m * n * k
    width = OPERAND_BYTES[precision]
    nbytes = batch * (width * (m * k + k * n) + OPERAND_BYTES[result or precision] * m * n)
    aligned = all(width * length % ALIGNMENT == 0 for length in rows or (n, k))
    return Kernel(flops, nbytes, (batch, m, n, k), precision, aligned=aligned)


def grouped_matmul(
    m: Sequence[float],
    n: int,
    k: Sequence[float],
    *,
    precision: str = "fp32",
    rows: tuple[int, int] | None = None,
    result: str = "",
    random_rows: bool = False,
) -> Kernel:
    """Return products of unequal sizes in one launch: either all *m* or all *k* are equal. Options as of `matmul`.

    Sizes may be means, so that they have fractions: FLOPs count these, tiles whole rows. *random_rows*: all *m* are
    means of counts that vary, so that the last tile of each is filled by half in the mean.

    >>> grouped_matmul([128.0, 64.0], 32, [16, 16]).flops, grouped_matmul([64.0, 64.0], 32, [16, 16]).shape
    (196608.0, (2, 64, 32, 16))
    """
    flops = 2.0 * n * sum(one * deep for one, deep in zip(m, k, strict=True))
    width, written = OPERAND_BYTES[precision], OPERAND_BYTES[result or precision]
    # the weights of a product without rows are not read; gradients without depth are still written
    nbytes = sum(
        width * (one * deep + deep * n * bool(one)) + written * one * n for one, deep in zip(m, k, strict=True)
    )
    whole, depths = tuple(map(ceil, m)), tuple(map(ceil, k))
    shape = len(whole), ceil(sum(whole) / len(whole)), n, ceil(sum(depths) / len(depths))
    aligned = all(width * length % ALIGNMENT == 0 for length in rows or (n, shape[3]))
    return Kernel(
        flops,
        nbytes,
        shape,
        precision,
        aligned=aligned,
        rows=whole if len(set(whole)) > 1 else (),
        depths=depths if len(set(depths)) > 1 else (),
        random_rows=random_rows,
        products=sum(1 for one, deep in zip(m, k, strict=True) if one and deep),
    )


def memory_bound(
    nbytes: float,
    *,
    precision: str = "fp32",
    launches: int = 1,
    operators: int = 0,
    accesses: float = 0.0,
    blocks: int = 0,
    operation: Operation | None = None,
) -> Kernel:
    """Return an elementwise, normalising or copying kernel: *nbytes* are read and written, arithmetic is hidden.

    *accesses*, *blocks*: as a `Kernel` has them; those of few blocks are all elements.
    """
    accesses = nbytes / OPERAND_BYTES[precision] if blocks else accesses
    return Kernel(
        nbytes=nbytes,
        precision=precision,
        launches=launches,
        accesses=accesses,
        blocks=blocks,
        operators=operators,
        operation=operation,
    )


def measured(seconds: float, flops: float = 0.0, operation: Operation = MEASURED) -> Kernel:
    """Return a kernel of a measured duration, s; *flops* are only counted."""
    return Kernel(flops, 0.0, None, "fp32", seconds, operation=operation)
