"""Sharded data parallelism: each rank keeps a shard of the states and updates its shard of the parameters.

Common to ZeRO and FSDP: resident states divided by the number of shards, an optimizer step over a shard, and two
gradient buffers, one of them filled while the other is reduced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from simulator.kernel import BYTES, Kernel
from simulator.schedule import Collective, Compute, Op, Program, Schedule
from workloads.gradients.bucket import Weights, reduced_axes
from workloads.gradients.norm import tensor_norms
from workloads.gradients.reduce import backward_ops, updated_stages, weights_by_stage
from workloads.memory.optimizer import CHUNK
from workloads.model import Model
from workloads.operators.parameter import REPLICAS

GATHERED_BYTES = 2.0
"""Bytes of an element of a gradient that ranks gather for Muon (arXiv:2502.16982, section 2.3: bf16)."""


def sharded_states(
    program: Program,
    categories: Collection[str],
    shards: Mapping[str, int],
    stages: Mapping[int, Sequence[Weights]],
    sharding: Mapping[str, str],
) -> Program:
    """*program* with the resident states of *categories* sharded, and the optimizer step with what it holds.

    *shards*: their number by the axis over which data parallelism reduces a tensor; 1 if not given. *sharding*: the
    axis of these shards. *stages*: the weights of each stage. The padding that makes all shards equal is not counted.
    If the step has products, ranks gather the gradients of the matrices before it (`_gathered_matrices`); if it has
    norms of tensors, ranks sum those of their parts (`tensor_norms`).
    """
    trained = {stage: [weights.trained for weights in several] for stage, several in stages.items()}
    parts = {name: _elements(stages if name == "parameters" else trained, stages, shards) for name in program.resident}
    resident = {
        name: nbytes * parts[name][1] / parts[name][0] if name in categories and parts[name][0] else nbytes
        for name, nbytes in program.resident.items()
    }
    if "optimizer" not in categories:
        return replace(program, resident=resident)
    updates = updated_stages(program)

    def change(op: Op) -> Iterator[Op]:
        if isinstance(op, Compute) and op.name in updates:
            elements = _elements(trained, updates[op.name], shards)
            held = {name: nbytes * elements[1] / max(1, elements[0]) for name, nbytes in op.allocates.items()}
            if any(kernel.flops for kernel in op.kernels):
                own = [weights for stage in updates[op.name] for weights in trained.get(stage, ())]
                yield from _gathered_matrices(op, own, sharding)
            kernels = tuple(of_shard(kernel, *elements) for kernel in op.kernels)
            op = replace(op, kernels=kernels, allocates=held, frees=held)
        yield op

    program = replace(program.map_ops(change), resident=resident)
    for axis, over in sharding.items():
        tensors = {stage: sum(len(own.over(axis).tensors) for own in several) for stage, several in trained.items()}
        program = tensor_norms(program, tensors, over)
    return program


def with_half_buckets(schedule: Schedule, model: Model) -> Schedule:
    """*schedule* with buckets of all gradients in the precision of *model*, beside gradients that are fp32.

    DistributedDataParallel makes them where it is constructed, from 16-bit parameters, whatever its hook reduces.
    *model* has its layers as one rank holds them. A rank without replicas has none.
    """

    def change(program: Program) -> Program:
        own = (weights for stage in weights_by_stage(program, model).values() for weights in stage)
        held = float(sum(weights.trained.parameters for weights in own) * BYTES[model.precision])
        return replace(program, resident={**program.resident, "buffers": program.resident.get("buffers", 0.0) + held})

    groups = schedule.mesh.axes[REPLICAS].groups if REPLICAS in schedule.mesh.axes else ()
    return schedule.map_programs(change) if any(len(group) > 1 for group in groups) else schedule


def _elements(
    stages: Mapping[int, Sequence[Weights]], chosen: Collection[int], shards: Mapping[str, int]
) -> tuple[int, float]:
    """The elements of the weights of the *chosen* stages: all, and those of one shard."""
    layers = [weights for stage in chosen for weights in stages.get(stage, ())]
    by_axis = {axis: sum(weights.over(axis).parameters for weights in layers) for axis in reduced_axes(layers)}
    return sum(by_axis.values()), sum(count / shards.get(axis, 1) for axis, count in by_axis.items())


def _gathered_matrices(op: Compute, own: Sequence[Weights], sharding: Mapping[str, str]) -> Iterator[Op]:
    """All-gathers of the 16-bit gradients of hidden matrices before *op*, a step with products of them.

    A rank has a part of a matrix, but its products need the whole. Every rank gathers all, the upper bound of Liu et
    al. 2025, "Muon is Scalable for LLM Training" (arXiv:2502.16982, section 2.3), and multiplies its share.
    """
    for axis, over in sharding.items():
        tensors = (tensor for weights in own for tensor in weights.over(axis).tensors if tensor.hidden)
        if nbytes := GATHERED_BYTES * sum(tensor.count for tensor in tensors):
            name = f"{op.name}.matrices{'' if axis == REPLICAS else f' over {axis}'}"
            yield Collective(name=name, action=op.action, kind="all_gather", over=over, nbytes=nbytes)


def of_shard(kernel: Kernel, elements: int, share: float) -> Kernel:
    """*kernel*, a pass or several over *elements*, for a *share* of them: as many passes with fewer launches each.

    A batch of products has fewer of them.
    """
    if not elements:
        return kernel
    if kernel.shape is not None:
        batch, *sides = kernel.shape
        fewer = max(1, ceil(batch * share / elements))
        part = fewer / batch
        return replace(
            kernel,
            flops=kernel.flops * part,
            nbytes=kernel.nbytes * part,
            launches=max(1, round(kernel.launches * part)),
            shape=(fewer, sides[0], sides[1], sides[2]),
        )
    passes = ceil(kernel.launches / max(1, ceil(elements / CHUNK)))
    return replace(
        kernel,
        flops=kernel.flops * share / elements,
        nbytes=kernel.nbytes * share / elements,
        seconds=None if kernel.seconds is None else kernel.seconds * share / elements,
        launches=passes * max(1, ceil(share / CHUNK)),
    )


def double_buffered(
    program: Program, stages: Mapping[int, Sequence[Weights]], gradient_dtype: str, axes: Collection[str]
) -> Program:
    """*program* with two gradient buffers: backward passes fill one bucket while a reduction empties the other.

    When a bucket is full, the computation waits until the bucket before it is reduced. So unreduced gradients are at
    most two buckets and the excess of one layer. DeepSpeed has two such buffers with ``contiguous_gradients`` and
    ``overlap_comm``, and so does torch's FSDP (``reduce_scatter_max_input_buffers``).

    *axes*: those over which the program has replicas. Tensors that are reduced over others need no buffer, such as
    experts of which every rank holds different ones.
    """
    width = BYTES[gradient_dtype]
    nbytes = {
        weights.name: float(sum(weights.trained.over(axis).parameters for axis in axes) * width)
        for own in stages.values()
        for weights in own
    }
    program = program.materialise(_behind_reductions(program))
    reductions = [op for op in program.distinct() if _reduces(op)]
    reduced = {op.action for op in reductions}
    filling = {names[0] for (action, _layer), names in backward_ops(program).items() if action in reduced}
    names = {op.name for op in reductions if op.stream != "compute"}
    issued: list[str] = []

    def change(op: Op) -> Iterator[Op]:
        if op.name in filling and op.layer and nbytes[op.layer]:
            op = replace(op, allocates=added(op.allocates, "buffers", nbytes[op.layer]))
        if _computes(op) and len(issued) > 1:
            op = op if issued[-1] in op.after else replace(op, after=(*op.after, issued[-2]))
            del issued[:-1]
        yield op
        if op.name in names:
            issued.append(op.name)

    return program.map_ops(change)


def _reduces(op: Op) -> bool:
    return isinstance(op, Collective) and "buffers" in op.frees


def _behind_reductions(program: Program) -> set[int]:
    """The micro-batches with a computation right after a reduction: that computation may wait for a reduction."""
    ops = program.templated
    computes, reduces = (
        np.flatnonzero(np.array([any(map(of, template)) for template in ops.templates])[ops.which])
        for of in (_computes, _reduces)
    )
    places = computes.searchsorted(reduces, "right")
    return set(ops.micro_batches[computes[places[places < len(computes)]]].tolist())


def _computes(op: Op) -> bool:
    return isinstance(op, Compute) and op.stream == "compute"


def added(amounts: Mapping[str, float], category: str, nbytes: float) -> dict[str, float]:
    """*amounts* with *nbytes* more of *category*."""
    return {**amounts, category: amounts.get(category, 0.0) + nbytes}
