"""Only the gradients of largest magnitude are sent, with their indices; what is not sent is added in the next step.

Aji and Heafield 2017 (arXiv:1704.05021); Lin et al., "Deep Gradient Compression" (arXiv:1712.01887). Ranks choose
different elements, so that every rank gathers the values and indices of all: bytes grow with the number of ranks.
Values in fp32 and indices in int32 are as many bytes as a ring all-reduce of all gradients if the density is 1/p.
"""

from __future__ import annotations

from math import ceil

from clustersim.simulator.hardware.kernel import memory_bound
from clustersim.simulator.reading.quantities import Flag, Fraction
from clustersim.workloads.data_parallel.buckets import (
    Bucket,
    BucketCode,
    CodedMessage,
    Compressed,
    Reduction,
    Round,
    compressed,
)
from clustersim.workloads.reductions._compression import INDEX, SECTOR, added_sparse, error_added, ranks_of, selected

WHOLE_SUM = "every rank gets the whole sum, so that sharded gradients save nothing; take ddp, or zero with stage: 0"


def top_k(reduction: Reduction, density: Fraction = 0.01, error_feedback: Flag = True) -> Compressed:
    """The share *density* of each bucket.

    What is kept for the next step is a copy of the bucket with zeros at the chosen places.
    """

    def code(bucket: Bucket, kind: str) -> BucketCode:
        count = ceil(density * bucket.elements)
        values, indices = count * bucket.width, count * INDEX
        kernels = selected(bucket, count)
        if error_feedback:
            zeroed = memory_bound(2 * bucket.nbytes), memory_bound(count * (INDEX + SECTOR))
            kernels = (error_added(bucket), *kernels, *zeroed)
        kept = bucket.nbytes if error_feedback else 0.0
        sent = values + indices
        if kind == "reduce":
            return BucketCode((Round(kernels, (CodedMessage(sent),)),), (), sent=sent, held=sent, kept=kept)
        ranks = ranks_of(bucket)
        gathers = CodedMessage(ranks * values, "all_gather"), CodedMessage(ranks * indices, "all_gather")
        decode = added_sparse(bucket, count, ranks)
        return BucketCode((Round(kernels, gathers),), decode, sent=sent, held=(1 + ranks) * sent, kept=kept)

    return compressed(reduction, "top_k", code, {"reduce_scatter": WHOLE_SUM})
