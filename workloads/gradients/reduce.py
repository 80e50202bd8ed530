"""Gradients are reduced in buckets, each as soon as the backward pass of its last layer is done.

Common to all methods of data parallelism: the layers that a program holds, the ops that complete their gradients, and
where the reductions go. Each stage of a program fills buckets of its own, as Megatron-LM wraps each model chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from simulator.errors import ScheduleError
from simulator.kernel import Kernel
from simulator.schedule import Compute, Op, Program, Schedule
from simulator.schedule.order import PLACEHOLDER, Action
from workloads.gradients.bucket import NO_COPIES, Bucket, BucketCopies, Reduction, Weights
from workloads.model import Model
from workloads.operators.parameter import REPLICAS


def weights_by_stage(program: Program, model: Model) -> dict[int, list[Weights]]:
    """The weights of each stage of *program*, in order of the forward pass.

    If layers share parameters of the first one, a program with such a layer but not the first holds a copy. Its
    gradients are summed over the replicas like all others. Raises `ScheduleError` for a layer that *model* lacks.
    """
    layers = {layer.name: layer for layer in model.layers}
    found: dict[int, dict[str, Weights]] = {}
    computed = {op.layer for op in program.distinct()}
    copies = [] if model.layers[0].name in computed else [name for name in model.sharing if name in computed]
    for op in program.distinct():
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
        stage: [replace(own, ranks=known.get(own.over, own.ranks)) for own in several]
        for stage, several in buckets.items()
    }
    program = _with_kept(program, reduction, [own for several in buckets.values() for own in several])
    updates = updated_stages(program)
    final = final_backwards(program, updates)
    program = program.materialise(None if every else {action.micro_batch for action in final})
    completing = {names[-1] for place, names in backward_ops(program).items() if every or place[0] in final}
    # ops of a stream run in order: the optimizer waits for the last one of each stream
    pending: dict[tuple[int, str], str] = {}

    def change(op: Op) -> Iterator[Op]:
        if op.name in updates:
            awaited = [key for key in pending if key[0] in updates[op.name]]
            yield replace(op, after=(*op.after, *dict.fromkeys(pending.pop(key) for key in awaited)))
            return
        if not op.action or op.name not in completing:
            yield op
            return
        own = {n: bucket for n, bucket in enumerate(buckets[op.action.stage]) if bucket.layer == op.layer}
        yield _with_kernel(op, copies.kernel(own.values()))
        for number, bucket in own.items():
            name = f"{op.action}.bucket{number}"
            filled = replace(bucket, name=name, action=op.action, filled_by=op.name, last=op.action in final)
            for reduced in reduction(filled):
                yield reduced
                pending[op.action.stage, reduced.stream] = reduced.name

    return program.map_ops(change)


def _with_kept(program: Program, reduction: Reduction, buckets: Sequence[Bucket]) -> Program:
    """*program* with what *reduction* keeps for *buckets* from step to step."""
    from workloads.gradients.compressed import Compressed

    if not isinstance(reduction, Compressed):
        return program
    kept = sum(reduction.code(bucket).kept for bucket in buckets)
    return replace(program, resident={**program.resident, "buffers": program.resident.get("buffers", 0.0) + kept})


def _with_kernel(op: Op, kernel: Kernel) -> Op:
    """*op* with *kernel* at its end, if that moves any bytes."""
    return replace(op, kernels=(*op.kernels, kernel)) if kernel.nbytes and isinstance(op, Compute) else op


def updated_stages(program: Program) -> dict[str, frozenset[int]]:
    """The stages that each optimizer step updates, by the name of its op, in order of issue.

    They are its own stage and the stages without a step of their own: one step at the end is for all stages of a rank.
    """
    stages = {op.action.stage for op in program.distinct() if op.action and op.action.phase == "F"}
    steps = (op for op in program.distinct() if isinstance(op, Compute))
    updates = {op.name: op.action.stage for op in steps if op.action and op.action.phase == "O"}
    shared = stages - set(updates.values())
    return {name: frozenset({stage, *shared}) for name, stage in updates.items()}


def final_backwards(program: Program, updates: Mapping[str, frozenset[int]]) -> set[Action]:
    """The last B or W of each stage before each optimizer step: its gradients are complete then."""
    last: dict[int, Action] = {}
    final: set[Action] = set()
    for _, action in actions(program, "BWO"):
        if action.phase != "O":
            last[action.stage] = action
        else:
            final.update(last.pop(stage) for stage in updates[str(action)] & set(last))
    return final | set(last.values())


def actions(program: Program, phases: str) -> Iterator[tuple[int, Action]]:
    """(number of the block, action) of the actions of *phases* that *program* computes, in order of issue."""
    ops = program.templated
    of = [_actions(template, phases) for template in ops.templates]
    for number, (template, own) in enumerate(zip(ops.which.tolist(), ops.micro_batches.tolist(), strict=True)):
        for phase, stage, micro_batch in of[template]:
            yield number, Action(phase, stage, own if micro_batch == PLACEHOLDER else micro_batch)


def _actions(ops: Sequence[Op], phases: str) -> list[Action]:
    return list(
        dict.fromkeys(op.action for op in ops if isinstance(op, Compute) and op.action and op.action.phase in phases)
    )


def backward_ops(program: Program) -> dict[tuple[Action, str], list[str]]:
    """The names of the Computes of the weight gradients (phases B and W), by action and layer, in order of first use.

    Blocks that are not materialised count by template.
    """
    found: dict[tuple[Action, str], list[str]] = {}
    for op in program.distinct():
        if isinstance(op, Compute) and op.action and op.layer and op.action.phase in "BW":
            found.setdefault((op.action, op.layer), []).append(op.name)
    return found


def after_backward(program: Program, parts: Mapping[int, Sequence[Bucket]]) -> dict[int, list[Bucket]]:
    """*parts*, by stage, all complete only at the end of the last backward pass before their optimizer step."""
    last = {action.stage: layer for action, layer in backward_ops(program)}
    if len(set(updated_stages(program).values())) > 1:
        return {stage: [replace(part, layer=last[stage]) for part in own] for stage, own in parts.items()}
    end = list(actions(program, "BW"))[-1][1].stage
    every = [replace(part, layer=last[end]) for own in parts.values() for part in own]
    return {stage: every if stage == end else [] for stage in parts}


def flattened(reduction: Reduction) -> Reduction:
    """*reduction*, each bucket copied to a flat buffer just for it."""

    from workloads.gradients.compressed import wrapped

    def reduce(bucket: Bucket) -> Iterator[Op]:
        ops = list(reduction(bucket))
        held = ops[0].allocates.get("buffers", 0.0) + bucket.buffer
        yield replace(ops[0], allocates={**ops[0].allocates, "buffers": held}) if bucket.buffer else ops[0]
        yield from ops[1:]

    return wrapped(reduction, reduce)
