"""Gradients are sent in 2, 4 or 8 bits with a scale for each group of elements (QSGD).

Alistarh et al., "QSGD", NeurIPS 2017 (arXiv:1610.02132). How the messages are exchanged:
`workloads.reductions._compression`. QSGD and torch's quantization hooks gather them; ZeRO++ and CGX sum parts.
"""

from __future__ import annotations

from math import ceil
from typing import Annotated, Literal

from pydantic import BeforeValidator

from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.reading.quantities import Count, Flag, whole_number
from clustersim.workloads.data_parallel.buckets import Bucket, BucketCode, Compressed, Reduction, compressed
from clustersim.workloads.reductions._compression import SCALE, Exchange, Quantiser, passes

GROUP = 512
"""Elements with one scale: QSGD's bucket for 4 bits (arXiv:1610.02132, section 5)."""

Bits = Annotated[Literal[2, 4, 8], BeforeValidator(whole_number)]


def quantise(
    reduction: Reduction,
    bits: Bits = 8,
    group: Count = GROUP,
    exchange: Exchange = "all_gather",
    error_feedback: Flag = False,
) -> Compressed:
    """*bits* for each element, and a scale for each *group* of them.

    QSGD rounds at random without bias, so that it needs no *error_feedback*. Kernels are fused, as in systems that
    quantise: one reads the gradients for the scales, one quantises, one reads all messages and writes the sum.
    """

    def size(bucket: Bucket) -> float:
        return bucket.elements * bits / 8 + SCALE * ceil(bucket.elements / group)

    def encode(bucket: Bucket) -> tuple[Kernel, ...]:
        return passes(bucket.nbytes, bucket.nbytes + size(bucket))

    def total(bucket: Bucket, messages: int) -> tuple[Kernel, ...]:
        return passes(messages * size(bucket) + bucket.nbytes)

    quantiser = Quantiser(size, encode, total)

    def code(bucket: Bucket, kind: str) -> BucketCode:
        return quantiser.code(bucket, kind, exchange, error_feedback=error_feedback)

    return compressed(reduction, "quantise", code)
