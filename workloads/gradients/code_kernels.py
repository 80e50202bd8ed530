"""Kernels from which gradients are encoded and decoded, and the bytes that they read and write."""

from __future__ import annotations

from simulator.errors import ScenarioError
from simulator.kernel import Kernel, memory_bound
from workloads.gradients.bucket import Bucket

SECTOR = 32
"""Bytes of the smallest access to a GPU's memory: an element at a random place costs as many (NVIDIA, "CUDA C++ Best
Practices Guide", section "Coalesced Access to Global Memory")."""

INDEX = 4
"""Bytes of an index on the wire, int32."""

LONG_INDEX = 8
"""Bytes of an index of torch, int64."""

SCALE = 4
"""Bytes of a scale, fp32."""

DIGIT_PASSES = 4
"""Passes of a radix selection or sort over 32-bit keys with digits of 8 bits (torch, ATen/native/cuda/
TensorTopK.cu, ``mbtopk``: ``RADIX_BITS = 8``)."""


def passes(*nbytes: float) -> tuple[Kernel, ...]:
    """A kernel for each of *nbytes* that it reads and writes."""
    return tuple(memory_bound(one) for one in nbytes)


def error_added(bucket: Bucket) -> Kernel:
    """The error of the step before is added to the gradients: both are read, and the sum is written."""
    return memory_bound(3 * bucket.nbytes)


def error_kept(bucket: Bucket) -> Kernel:
    """The difference of the gradients and what was sent of them: both are read, and it is written."""
    return memory_bound(3 * bucket.nbytes)


def selected(bucket: Bucket, count: float) -> tuple[Kernel, ...]:
    """The *count* elements of *bucket* of largest magnitude, with indices, unsorted.

    Magnitudes are written. A radix selection reads them once for each digit, and twice to place what it found: counts
    of each block, then the elements (torch, ATen/native/cuda/TensorTopK.cu, ``mbtopk::gatherTopK``). The chosen values
    are then gathered from their places, and indices cut to `INDEX` bytes.
    """
    found = count * (bucket.width + LONG_INDEX)
    digits = passes(*[bucket.nbytes] * DIGIT_PASSES)
    values = count * (LONG_INDEX + SECTOR + bucket.width)
    return (
        *passes(2 * bucket.nbytes),
        *digits,
        *passes(bucket.nbytes, bucket.nbytes + found, values, count * (LONG_INDEX + INDEX)),
    )


def added_sparse(bucket: Bucket, count: float, ranks: int) -> tuple[Kernel, ...]:
    """*bucket* set to zero; then for each of *ranks* its *count* values are added at their indices."""
    each = count * (bucket.width + INDEX + 2 * SECTOR)
    return (*passes(bucket.nbytes), memory_bound(ranks * each, launches=ranks))


def ranks_of(bucket: Bucket) -> int:
    """The number of ranks that reduce *bucket*. Raises `ScenarioError` if the method of data parallelism hides it."""
    if not bucket.ranks:
        raise ScenarioError(
            "this method of data parallelism does not say how many ranks reduce a bucket; it must give "
            "reduce_gradients the degrees of the axes"
        )
    return bucket.ranks
