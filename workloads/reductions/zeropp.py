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

from collections.abc import Iterable

from clustersim.simulator.hardware.kernel import memory_bound
from clustersim.simulator.reading.quantities import Count, Flag
from clustersim.simulator.schedule.ops import Op
from clustersim.workloads.data_parallel.buckets import (
    Bucket,
    BucketCode,
    CodedMessage,
    Reduction,
    Round,
    compressed,
    wrapped,
)
from clustersim.workloads.data_parallel.parameter_gathers import Gathering
from clustersim.workloads.data_parallel.sharded_states import REPLICA, SHARD
from clustersim.workloads.operators.operator import REPLICAS

GROUP_ELEMENTS = 8000
"""Elements that share one scale (DeepSpeed, runtime/zero/partition_parameters.py, ``CUDAQuantizer``: at most 8k; for
gradients there are as many groups as a matrix has rows or columns, also of thousands of elements)."""

SCALE_BYTES = 4.0 / GROUP_ELEMENTS
"""An fp32 scale for each group, per element."""

WEIGHT_BYTES = 1.0 + SCALE_BYTES
"""8 bits and the scales, per element."""

GRADIENT_BYTES = 0.5 + SCALE_BYTES
"""4 bits and the scales, per element."""

NEEDS_SHARDS = "it reduces gradients to shards; take zero with stage: 3, or fsdp"


def zeropp(
    reduction: Reduction,
    quantized_weights: Flag = True,
    quantized_gradients: Flag = True,
    hpz_partition_size: Count = 8,
) -> Reduction:
    """Buckets over ``dp`` are reduced by two quantised all-to-alls; others as they were.

    The first one is among *hpz_partition_size* neighbours, the ranks of a node; if that is 1, or all ranks, there is
    one all-to-all. *quantized_weights*: see `gathering`.
    """
    if not quantized_gradients:
        return reduction

    def code(bucket: Bucket, kind: str) -> BucketCode:
        return _code(bucket, hpz_partition_size)

    quantised = compressed(reduction, "zeropp", code, {"all_reduce": NEEDS_SHARDS})

    def reduce(bucket: Bucket) -> Iterable[Op]:
        return quantised(bucket) if bucket.over == REPLICAS else reduction(bucket)

    return wrapped(quantised, reduce)


def gathering(
    quantized_weights: bool = True, quantized_gradients: bool = True, hpz_partition_size: int = 8
) -> Gathering:
    """How parameters are gathered with the same keys."""
    return Gathering(WEIGHT_BYTES if quantized_weights else None, hpz_partition_size)


def _code(bucket: Bucket, ranks: int) -> BucketCode:
    """All-to-alls of *bucket* among the *ranks* of a node and across nodes, or one among all ranks."""
    two = 1 < ranks < bucket.ranks
    nodes = bucket.ranks // ranks if two else 1
    within, shard = bucket.elements * GRADIENT_BYTES, bucket.elements * nodes / bucket.ranks
    across = shard * GRADIENT_BYTES if two else 0.0
    rounds = [
        Round((memory_bound(bucket.nbytes + within),), (CodedMessage(within, "all_to_all", SHARD if two else ""),))
    ]
    if two:
        # what arrives is dequantised, summed and quantised in one kernel (section 3.3 of the paper)
        rounds.append(Round((memory_bound(within + across),), (CodedMessage(across, "all_to_all", REPLICA),)))
    return BucketCode(
        tuple(rounds),
        (memory_bound((across or within) + bucket.nbytes / bucket.ranks),),
        sent=within + across,
        held=2 * within,  # what is sent, and what arrives
        beside=True,
    )
