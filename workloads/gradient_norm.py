"""The norm of all gradients, by which they are clipped and overflown steps skipped, is known when all have summed.

Megatron-LM, ``clip_grad_norm`` and the inf check of its optimizer: an all-reduce of one number over the ranks of a
replica of the model. Waiting for it aligns the stages of a pipeline before the optimizer step; the post-validation of
Qi et al. 2023 (arXiv:2401.10241, section 4) updates first and corrects afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.mesh import Axis
from simulator.schedule import Collective, Op, Program, Schedule

NORM_BYTES = 4.0
"""One fp32 number."""


def gradient_norm(schedule: Schedule, ranks: int, *, synchronous: bool = True) -> Schedule:
    """*schedule* with an all-reduce over the axis ``norm`` before the optimizer step.

    The axis joins each *ranks* neighbours, a replica's, so it is to be applied while replicas are the slowest axis.
    *synchronous*: the step waits for it; else it is checked beside the step.
    """
    if ranks == 1:
        return schedule
    world = schedule.mesh.world_size
    groups = tuple(tuple(range(first, first + ranks)) for first in range(0, world, ranks))
    mesh = schedule.mesh.extended(0, {"norm": Axis(groups)})
    return replace(schedule, mesh=mesh).map_programs(lambda program: _checked(program, synchronous))


def _checked(program: Program, synchronous: bool) -> Program:
    first = next(op.name for op in program.distinct() if op.action and op.action.phase == "O")

    def change(op: Op) -> Iterator[Op]:
        if op.name == first:
            yield Collective(
                name="gradient norm",
                kind="all_reduce",
                over="norm",
                nbytes=NORM_BYTES,
                stream="compute" if synchronous else "norm",
                after=op.after,
            )
        yield op

    return program.map_ops(change)
