"""Distributed data parallelism (DDP): every rank holds the model, gradients are all-reduced in buckets.

Backward runs layer by layer; as soon as a bucket is full its all-reduce begins on a stream of its own, while the rest
is still being computed. Li et al., "PyTorch Distributed", VLDB 2020 (arXiv:2006.15704).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.kernel import BYTES
from simulator.order import Action
from simulator.schedule import Collective, Program, Schedule
from workloads.gradients import Bucket, Weights, actions, backward_ops, reduce_gradients, weights_by_stage
from workloads.model import Layer, Model

BUCKET_BYTES = 25 * 2**20
"""torch.nn.parallel.DistributedDataParallel: ``bucket_cap_mb=25``."""

FIRST_BUCKET_BYTES = 2**20
"""torch.distributed: ``_DEFAULT_FIRST_BUCKET_BYTES``; used where no bucket size is given."""


def buckets(
    layers: Sequence[Layer | Weights],
    gradient_dtype: str,
    bucket: float | None = None,
    first_bucket: float | None = None,
) -> list[Bucket]:
    """The buckets of *layers* (in order of the forward pass), filled in reverse order of parameters as torch does.

    A bucket closes once it holds at least its size in bytes, *first_bucket* for the first and *bucket* for the others;
    a tensor is never cut. Unless *bucket* is given they are 1 MiB and 25 MiB.
    """
    first = first_bucket or bucket or FIRST_BUCKET_BYTES
    rest = bucket or BUCKET_BYTES
    made: list[Bucket] = []
    filled, at = 0.0, ""
    for layer in reversed(layers):
        for elements in reversed(layer.tensors):
            filled, at = filled + elements * BYTES[gradient_dtype], layer.name
            if filled >= (rest if made else first):
                made.append(Bucket(filled, at))
                filled = 0.0
    return [*made, Bucket(filled, at)] if filled else made


def data_parallel(
    schedule: Schedule,
    model: Model,
    replicas: int,
    *,
    gradient_dtype: str | None = None,
    overlap: bool = True,
    bucket: float | None = None,
    first_bucket: float | None = None,
    no_sync: bool = True,
) -> Schedule:
    """*replicas* copies of *schedule* whose gradients are averaged over the axis ``dp``.

    With *no_sync*, gradient accumulation communicates only in the last micro-batch's backward; without, in each. With
    *overlap* off, one all-reduce of everything follows the backward pass. *bucket* and *first_bucket* are bytes.
    """
    if replicas == 1:
        return schedule.replicate("dp", 1)
    dtype = gradient_dtype or model.precision

    def reduction(name: str, action: Action, part: Bucket, completed: str) -> tuple[Collective]:
        op = Collective(name=name, action=action, kind="all_reduce", over="dp", nbytes=part.nbytes)
        return (replace(op, stream="dp", after=(completed,)) if overlap else op,)

    def reduced(program: Program) -> Program:
        stages = weights_by_stage(program, model)
        parts = {stage: buckets(own, dtype, bucket, first_bucket) for stage, own in stages.items()}
        parts = parts if overlap else _whole(program, parts, no_sync)
        program = reduce_gradients(program, parts, reduction, every=not no_sync)
        # torch keeps the buckets beside the gradients unless gradient_as_bucket_view is set
        copies = sum(part.nbytes for own in parts.values() for part in own) if overlap else 0.0
        held = {**program.resident, "buffers": program.resident.get("buffers", 0.0) + copies}
        return replace(program, resident=held)

    return schedule.replicate("dp", replicas).map_programs(reduced)


def _whole(program: Program, parts: dict[int, list[Bucket]], no_sync: bool) -> dict[int, list[Bucket]]:
    """One bucket for all stages, after the last backward of all; without *no_sync* one for each stage."""
    last = {action.stage: layer for action, layer in backward_ops(program)}
    nbytes = {stage: sum(part.nbytes for part in own) for stage, own in parts.items()}
    if no_sync and last:
        end = list(actions(program, "BW"))[-1][1].stage
        nbytes = {stage: sum(nbytes.values()) if stage == end else 0.0 for stage in nbytes}
    return {stage: [Bucket(own, last[stage])] if own else [] for stage, own in nbytes.items()}


def initial_broadcast(schedule: Schedule, model: Model) -> Schedule:
    """What precedes the first step: rank 0 of ``dp`` broadcasts its parameters, so that all replicas start equal.

    A schedule of its own, on the same mesh, so that it is simulated and shown apart from the step.
    """

    def broadcast(program: Program) -> Program:
        own = (weights for stage in weights_by_stage(program, model).values() for weights in stage)
        nbytes = float(sum(weights.parameters for weights in own) * BYTES[model.precision])
        op = Collective(name="broadcast", kind="broadcast", over="dp", nbytes=nbytes)
        return replace(program, ops=(op,) if nbytes else ())

    return replace(schedule.map_programs(broadcast), steps=1)
