"""A random choice of gradients is sent, the same on every rank: no indices, and an all-reduce can sum the values.

Stich et al., "Sparsified SGD with Memory", 2018 (arXiv:1809.07599); with a seed that all ranks share: Vogels et al.,
"PowerSGD" (arXiv:1905.13727, appendix G, "Random K").
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
from clustersim.workloads.reductions._compression import LONG_INDEX, SECTOR, error_added, passes


def random_k(reduction: Reduction, density: Fraction = 0.01, error_feedback: Flag = True) -> Compressed:
    """The share *density* of each bucket: indices are drawn, values gathered, and their sum written to a bucket of
    zeros."""

    def code(bucket: Bucket, kind: str) -> BucketCode:
        count = ceil(density * bucket.elements)
        values = float(count * bucket.width)
        touched = count * (LONG_INDEX + SECTOR)
        kernels = passes(count * LONG_INDEX, touched + values)
        if error_feedback:
            kernels = (error_added(bucket), *kernels, memory_bound(2 * bucket.nbytes), memory_bound(touched))
        decode = () if kind == "reduce" else passes(bucket.nbytes, touched + SECTOR * count + values)
        held = values + count * LONG_INDEX
        kept = bucket.nbytes if error_feedback else 0.0
        return BucketCode((Round(kernels, (CodedMessage(values),)),), decode, sent=values, held=held, kept=kept)

    return compressed(reduction, "random_k", code)
