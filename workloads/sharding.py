"""Sharded data parallelism: each rank keeps one part of the states and updates its part of the parameters.

What ZeRO and FSDP share: resident states divided, an optimizer step over a shard, and gradients that live in two
buffers, one being filled while the other is reduced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from simulator.kernel import BYTES, Kernel
from simulator.order import Action
from simulator.schedule import Collective, Compute, Op, Program
from workloads.gradients import Bucket, Reduction, Weights, backward_ops, updated_stages
from workloads.optimizer import CHUNK

NORM_BYTES = 4.0
"""The squared norm of a rank's gradients, one fp32 number (DeepSpeed, runtime/zero/stage3.py,
``complete_grad_norm_calculation_for_cpu_offload``; torch, ``nn.utils.get_total_norm`` over DTensors)."""


def sharded_states(
    program: Program, categories: Collection[str], shards: int, stages: Mapping[int, Sequence[Weights]]
) -> Program:
    """*program* with the resident states of *categories* divided by *shards*, and its optimizer step with its states.

    *stages*: the weights of each. A shard is exactly one part in *shards*: the padding that makes all shards equal is
    not counted.
    """
    resident = {name: nbytes / (shards if name in categories else 1) for name, nbytes in program.resident.items()}
    if "optimizer" not in categories:
        return replace(program, resident=resident)
    updates = updated_stages(program)

    def change(op: Op) -> Iterator[Op]:
        if isinstance(op, Compute) and op.name in updates:
            elements = sum(weights.parameters for stage in updates[op.name] for weights in stages.get(stage, ()))
            op = replace(op, kernels=tuple(_share(kernel, elements, shards) for kernel in op.kernels))
        yield op

    return replace(program.map_ops(change), resident=resident)


def _share(kernel: Kernel, elements: int, shards: int) -> Kernel:
    """The kernel, made for all of *elements*, over one of *shards*: its passes stay, each of fewer launches."""
    passes = ceil(kernel.launches / max(1, ceil(elements / CHUNK)))
    return replace(
        kernel,
        flops=kernel.flops / shards,
        nbytes=kernel.nbytes / shards,
        seconds=None if kernel.seconds is None else kernel.seconds / shards,
        launches=passes * max(1, ceil(elements / shards / CHUNK)),
    )


def bucket_reduction(kind: str, over: str, overlap: bool, across: tuple[str, int] | None = None) -> Reduction:
    """Each bucket goes through one collective of *kind* over the axis *over*, on ``dp.reduce`` if *overlap*.

    The collective frees what the backward pass has put into the bucket. *across*: (axis, shards) over which what it
    leaves, one of so many shards, is then all-reduced, on ``dp.across``.
    """

    def reduction(name: str, action: Action, bucket: Bucket, completed: str) -> Iterator[Collective]:
        op = Collective(
            name=name, action=action, kind=kind, over=over, nbytes=bucket.nbytes, frees={"buffers": bucket.nbytes}
        )
        yield replace(op, stream="dp.reduce", after=(completed,)) if overlap else op
        if across is not None:
            axis, shards = across
            op = Collective(
                name=f"{name}.across", action=action, kind="all_reduce", over=axis, nbytes=bucket.nbytes / shards
            )
            yield replace(op, stream="dp.across", after=(name,)) if overlap else op

    return reduction


def double_buffered(program: Program, stages: Mapping[int, Sequence[Weights]], gradient_dtype: str) -> Program:
    """*program* whose backward passes fill the buckets that its reductions free, one being filled, one being reduced.

    Once a bucket is full the computation waits until the one before it is reduced, whose place the next one takes:
    unreduced gradients are never more than two buckets and what one layer brings over. As DeepSpeed's two buffers
    under ``contiguous_gradients`` and ``overlap_comm``, and torch's FSDP (``reduce_scatter_max_input_buffers``).
    """
    width = BYTES[gradient_dtype]
    nbytes = {weights.name: float(weights.parameters * width) for own in stages.values() for weights in own}
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
    """The micro-batches that are computed right behind a reduction: their next computation may wait for one."""
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


def norm_before_update(program: Program, over: str) -> Program:
    """*program* with an all-reduce of the gradient's norm over *over* before each optimizer step, which it clips.

    Each rank knows the norm of its own shard alone. It waits for what the optimizer step waits for.
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
