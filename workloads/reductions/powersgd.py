"""PowerSGD: the gradient of a matrix is sent as a product of two thin matrices, which all-reduces can sum.

Vogels et al., NeurIPS 2019 (arXiv:1905.13727), as torch's ``powerSGD_hook`` runs it. With M the gradient plus the error
of the step before: P = M Q, with the orthogonal Q of the step before; P is all-reduced and orthogonalised; Q = M^T P is
all-reduced; the gradient is P Q^T. Vectors, and matrices that are not worth it, are all-reduced whole before P.

The hook ends with ``torch.cuda.synchronize``, and its callbacks run on the thread of the backward pass, so that nothing
is reduced beside the backward pass (powerSGD_hook.py, ``decompress``; so in torch 1.8 to 2.13).
"""

from __future__ import annotations

from clustersim.simulator.hardware.kernel import Kernel, memory_bound
from clustersim.simulator.reading.quantities import Count, Flag, Index, Ratio
from clustersim.workloads.data_parallel.buckets import (
    Bucket,
    BucketCode,
    CodedMessage,
    Compressed,
    Reduction,
    Round,
    compressed,
)
from clustersim.workloads.reductions._compression import (
    Split,
    copied,
    copied_back,
    error_added,
    error_kept,
    orthogonalised,
    passes,
    split,
)

MIN_COMPRESSION_RATE = 2.0
"""torch's ``PowerSGDState``: ``min_compression_rate=2``."""

START = 1000
"""torch's ``PowerSGDState``: ``start_powerSGD_iter=1_000``."""

NEEDS_MATRICES = "it needs whole matrices on every rank; take ddp, or zero with stage: 0"

TWO_ROUNDS = "it needs two rounds, of P and of Q, which the parameter server does not have; take ddp"


def powersgd(
    reduction: Reduction,
    rank: Count = 1,
    min_compression_rate: Ratio = MIN_COMPRESSION_RATE,
    error_feedback: Flag = True,
    start: Index = START,
    synchronous: Flag = True,
    batched: Flag = False,
) -> Compressed:
    """Factors with *rank* columns, r (n + m) elements in place of n m. Error feedback keeps a copy of each bucket.

    *start*: the first steps of a run, which all-reduce whole gradients; the simulated step is one after these.
    *synchronous*: as torch's hook; without, the rounds run beside the backward pass.
    *batched*: matrices of a bucket with the same shape are stacked and share launches (torch's
    ``batch_tensors_with_same_shape``).
    """

    def code(bucket: Bucket, kind: str) -> BucketCode:
        found = split(bucket, rank, min_compression_rate)
        found = found.batched() if batched else found
        width, whole = bucket.width, found.elements * bucket.width
        left, right = float(found.left * width), float(found.right * width)
        stacked = passes(*[2 * width * one.elements for one in found.matrices if one.count > 1])
        first = (*stacked, *_multiplied(bucket, found, error_feedback), *copied(found, width))
        rounds = [Round(first, tuple(CodedMessage(nbytes) for nbytes in (whole, left) if nbytes))]
        if found.matrices:
            second = orthogonalised(found.matrices, width, left=True)
            second += tuple(one.times(True, bucket.dtype) for one in found.matrices)
            rounds.append(Round(second, (CodedMessage(right),)))
        decode = (
            *copied_back(found, width),
            *((memory_bound(2 * right),) if right else ()),
            *(one.product(bucket.dtype) for one in found.matrices),
            *stacked,
            *((error_kept(bucket),) if error_feedback else ()),
        )
        kept = left + right + (bucket.nbytes if error_feedback else 0.0)
        return BucketCode(
            tuple(rounds),
            decode,
            sent=whole + left + right,
            held=whole + (bucket.nbytes if error_feedback else 0.0),
            kept=kept,
            synchronous=synchronous,
            start=start,
        )

    return compressed(reduction, "powersgd", code, {"reduce_scatter": NEEDS_MATRICES, "reduce": TWO_ROUNDS})


def _multiplied(bucket: Bucket, found: Split, error_feedback: bool) -> tuple[Kernel, ...]:
    """The error is added and the sum copied; Q is orthogonalised, and P = M Q."""
    error = (error_added(bucket), memory_bound(2 * bucket.nbytes)) if error_feedback else ()
    orthogonal = orthogonalised(found.matrices, bucket.width, left=False)
    return (*error, *orthogonal, *(one.times(False, bucket.dtype) for one in found.matrices))
