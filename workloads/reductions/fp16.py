"""Gradients are cast to 16 bits for their sum, as by torch's ``fp16_compress_hook`` and ``bf16_compress_hook``."""

from __future__ import annotations

from typing import Literal

from clustersim.simulator.hardware.kernel import BYTES
from clustersim.workloads.data_parallel.buckets import (
    Bucket,
    BucketCode,
    CodedMessage,
    Compressed,
    Reduction,
    Round,
    compressed,
)
from clustersim.workloads.reductions._compression import passes


def fp16(reduction: Reduction, dtype: Literal["fp16", "bf16"] = "fp16") -> Compressed:
    """Half as many bytes as fp32.

    torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py, ``_compress_hook``: the bucket is cast and divided by
    the number of ranks; the sum is copied back. Gradients of 16 bits are only divided.
    """

    def code(bucket: Bucket, kind: str) -> BucketCode:
        narrow = bucket.elements * BYTES[dtype]
        cast = bucket.width > BYTES[dtype]
        kernels = passes(*([bucket.nbytes + narrow] if cast else []), 2 * narrow)
        decode = () if kind == "reduce" else passes(narrow + bucket.nbytes)
        return BucketCode((Round(kernels, (CodedMessage(narrow),)),), decode, sent=narrow, held=narrow if cast else 0.0)

    return compressed(reduction, "fp16", code)
