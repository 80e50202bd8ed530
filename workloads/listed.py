"""A collective over a list of tensors is issued tensor by tensor, and the host cuts each into one slice for each rank.

So torch gathered and reduce-scattered (``all_gather``, ``reduce_scatter`` with a list of tensors, one for each rank,
copied from and to a flat buffer: torch/lib/c10d/ProcessGroupNCCL.cpp) before ``_all_gather_base`` of 2021, and with it
DeepSpeed's ZeRO-3 until January 2022 (deepspeed v0.3.13, runtime/zero/partition_parameters.py, ``_allgather_param``,
``_reduce_scatter_gradient``; mended in its pull request 1453). What the host does grows with the number of ranks, and
the GPU waits for it, since each gather synchronises with the device. Beside, the GPU goes over the tensors more often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simulator.kernel import Kernel, measured
from simulator.schedule import Collective, Compute, Op

TRAFFIC = {"all_gather": 3.0, "reduce_scatter": 4.0}
"""Times that the bytes of a tensor pass through memory beside the collective: a gather's buffer is zeroed and copied to
the views, gradients are divided by the number of ranks and copied from them (both files above; stage3.py,
``average_tensor``)."""


def listed(op: Collective, sizes: Sequence[float], seconds: float) -> Iterator[Op]:
    """*op* as a collective for each tensor of *sizes* bytes, after *seconds* of the host for each of them.

    The host's time and the GPU's stand on the stream ``compute``. The first collective allocates what *op* does, the
    last has its name and frees.
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
