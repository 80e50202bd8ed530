"""Gradients of a training step: added over micro-batches, reduced in buckets, and the all-reduces of their norms.

Common to all methods of data parallelism: the layers that a program holds, the ops that complete their gradients, and
where the reductions go. Each stage of a program fills buckets of its own, as Megatron-LM wraps each model chunk.

LARS and LAMB scale the step of each tensor by the ratio of two norms. Ranks that have parts of a tensor sum theirs.

The traffic depends on where gradients are accumulated. Autograd adds to a tensor of the same type (torch,
csrc/autograd/functions/accumulate_grad.h). Where 16-bit gradients are accumulated in fp32, Megatron-LM adds each to a
buffer in a hook (megatron/model/distributed.py, ``_make_param_hook``); DeepSpeed casts it first
(runtime/bf16_optimizer.py, ``_update_hp_grad``). Megatron-LM since 2022 does so within the product, which reads the sum
and writes it in place of a gradient of 16 bits (``gradient_accumulation_fusion``; TransformerEngine, pytorch/
module/grouped_linear.py, ``accumulate=``): few rows, as those of an expert, hide little of that. Under torch's autocast
weights are fp32: each forward pass casts them to 16 bits once (ATen/autocast_mode.cpp, ``cached_cast``), and autograd
casts their gradients back and adds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, memory_bound
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.ops import Collective, Compute, Op
from clustersim.simulator.schedule.pipeline_order import PLACEHOLDER, Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.records import changed
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.buckets import (
    NO_COPIES,
    Bucket,
    BucketCopies,
    Compressed,
    Reduction,
    Weights,
    wrapped,
)
from clustersim.workloads.memory.optimizer import NORMS
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import REPLICAS


def weights_by_stage(program: Program, model: Model) -> dict[int, list[Weights]]:
    """The weights of each stage of *program*, in order of the forward pass.

    If layers share parameters of the first one, a program with such a layer but not the first holds a copy. Its
    gradients are summed over the replicas like all others. Raises `ScheduleError` for a layer that *model* lacks.
    """
    layers = {layer.name: layer for layer in model.layers}
    found: dict[int, dict[str, Weights]] = {}
    computed = {op.layer for op in program.computations()}
    copies = [] if model.layers[0].name in computed else [name for name in model.sharing if name in computed]
    for op in program.computations():
        if not (op.action and op.action.phase == "F" and op.layer) or op.layer in found.get(op.action.stage, ()):
            continue
        if op.layer not in layers:
            raise ScheduleError(f"{program.role}: {model.name} has no layer {op.layer}")
        copy = (model.tied_copy,) if op.layer in copies[:1] else ()
        found.setdefault(op.action.stage, {})[op.layer] = Weights(op.layer, (*layers[op.layer].tensors, *copy))
    return {stage: list(named.values()) for stage, named in found.items()}


def map_replicas(schedule: Schedule, model: Model, change: Callable[[Program, Mapping[str, int]], Program]) -> Schedule:
    """Replace every program that has replicas by ``change(program, degrees)``.

    *degrees*: the number of ranks on ``dp`` and on the other axes over which data parallelism reduces gradients of
    *model*, without axes of one rank. Raises `ScheduleError` for an axis that the mesh does not have.
    """
    named = (tensor.reduced_over[-1] for layer in model.layers for tensor in layer.tensors)
    axes = list(dict.fromkeys([REPLICAS, *named]))
    for axis in axes:
        if axis not in schedule.mesh.axes:
            raise ScheduleError(f"gradients are reduced over {axis}; the axes are {', '.join(schedule.mesh.axes)}")
    by_axis = {axis: schedule.degrees(axis) for axis in axes}
    programs = []
    for number, program in enumerate(schedule.programs):
        degrees = {axis: several[number] for axis, several in by_axis.items() if several[number] > 1}
        programs.append(change(program, degrees) if degrees else program)
    return replace(schedule, programs=tuple(programs))


def reduce_gradients(
    program: Program,
    buckets: Mapping[int, Sequence[Bucket]],
    reduction: Reduction,
    degrees: Mapping[str, int] | None = None,
    *,
    every: bool = False,
    copies: BucketCopies = NO_COPIES,
) -> Program:
    """*program* with a *reduction* of each of its *buckets* (by stage), after the op that completes the bucket.

    It happens in the backward pass of the last micro-batch before an optimizer step, or of *every* micro-batch. The
    optimizer step waits for the reductions of the stages that it updates. The kernels of *copies* are
    part of the op that completes a bucket. *degrees*: ranks on each axis, which reductions that gather need. What a
    compressing *reduction* keeps from step to step is resident.
    """
    known = degrees or {}
    buckets = {
        stage: [changed(own, ranks=known.get(own.over, own.ranks)) for own in several]
        for stage, several in buckets.items()
    }
    program = _with_kept(program, reduction, [own for several in buckets.values() for own in several])
    updates = updated_stages(program)
    final = final_backwards(program, updates)
    program = program.materialise({action.micro_batch for action in final})
    completing = {names[-1] for place, names in backward_ops(program).items() if every or place[0] in final}
    of_layer: dict[tuple[int, str | None], dict[int, Bucket]] = {}
    for stage, several in buckets.items():
        for number, bucket in enumerate(several):
            of_layer.setdefault((stage, bucket.layer), {})[number] = bucket
    # ops of a stream run in order: the optimizer waits for the last one of each stream
    pending: dict[tuple[int, str], str] = {}

    def change(op: Op) -> Iterator[Op]:
        if op.name in updates:
            awaited = [key for key in pending if key[0] in updates[op.name]]
            yield changed(op, after=(*op.after, *dict.fromkeys(pending.pop(key) for key in awaited)))
            return
        if not op.action or op.name not in completing:
            yield op
            return
        own = of_layer.get((op.action.stage, op.layer), {})
        yield _with_kernel(op, copies.kernel(own.values()))
        for number, bucket in own.items():
            name = f"{op.action}.bucket{number}"
            filled = changed(bucket, name=name, action=op.action, filled_by=op.name, last=op.action in final)
            for reduced in reduction(filled):
                yield reduced
                pending[op.action.stage, reduced.stream] = reduced.name

    return program.map_ops(change)


def _with_kept(program: Program, reduction: Reduction, buckets: Sequence[Bucket]) -> Program:
    """*program* with what *reduction* keeps for *buckets* from step to step."""
    if not isinstance(reduction, Compressed):
        return program
    kept = sum(reduction.code(bucket).kept for bucket in buckets)
    return replace(program, resident={**program.resident, "buffers": program.resident.get("buffers", 0.0) + kept})


def _with_kernel(op: Op, kernel: Kernel) -> Op:
    """*op* with *kernel* at its end, if that moves any bytes."""
    return changed(op, kernels=(*op.kernels, kernel)) if kernel.nbytes and isinstance(op, Compute) else op


def updated_stages(program: Program) -> dict[str, frozenset[int]]:
    """The stages that each optimizer step updates, by the name of its op, in order of issue.

    They are its own stage and the stages without a step of their own: one step at the end is for all stages of a rank.
    """
    stages, updates = set[int](), dict[str, int]()
    for op in program.computations():
        if op.action and op.action.phase == "F":
            stages.add(op.action.stage)
        elif op.action and op.action.phase == "O":
            updates[op.name] = op.action.stage
    shared = stages - set(updates.values())
    return {name: frozenset({stage, *shared}) for name, stage in updates.items()}


def final_backwards(program: Program, updates: Mapping[str, frozenset[int]]) -> set[Action]:
    """The last B or W of each stage before each optimizer step: its gradients are complete then."""
    stages = {op.action.stage for phase in "BW" for op in program.in_phase(phase) if op.action}
    final, left, wanted = set[Action](), len(updates), set(stages)
    for _, action in actions(program, "BWO", from_end=True):
        if action.phase == "O":
            left -= 1
            wanted |= stages & updates[str(action)]
        elif action.stage in wanted:
            wanted.remove(action.stage)
            final.add(action)
        if not (left or wanted):
            break
    return final


def actions(program: Program, phases: str, *, from_end: bool = False) -> Iterator[tuple[int, Action]]:
    """(number of the block, action) of the actions of *phases* that *program* computes, in order of issue.

    *from_end*: from the last one to the first.
    """
    ops, step = program.templated, -1 if from_end else 1
    of = [distinct_actions(template, phases)[::step] for template in ops.templates]
    blocks = zip(range(len(ops.which)), ops.which.tolist(), ops.micro_batches.tolist(), strict=True)
    for number, template, own in list(blocks)[::step]:
        for phase, stage, micro_batch in of[template]:
            yield number, Action(phase, stage, own if micro_batch == PLACEHOLDER else micro_batch)


def distinct_actions(ops: Sequence[Op], phases: str) -> list[Action]:
    """The actions of *phases* that *ops* compute, each once, in order of issue."""
    return list(
        dict.fromkeys(op.action for op in ops if isinstance(op, Compute) and op.action and op.action.phase in phases)
    )


def backward_ops(program: Program) -> dict[tuple[Action, str], list[str]]:
    """The names of the Computes of the weight gradients (phases B and W), by action and layer, in order of first use.

    Blocks that are not materialised count by template.
    """
    found: dict[tuple[Action, str], list[str]] = {}
    for op in program.computations():
        if op.action and op.layer and op.action.phase in "BW":
            found.setdefault((op.action, op.layer), []).append(op.name)
    return found


def after_backward(program: Program, parts: Mapping[int, Sequence[Bucket]]) -> dict[int, list[Bucket]]:
    """*parts*, by stage, all complete only at the end of the last backward pass before their optimizer step."""
    last = {action.stage: layer for action, layer in backward_ops(program)}
    if len(set(updated_stages(program).values())) > 1:
        return {stage: [changed(part, layer=last[stage]) for part in own] for stage, own in parts.items()}
    end = next(actions(program, "BW", from_end=True))[1].stage
    every = [changed(part, layer=last[end]) for own in parts.values() for part in own]
    return {stage: every if stage == end else [] for stage in parts}


def flattened(reduction: Reduction) -> Reduction:
    """*reduction*, each bucket copied to a flat buffer just for it."""

    def reduce(bucket: Bucket) -> Iterator[Op]:
        ops = list(reduction(bucket))
        held = ops[0].allocates.get("buffers", 0.0) + bucket.buffer
        yield changed(ops[0], allocates={**ops[0].allocates, "buffers": held}) if bucket.buffer else ops[0]
        yield from ops[1:]

    return wrapped(reduction, reduce)


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
    if (axis.lengths == 1).all():
        return schedule
    mesh = schedule.mesh.extended(0, {"norm": axis})
    return replace(schedule, mesh=mesh).map_programs(lambda program: _before_first_update(program, synchronous))


def _before_first_update(program: Program, synchronous: bool) -> Program:
    firsts: dict[int | None, str] = {}  # by batch
    for op in program.in_phase("O"):
        # what runs beside the step, such as the sum of tied embeddings, does not wait for the norm
        if op.stream == COMPUTE and op.action:
            firsts.setdefault(op.action.micro_batch, op.name)

    def change(op: Op) -> Iterator[Op]:
        whole = op.action is None or op.action.micro_batch is None
        yield Collective(
            name="gradient norm" if whole else f"{op.name}.norm",
            kind="all_reduce",
            over="norm",
            nbytes=NORM_BYTES,
            stream=COMPUTE if synchronous else "norm",
            after=op.after,
        )
        yield op

    return program.map_ops(change, {*firsts.values()})


def tensor_norms(program: Program, tensors: Mapping[int, int], over: str) -> Program:
    """Return *program* with two all-reduces of the norms of tensors, on axis *over*, before each step that has them.

    *tensors*: how many each stage has. A norm is one fp32 number of a tensor, and the second one is known after the
    first half of the step only (apex, contrib/optimizers/distributed_fused_lamb.py, ``_pipeline_step``).
    """
    updates = updated_stages(program)

    def change(op: Op) -> Iterator[Op]:
        if _has_tensor_norms(op):
            nbytes = NORM_BYTES * sum(tensors.get(stage, 0) for stage in updates[op.name])
            for of in ("weights", "updates") if nbytes else ():
                name = f"{op.name}.norms of {of}{'' if over == REPLICAS else f' over {over}'}"
                yield Collective(
                    name=name, action=op.action, kind="all_reduce", over=over, nbytes=nbytes, after=op.after
                )
        yield op

    return program.map_ops(change, updates)


def _has_tensor_norms(op: Op) -> bool:
    return isinstance(op, Compute) and any(kernel.operation == NORMS for kernel in op.kernels)


def split_tensor_norms(schedule: Schedule, model: Model, axes: Sequence[str]) -> Schedule:
    """Return *schedule* with the norms of tensors summed over the *axes* that divide them, as tensor parallelism does.

    *model* has its layers as one rank holds them. All tensors of a rank are counted, those that are whole too.
    """
    computed = (op for program in schedule.programs for op in program.computations())
    if not axes or not any(map(_has_tensor_norms, computed)):
        return schedule
    axis = schedule.mesh.joint(*axes)
    if (axis.lengths == 1).all():
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
        norm = f"{op.name}.norm"
        yield Collective(name=norm, action=op.action, kind="all_reduce", over=over, nbytes=NORM_BYTES, after=op.after)
        yield op

    return program.map_ops(change, updates)


ACCUMULATIONS = ("fused", "added", "cast", "autocast")
"""How 16-bit gradients are accumulated in fp32: by the product, by an addition, after a cast, or by autograd."""

FP32 = 4
ACCUMULATION = Operation("gradient accumulation", "elementwise")


def accumulated_bytes(how: str, precision: str, gradient_dtype: str, micro_batches: int) -> float:
    """Bytes that are read and written for each parameter and micro-batch, the mean over *micro_batches*.

    Autograd does not add the gradients of the first micro-batch. A buffer in fp32 is set to zero once a step
    (``zero_grad_buffer``, ``clear_hp_grads``).

    >>> accumulated_bytes("cast", "bf16", "fp32", 8), accumulated_bytes("cast", "fp16", "fp16", 4)
    (18.5, 4.5)
    """
    width = BYTES[precision]
    if BYTES[gradient_dtype] == width:
        return 0.0 if how == "fused" else 3.0 * width * (micro_batches - 1) / micro_batches
    if how == "autocast":
        return 2.0 * (width + FP32) + 3.0 * FP32 * (micro_batches - 1) / micro_batches
    added = {"fused": 0.0, "added": width + 2.0 * FP32, "cast": (width + FP32) + 3.0 * FP32}
    return added[how] + FP32 / micro_batches


def fused_bytes(how: str, precision: str, gradient_dtype: str) -> float:
    """Further bytes of an element of a weight's gradient that a product adds to a sum in place of writing it.

    >>> fused_bytes("fused", "bf16", "fp32"), fused_bytes("fused", "bf16", "bf16"), fused_bytes("added", "bf16", "fp32")
    (6.0, 0.0, 0.0)
    """
    width = BYTES[precision]
    return 2.0 * FP32 - width if how == "fused" and BYTES[gradient_dtype] != width else 0.0


def accumulated_in_products(schedule: Schedule, nbytes: float) -> Schedule:
    """*schedule* with *nbytes* of further traffic for each element of a weight's gradient, within its product."""
    return schedule.map_programs(lambda program: _in_products(program, nbytes)) if nbytes else schedule


def _in_products(program: Program, nbytes: float) -> Program:
    def summed(kernel: Kernel) -> Kernel:
        return replace(kernel, nbytes=kernel.nbytes + nbytes * kernel.result_elements)

    def change(op: Op) -> Iterator[Op]:
        assert isinstance(op, Compute)
        yield replace(op, kernels=tuple(summed(one) if one.of_weights else one for one in op.kernels))

    changed = {op.name for op in program.computations() if any(kernel.of_weights for kernel in op.kernels)}
    return program.map_ops(change, changed)


def accumulated(schedule: Schedule, model: Model, nbytes: float) -> Schedule:
    """*schedule* with *nbytes* of traffic for each trained parameter of a layer at the end of its backward passes.

    *model* has its layers as one rank holds them. The host's time for it is part of what a stack takes to launch the
    kernels of a backward pass.
    """
    if not nbytes:
        return schedule
    counts = {layer.name: layer.trainable_parameters for layer in model.layers}
    traffic = {name: nbytes * count for name, count in counts.items() if count}
    return schedule.map_programs(lambda program: _accumulated(program, traffic))


def _accumulated(program: Program, traffic: dict[str, float]) -> Program:
    completing = (op for op in program.computations() if _completes(op))
    added = {op.name: traffic[op.layer] for op in completing if op.layer in traffic}

    def change(op: Op) -> Iterator[Op]:
        assert isinstance(op, Compute)
        addition = memory_bound(added[op.name], launches=0, operation=ACCUMULATION)
        yield changed(op, kernels=(*op.kernels, addition))

    return program.map_ops(change, added)


def _completes(op: Op) -> bool:
    """True if *op* ends the backward pass of its layer: it has the name of the layer."""
    return op.action is not None and op.action.phase in "BW" and op.name == f"{op.action}.{op.layer}"
