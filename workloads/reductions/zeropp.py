"""ZeRO++: quantised weights (qwZ), a second copy of the weights in each node (hpZ), quantised gradients (qgZ).

Wang et al. 2023, "ZeRO++: extremely efficient collective communication for giant model training" (arXiv:2306.10209);
DeepSpeed, ``zero_quantized_weights``, ``zero_hpz_partition_size``, ``zero_quantized_gradients``. For M bytes of
parameters in 16 bits, a step of stage 3 moves 3 M bytes between nodes without it. With all three it moves 0.5 M for the
gathers of the forward pass, nothing for those of the backward pass, and 0.25 M for gradients.

qgZ replaces a reduce-scatter by two all-to-alls: among the ranks of a node, then among ranks of equal place. Gradients
of 4 bits travel, and are summed in full precision each time (runtime/comm/coalesced_collectives.py,
``all_to_all_quant_reduce``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.document import Count, Flag
from simulator.kernel import Kernel, memory_bound
from simulator.schedule import Collective, Compute, Op
from workloads.gradients.bucket import Bucket, Reduction
from workloads.memory.gathering import Gathering
from workloads.operators.parameter import REPLICAS
from workloads.partial_sharding.hybrid import REPLICA, SHARD

GROUP_ELEMENTS = 8000
"""Elements that share one scale (DeepSpeed, runtime/zero/partition_parameters.py, ``CUDAQuantizer``: at most 8k; for
gradients there are as many groups as a matrix has rows or columns, also of thousands of elements)."""

SCALE_BYTES = 4.0 / GROUP_ELEMENTS
"""An fp32 scale for each group, per element."""

WEIGHT_BYTES = 1.0 + SCALE_BYTES
"""8 bits and the scales, per element."""

GRADIENT_BYTES = 0.5 + SCALE_BYTES
"""4 bits and the scales, per element."""


def zeropp(
    reduction: Reduction,
    *,
    quantized_weights: Flag = True,
    quantized_gradients: Flag = True,
    hpz_partition_size: Count = 8,
) -> Reduction:
    """*reduction* of buckets over ``dp`` by two quantised all-to-alls; other buckets as they were.

    The first one is among *hpz_partition_size* neighbours, the ranks of a node. *quantized_weights*: see `gathering`.
    """

    def reduce(bucket: Bucket) -> Iterator[Op]:
        plain = list(reduction(bucket))
        scatters = [op for op in plain if isinstance(op, Collective)]
        quantised = quantized_gradients and bucket.over == REPLICAS and bucket.ranks > hpz_partition_size
        return iter(_quantised(bucket, scatters[0], hpz_partition_size) if quantised else plain)

    return reduce


def gathering(
    *, quantized_weights: bool = True, quantized_gradients: bool = True, hpz_partition_size: int = 8
) -> Gathering:
    """How parameters are gathered with the same keys."""
    return Gathering(WEIGHT_BYTES if quantized_weights else None, hpz_partition_size)


def _quantised(bucket: Bucket, scatter: Collective, ranks: int) -> list[Op]:
    """The ops of *bucket* in place of *scatter*; *ranks* of a node."""
    elements, shard = bucket.elements, bucket.elements / ranks

    def compute(part: str, nbytes: float, after: tuple[str, ...] = ()) -> Compute:
        kernels: tuple[Kernel, ...] = (memory_bound(nbytes),)
        name = f"{bucket.name}.{part}"
        return Compute(name=name, action=bucket.action, stream=scatter.stream, after=after, kernels=kernels)

    def exchange(part: str, over: str, sent: float) -> Collective:
        name, nbytes = f"{bucket.name}.{part}", sent * GRADIENT_BYTES
        return replace(scatter, name=name, kind="all_to_all", over=over, nbytes=nbytes, after=(), frees={})

    coded = {"buffers": 2 * elements * GRADIENT_BYTES}  # what is sent, and what is received
    quantise = compute("quantise", elements * (bucket.width + GRADIENT_BYTES), scatter.after)
    within = exchange("in node", SHARD, elements)
    # dequantised, summed and quantised in one kernel (section 3.3 of the paper)
    total = compute("sum in node", (elements + shard) * GRADIENT_BYTES)
    across = exchange("across nodes", REPLICA, shard)
    final = compute("sum", shard * GRADIENT_BYTES + elements / bucket.ranks * bucket.width)
    return [
        replace(quantise, allocates=coded),
        within,
        replace(total, frees=coded),
        replace(across, frees=scatter.frees),
        final,
    ]
