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
from workloads.gradients.reduce import backward_ops, updated_stages, weights_by_stage
from workloads.memory.optimizer import CHUNK
from workloads.model import Model
from workloads.operators.parameter import REPLICAS


def sharded_states(
    program: Program, categories: Collection[str], shards: Mapping[str, int], stages: Mapping[int, Sequence[Weights]]
) -> Program:
    """*program* with the resident states of *categories* sharded, and the optimizer step with what it holds.

    *shards*: their number by the axis over which data parallelism reduces a tensor; 1 if not given. *stages*: the
    weights of each stage. The padding that makes all shards equal is not counted.
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
            kernels = tuple(_of_shard(kernel, *elements) for kernel in op.kernels)
            op = replace(op, kernels=kernels, allocates=held, frees=held)
        yield op

    return replace(program.map_ops(change), resident=resident)


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


def _of_shard(kernel: Kernel, elements: int, share: float) -> Kernel:
    """*kernel*, a pass or several over *elements*, for a *share* of them: as many passes with fewer launches each."""
    if not elements:
        return kernel
    passes = ceil(kernel.launches / max(1, ceil(elements / CHUNK)))
    return replace(
        kernel,
        flops=kernel.flops * share / elements,
        nbytes=kernel.nbytes * share / elements,
        seconds=None if kernel.seconds is None else kernel.seconds * share / elements,
        launches=passes * max(1, ceil(share / CHUNK)),
    )


def double_buffered(program: Program, stages: Mapping[int, Sequence[Weights]], gradient_dtype: str) -> Program:
    """*program* with two gradient buffers: backward passes fill one bucket while a reduction empties the other.

    When a bucket is full, the computation waits until the bucket before it is reduced. So unreduced gradients are at
    most two buckets and the excess of one layer. DeepSpeed has two such buffers with ``contiguous_gradients`` and
    ``overlap_comm``, and so does torch's FSDP (``reduce_scatter_max_input_buffers``).
    """
    width = BYTES[gradient_dtype]
    nbytes = {weights.name: float(weights.trained.parameters * width) for own in stages.values() for weights in own}
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
