"""Only the signs of gradients are sent, and the majority decides (signSGD with majority vote).

Bernstein et al., arXiv:1802.04434 and arXiv:1810.05291. A parameter server gets signs and answers with those of the
majority, so that the GPUs hold the parameters. In place of a server, ranks gather the signs of all
(``exchange: all_gather``, as the code of the second paper does), or each rank counts the votes of one part
(``all_to_all``).
"""

from __future__ import annotations

from clustersim.simulator.hardware.kernel import Kernel, memory_bound
from clustersim.simulator.reading.quantities import Flag
from clustersim.workloads.data_parallel.buckets import Bucket, BucketCode, Compressed, Reduction, compressed
from clustersim.workloads.reductions._compression import Exchange, Quantiser, passes

INT = 4
"""Bytes of an integer that holds the sign of one element, or 32 packed signs (``bit2byte`` of the paper's code)."""


def sign(reduction: Reduction, exchange: Exchange = "all_gather", error_feedback: Flag = False) -> Compressed:
    """A bit for each element.

    Kernels as in the paper's code (github.com/PermiJW/signSGD-with-Majority-Vote, compressor.py), operator by operator:
    the sign, a cast to integers and their packing; for each message its bits are set to one, unpacked, shifted to -1
    and 1 by two operators, cast to floats and added to the sum; then the sign of the sum.
    """

    def size(bucket: Bucket) -> float:
        return bucket.elements / 8

    def encode(bucket: Bucket) -> tuple[Kernel, ...]:
        return passes(*_operators(bucket), size(bucket) + INT * bucket.elements)

    def total(bucket: Bucket, messages: int) -> tuple[Kernel, ...]:
        integers = INT * bucket.elements
        unpacked = integers + (2 * integers + size(bucket)) + 2 * 2 * integers + (integers + bucket.nbytes)
        added = 3 * bucket.nbytes
        each = memory_bound(messages * (unpacked + added), launches=6 * messages)
        return (each, *passes(2 * bucket.nbytes))

    quantiser = Quantiser(size, encode, total, answers=True)

    def code(bucket: Bucket, kind: str) -> BucketCode:
        return quantiser.code(bucket, kind, exchange, error_feedback=error_feedback)

    return compressed(reduction, "sign", code)


def _operators(bucket: Bucket) -> tuple[float, ...]:
    """The bytes of the sign, of a concatenation with padding, and of the cast to integers."""
    return 2 * bucket.nbytes, 2 * bucket.nbytes, bucket.nbytes + INT * bucket.elements
