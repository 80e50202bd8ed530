"""All-reduces of norms: that of all gradients, for clipping and for skipping steps with overflow, and those of tensors.

LARS and LAMB scale the step of each tensor by the ratio of two norms. Ranks that have parts of a tensor sum theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from simulator.schedule import Collective, Compute, Op, Program, Schedule
from workloads.gradients.reduce import updated_stages, weights_by_stage
from workloads.memory.optimizer import NORMS
from workloads.model import Model
from workloads.operators.parameter import REPLICAS

NORM_BYTES = 4.0
"""One fp32 number: the squared norm of the gradients of a rank (Megatron-LM, ``clip_grad_norm``; DeepSpeed,
runtime/zero/stage3.py, ``complete_grad_norm_calculation_for_cpu_offload``; torch, ``nn.utils.get_total_norm``)."""


COMPUTE = "compute"
"""The stream of computations."""


def gradient_norm(schedule: Schedule, axes: Sequence[str], *, synchronous: bool = True) -> Schedule:
    """Return *schedule* with an all-reduce of the norm over the ranks of a replica before the optimizer step.

    *axes* join the ranks of a replica. As Megatron-LM's ``clip_grad_norm`` and the inf check of its optimizer.
    *synchronous*: the step waits for it, which aligns the stages of a pipeline. Otherwise the norm is checked during
    the step: the post-validation of Qi et al. 2023 (arXiv:2401.10241, section 4) updates first and corrects afterwards.
    """
    axis = schedule.mesh.joint(*axes)
    if all(len(group) == 1 for group in axis.groups):
        return schedule
    mesh = schedule.mesh.extended(0, {"norm": axis})
    return replace(schedule, mesh=mesh).map_programs(lambda program: _before_first_update(program, synchronous))


def _before_first_update(program: Program, synchronous: bool) -> Program:
    firsts: dict[int | None, str] = {}  # by batch
    for op in program.distinct():
        # what runs beside the step, such as the sum of tied embeddings, does not wait for the norm
        if op.stream == COMPUTE and op.action and op.action.phase == "O":
            firsts.setdefault(op.action.micro_batch, op.name)

    def change(op: Op) -> Iterator[Op]:
        if op.action and firsts.get(op.action.micro_batch) == op.name:
            yield Collective(
                name="gradient norm" if op.action.micro_batch is None else f"{op.name}.norm",
                kind="all_reduce",
                over="norm",
                nbytes=NORM_BYTES,
                stream=COMPUTE if synchronous else "norm",
                after=op.after,
            )
        yield op

    return program.map_ops(change)


def tensor_norms(program: Program, tensors: Mapping[int, int], over: str) -> Program:
    """Return *program* with two all-reduces of the norms of tensors, on axis *over*, before each step that has them.

    *tensors*: how many each stage has. A norm is one fp32 number of a tensor, and the second one is known after the
    first half of the step only (apex, contrib/optimizers/distributed_fused_lamb.py, ``_pipeline_step``).
    """
    updates = updated_stages(program)

    def change(op: Op) -> Iterator[Op]:
        if op.name in updates and _has_tensor_norms(op):
            nbytes = NORM_BYTES * sum(tensors.get(stage, 0) for stage in updates[op.name])
            for of in ("weights", "updates") if nbytes else ():
                name = f"{op.name}.norms of {of}{'' if over == REPLICAS else f' over {over}'}"
                yield Collective(
                    name=name, action=op.action, kind="all_reduce", over=over, nbytes=nbytes, after=op.after
                )
        yield op

    return program.map_ops(change)


def _has_tensor_norms(op: Op) -> bool:
    return isinstance(op, Compute) and any(kernel.operation == NORMS for kernel in op.kernels)


def split_tensor_norms(schedule: Schedule, model: Model, axes: Sequence[str]) -> Schedule:
    """Return *schedule* with the norms of tensors summed over the *axes* that divide them, as tensor parallelism does.

    *model* has its layers as one rank holds them. All tensors of a rank are counted, those that are whole too.
    """
    if not axes or not any(map(_has_tensor_norms, (op for program in schedule.programs for op in program.distinct()))):
        return schedule
    axis = schedule.mesh.joint(*axes)
    if all(len(group) == 1 for group in axis.groups):
        return schedule

    def change(program: Program) -> Program:
        stages = weights_by_stage(program, model)
        tensors = {stage: sum(len(one.trained.tensors) for one in own) for stage, own in stages.items()}
        return tensor_norms(program, tensors, "tensor norms")

    mesh = schedule.mesh.extended(0, {"tensor norms": axis})
    return replace(schedule, mesh=mesh).map_programs(change)


def sharded_gradient_norm(program: Program, over: str) -> Program:
    """Return *program* with an all-reduce of the norm over the shards, on axis *over*, before each optimizer step.

    Each rank has the norm of its own shard only. The all-reduce waits for the same ops as the optimizer step.
    """
    updates = updated_stages(program)

    def change(op: Op) -> Iterator[Op]:
        if op.name in updates:
            norm = f"{op.name}.norm"
            yield Collective(
                name=norm, action=op.action, kind="all_reduce", over=over, nbytes=NORM_BYTES, after=op.after
            )
        yield op

    return program.map_ops(change)
