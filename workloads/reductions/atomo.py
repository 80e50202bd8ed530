"""ATOMO: each gradient is decomposed into singular values and vectors, and a random choice of these is sent.

Wang et al., "ATOMO: Communication-efficient Learning via Atomic Sparsification", NeurIPS 2018 (arXiv:1806.04090),
"Spectral-ATOMO": of the rank-one terms of a matrix, *rank* are chosen on average (the paper's sparsity budget s), with
probabilities that make the sum unbiased, so that no error is fed back. Ranks choose different terms, so that every rank
gathers those of all and sums p products. The decomposition is exact, and most of the cost.
"""

from __future__ import annotations

from clustersim.simulator.hardware.kernel import memory_bound
from clustersim.simulator.reading.quantities import Count
from clustersim.workloads.data_parallel.buckets import (
    Bucket,
    BucketCode,
    CodedMessage,
    Compressed,
    Reduction,
    Round,
    compressed,
)
from clustersim.workloads.reductions._compression import copied, copied_back, ranks_of, singular_values, split
from clustersim.workloads.reductions.powersgd import NEEDS_MATRICES

WORTH = 1.0
"""A matrix is compressed if its factors are smaller than it is."""


def atomo(reduction: Reduction, rank: Count = 3) -> Compressed:
    """So many singular values with both vectors, r (n + m + 1) elements in place of n m; vectors are summed whole."""

    def code(bucket: Bucket, kind: str) -> BucketCode:
        found = split(bucket, rank, WORTH)
        width, whole = bucket.width, found.elements * bucket.width
        factors = float(sum(one.rank * (one.rows + one.columns + 1) for one in found.matrices) * width)
        kernels = tuple(kernel for one in found.matrices for kernel in singular_values(one, bucket.dtype, width))
        kernels = (*kernels, *copied(found, width))
        if kind == "reduce":
            sent = whole + factors
            return BucketCode((Round(kernels, (CodedMessage(sent),)),), (), sent=sent, held=sent)
        ranks = ranks_of(bucket)
        messages = [CodedMessage(whole)] if whole else []
        messages += [CodedMessage(ranks * factors, "all_gather")] if factors else []
        products = tuple(one.product(bucket.dtype) for one in found.matrices) * ranks
        added = 3.0 * width * sum(one.elements for one in found.matrices)
        decode = (*copied_back(found, width), *products, memory_bound(ranks * added, launches=ranks))
        held = whole + (1 + ranks) * factors
        return BucketCode((Round(kernels, tuple(messages)),), decode, sent=whole + factors, held=held)

    return compressed(reduction, "atomo", code, {"reduce_scatter": NEEDS_MATRICES})
