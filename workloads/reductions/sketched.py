"""Sketched SGD: ranks sum count sketches of their gradients, find the largest in the sum, and sum these exactly.

Ivkin et al., "Communication-efficient Distributed SGD with Sketching", NeurIPS 2019 (arXiv:1903.04488). A sketch is
*rows* x c numbers: each row adds every element, with a random sign, to one of its c places. Sketches are linear, so
that an all-reduce sums them. An element is estimated by the median of its places. All ranks find the same P k largest
estimates, so that a second all-reduce sums their exact values, of which the k largest are used.
"""

from __future__ import annotations

from math import ceil

from clustersim.simulator.hardware.kernel import Kernel, memory_bound
from clustersim.simulator.reading.quantities import Count, Flag, Fraction
from clustersim.workloads.data_parallel.buckets import (
    Bucket,
    BucketCode,
    CodedMessage,
    Compressed,
    Reduction,
    Round,
    compressed,
)
from clustersim.workloads.reductions._compression import LONG_INDEX, SECTOR, error_added, passes, selected

ROWS = 5
"""Rows of the sketch in the paper's experiments (github.com/dhroth/sketchedsgd: ``numRows=5``)."""

CANDIDATES = 4
"""P: candidates for each of the k elements (``p2=4``, likewise)."""

REFUSED = {
    "reduce_scatter": "all ranks must find the largest sums, so that sharded gradients save nothing; take ddp",
    "reduce": "its second round does not go through the parameter server; take ddp",
}


def sketched(
    reduction: Reduction,
    share: Fraction = 0.05,
    rows: Count = ROWS,
    density: Fraction = 0.001,
    candidates: Count = CANDIDATES,
    error_feedback: Flag = True,
) -> Compressed:
    """A sketch with *share* times the elements of a bucket in all its *rows*; the share *density* is used.

    *candidates*: values of the second round for each one that is used.
    """

    def code(bucket: Bucket, kind: str) -> BucketCode:
        n, width = bucket.elements, bucket.width
        sketch = rows * ceil(share * n / rows) * width
        chosen = ceil(density * n)
        values = float(min(n, candidates * chosen) * width)
        touched = values / width * (LONG_INDEX + SECTOR)
        # for each row, elements and their places are read; the sum at a place is read and written
        hashed = memory_bound(rows * (bucket.nbytes + n * (LONG_INDEX + 2 * SECTOR)), launches=rows)
        # the places of each row are read and written as estimates; the median is sorted from these
        estimates = memory_bound(rows * n * (LONG_INDEX + SECTOR + width), launches=rows)
        median = memory_bound((rows + 1) * bucket.nbytes)
        first = (*((error_added(bucket),) if error_feedback else ()), *passes(sketch), hashed)
        found = (estimates, median, *selected(bucket, values / width), *passes(touched + values))
        rounds = (Round(first, (CodedMessage(sketch),)), Round(found, (CodedMessage(values),)))
        decode = (*passes(2 * values, bucket.nbytes, chosen * (LONG_INDEX + SECTOR)), *_kept(bucket, error_feedback))
        held = sketch + (rows + 1) * bucket.nbytes + values
        kept = bucket.nbytes if error_feedback else 0.0
        return BucketCode(rounds, decode, sent=sketch + values, held=held, kept=kept)

    return compressed(reduction, "sketched", code, REFUSED)


def _kept(bucket: Bucket, error_feedback: bool) -> tuple[Kernel, ...]:
    """What was used is set to zero in the error."""
    return passes(2 * bucket.nbytes) if error_feedback else ()
