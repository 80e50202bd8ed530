"""Gradients as matrices: those that a product of two thin matrices approximates, and the rest, which is sent whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.kernel import Kernel, matmul, memory_bound
from workloads.gradients.bucket import Bucket
from workloads.gradients.code_kernels import passes


@dataclass(frozen=True, slots=True)
class Matrix:
    """The gradient of a tensor of *rows* x *columns*, approximated with *rank* columns of each factor.

    *count*: so many tensors of this shape share each launch.
    """

    rows: int
    columns: int
    rank: int
    count: int = 1

    @property
    def elements(self) -> int:
        """Those of all gradients."""
        return self.count * self.rows * self.columns

    def times(self, transposed: bool, dtype: str) -> Kernel:
        """The gradient, or the *transposed* one, times a factor."""
        m, k = (self.columns, self.rows) if transposed else (self.rows, self.columns)
        return matmul(m, self.rank, k, batch=self.count, precision=dtype)

    def product(self, dtype: str) -> Kernel:
        """The product of both factors: the approximated gradient."""
        return matmul(self.rows, self.columns, self.rank, batch=self.count, precision=dtype)


@dataclass(frozen=True, slots=True)
class Split:
    """The *matrices* of a bucket that are worth compressing, and the *elements* of the *others* tensors."""

    matrices: tuple[Matrix, ...]
    elements: float
    others: int

    @property
    def left(self) -> int:
        """Elements of all left factors (P)."""
        return sum(one.count * one.rows * one.rank for one in self.matrices)

    @property
    def right(self) -> int:
        """Elements of all right factors (Q)."""
        return sum(one.count * one.columns * one.rank for one in self.matrices)

    def batched(self) -> Split:
        """The same with one launch for all matrices of a shape."""
        counts = Counter(self.matrices)
        return replace(self, matrices=tuple(replace(one, count=count) for one, count in counts.items()))


def split(bucket: Bucket, rank: int, min_compression_rate: float) -> Split:
    """The tensors of *bucket*, as torch's PowerSGD hook decides.

    A matrix n x m is worth compressing if (n + m) r x *min_compression_rate* < n m, for r = min(n, m, *rank*)
    (torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py, ``_should_compress``). For a vector m = 1, so that
    it is not for a rate of 1 or more.

    >>> bucket = Bucket(4.0 * (4096 * 1024 + 1024), "a", matrices=((4096, 1024), (1024, 1)))
    >>> found = split(bucket, 4, 2.0)
    >>> found.left, found.right, found.elements
    (16384, 4096, 1024.0)
    """
    matrices = []
    for n, m in bucket.matrices:
        r = min(n, m, rank)
        if (n + m) * r * min_compression_rate < n * m:
            matrices.append(Matrix(n, m, r))
    compressed = sum(one.elements for one in matrices)
    return Split(tuple(matrices), bucket.elements - compressed, len(bucket.matrices) - len(matrices))


def orthogonalised(matrices: Sequence[Matrix], width: int, *, left: bool) -> tuple[Kernel, ...]:
    """The *left* or right factors of *matrices* with orthogonal columns, by Gram-Schmidt.

    For each column: its norm, a division, and for the columns behind it a product, a sum, a product and a subtraction
    (powerSGD_hook.py, ``_orthogonalize_gram_schmidt``): they read and write 3 columns, and 8 for each column behind.
    torch takes a QR decomposition from rank 3 on, which has about as many launches.
    """
    kernels = []
    for one in matrices:
        length, r = one.count * (one.rows if left else one.columns), one.rank
        passes_of_columns = 3 * r + 8 * (r * (r - 1) // 2)
        kernels.append(memory_bound(float(length * passes_of_columns * width), launches=2 * r + 4 * (r - 1)))
    return tuple(kernels)


def singular_values(one: Matrix, dtype: str, width: int) -> tuple[Kernel, ...]:
    """The singular value decomposition of a gradient by bidiagonalisation.

    Each of the k = min(n, m) steps reads the rest of the matrix for two products with vectors and reads and writes it
    for the update of its panel (LAPACK ``gebrd``: half of its FLOPs are products with vectors, which memory bounds), in
    4 kernels. The sum of the rests is k (n m - k (n + m) / 2 + k^2 / 3). Both sets of vectors are then formed by
    products of n k k and m k k multiplications.
    """
    n, m = one.rows, one.columns
    k = min(n, m)
    rests = k * (n * m - k * (n + m) / 2 + k * k / 3)
    return (
        memory_bound(3 * width * rests, launches=4 * k),
        matmul(n, k, k, precision=dtype),
        matmul(m, k, k, precision=dtype),
    )


def copied(found: Split, width: int) -> tuple[Kernel, ...]:
    """The other tensors, copied to one buffer: a kernel for all."""
    return passes(2 * found.elements * width) if found.others else ()


def copied_back(found: Split, width: int) -> tuple[Kernel, ...]:
    """The sum of the other tensors, divided by the number of ranks and copied back, a kernel for each."""
    nbytes = found.elements * width
    return (*passes(2 * nbytes), memory_bound(2 * nbytes, launches=found.others)) if found.others else ()
