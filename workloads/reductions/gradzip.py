"""GradZip: alternating matrix factorisation; a step updates one factor of each gradient and all-reduces only that.

Cho et al., "GradZip: Gradient Compression using Alternating Matrix Factorization for Large-scale Deep Learning",
NeurIPS 2019 workshop. Assumed from its title and its summary in lectures, since its text was not available: M is
approximated by P Q^T; in one step P = M Q (Q^T Q)^-1 with the Q that all ranks have, in the next step Q likewise from
P. The mean of both steps is simulated: half of PowerSGD's bytes, and one product less.
"""

from __future__ import annotations

from clustersim.simulator.hardware.kernel import Kernel, matmul, memory_bound
from clustersim.simulator.reading.quantities import Count, Flag
from clustersim.workloads.data_parallel.buckets import (
    Bucket,
    BucketCode,
    CodedMessage,
    Compressed,
    Reduction,
    Round,
    compressed,
)
from clustersim.workloads.reductions._compression import Matrix, copied, copied_back, error_added, error_kept, split
from clustersim.workloads.reductions.powersgd import MIN_COMPRESSION_RATE, NEEDS_MATRICES


def gradzip(reduction: Reduction, rank: Count = 1, error_feedback: Flag = True) -> Compressed:
    """One factor with *rank* columns, r (n + m) / 2 elements on average in place of n m."""

    def code(bucket: Bucket, kind: str) -> BucketCode:
        found = split(bucket, rank, MIN_COMPRESSION_RATE)
        width, whole = bucket.width, found.elements * bucket.width
        factor = (found.left + found.right) / 2 * width
        error = (error_added(bucket), memory_bound(2 * bucket.nbytes)) if error_feedback else ()
        solved = tuple(kernel for one in found.matrices for kernel in _solved(one, bucket))
        kernels = (*error, *copied(found, width), *solved)
        copy = bucket.nbytes if error_feedback else 0.0
        kept = 2 * factor + copy
        if kind == "reduce":
            sent = Round(kernels, (CodedMessage(whole + factor),))
            return BucketCode((sent,), (), whole + factor, held=whole + copy, kept=kept)
        messages = tuple(CodedMessage(nbytes) for nbytes in (whole, factor) if nbytes)
        decode = (
            *copied_back(found, width),
            *(one.product(bucket.dtype) for one in found.matrices),
            *((error_kept(bucket),) if error_feedback else ()),
        )
        return BucketCode((Round(kernels, messages),), decode, whole + factor, held=whole + copy, kept=kept)

    return compressed(reduction, "gradzip", code, {"reduce_scatter": NEEDS_MATRICES})


def _solved(one: Matrix, bucket: Bucket) -> tuple[Kernel, ...]:
    """A factor from the other: the product with the gradient, the small matrix of the other, its inverse, a product."""
    length, rank = round((one.rows + one.columns) / 2), one.rank
    small = matmul(rank, rank, length, precision=bucket.dtype)
    inverse = memory_bound(float(rank * rank * bucket.width), launches=2 * rank)
    return one.times(False, bucket.dtype), small, inverse, matmul(length, rank, rank, precision=bucket.dtype)
