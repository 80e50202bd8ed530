"""Collectives over a list of tensors: one for each tensor, and the host cuts each tensor into a slice for each rank.

So did torch's ``all_gather`` and ``reduce_scatter`` with a list of tensors, copied from and to a flat buffer
(torch/lib/c10d/ProcessGroupNCCL.cpp), before ``_all_gather_base`` of 2021; and with it DeepSpeed's ZeRO-3 until January
2022 (deepspeed v0.3.13, runtime/zero/partition_parameters.py, ``_allgather_param``, ``_reduce_scatter_gradient``;
changed in its pull request 1453). The host time grows with the number of ranks. The GPU waits for it, since each gather
synchronises with the device, and it reads and writes the tensors more often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simulator.kernel import Kernel, measured
from simulator.schedule import Collective, Compute, Op
from workloads.gradients.bucket import Bucket, Reduction
from workloads.gradients.compressed import wrapped

TRAFFIC = {"all_gather": 3.0, "reduce_scatter": 4.0}
"""How often the bytes of a tensor pass through memory beside the collective. A gather's buffer is zeroed and copied to
the views; gradients are divided by the number of ranks and copied from them (both files above; stage3.py,
``average_tensor``)."""


def per_tensor(op: Collective, sizes: Sequence[float], seconds: float) -> Iterator[Op]:
    """A collective like *op* for each tensor of *sizes* bytes, after *seconds* of the host for each of them.

    The time of the host and of the GPU's copies is on the stream ``compute``. The first collective allocates what *op*
    allocates. The last one has its name and frees what it frees.
    """
    host = f"{op.name}.slices"
    kernels = measured(seconds * len(sizes)), Kernel(nbytes=TRAFFIC[op.kind] * sum(sizes))
    yield Compute(name=host, after=op.after, kernels=kernels)
    after = () if op.stream == "compute" else (host,)
    for number, nbytes in enumerate(sizes, start=1):
        last = number == len(sizes)
        yield replace(
            op,
            name=op.name if last else f"{op.name}.{number}",
            nbytes=nbytes,
            after=after,
            allocates=op.allocates if number == 1 else {},
            frees=op.frees if last else {},
        )


def reduced_per_tensor(reduction: Reduction, seconds: float) -> Reduction:
    """*reduction* with its collectives tensor by tensor, and *seconds* of the host for each."""

    def reduce(bucket: Bucket) -> Iterator[Op]:
        for op in reduction(bucket):
            if isinstance(op, Collective):
                share = op.nbytes / bucket.nbytes
                yield from per_tensor(op, [share * nbytes for nbytes in bucket.tensors], seconds)
            else:
                yield op

    return wrapped(reduction, reduce)
