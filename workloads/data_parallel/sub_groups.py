"""DeepSpeed's ZeRO-3 updates a rank's shard in sub-groups, one after the other, and holds fp32 gradients of one only.

runtime/zero/stage3.py: ``_create_fp16_sub_groups`` cuts the shard, and ``step`` prepares, updates and releases one
sub-group at a time. ``_prepare_fp32_grad_for_sub_group`` flattens its gradients, which copies them, and then casts the
flat copy.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.schedule.ops import Op
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.records import changed
from clustersim.workloads.data_parallel.gradients import updated_stages
from clustersim.workloads.data_parallel.gradients_of_a_step import GRADIENTS

ELEMENTS = 1e9
"""runtime/zero/config.py: ``sub_group_size`` of 1e9 elements of a rank's shard."""


def in_sub_groups(program: Program, gradient_dtype: str) -> Program:
    """*program* with two copies of the gradients of a sub-group where an optimizer step holds those of a shard in fp32.

    One copy is in *gradient_dtype*, the other in fp32.
    """
    updates = updated_stages(program)

    def change(op: Op) -> Iterator[Op]:
        copied = op.allocates.get(GRADIENTS, 0.0) if op.name in updates else 0.0
        if copied:
            elements = min(copied / BYTES["fp32"], ELEMENTS)
            held = elements * (BYTES["fp32"] + BYTES[gradient_dtype])
            op = changed(op, allocates={**op.allocates, GRADIENTS: held}, frees={**op.frees, GRADIENTS: held})
        yield op

    return program.map_ops(change)
