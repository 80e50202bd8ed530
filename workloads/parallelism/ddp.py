"""Distributed data parallelism (DDP): every rank holds the model, and gradients are all-reduced in buckets.

The backward pass runs layer by layer. As soon as a bucket is full, its all-reduce begins on a stream of its own, beside
the rest of the backward pass. Li et al., "PyTorch Distributed", VLDB 2020 (arXiv:2006.15704).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Literal

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading.quantities import Flag, Size
from clustersim.simulator.reading.units import show
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.buckets import (
    NO_COPIES,
    Bucket,
    BucketCopies,
    Reduction,
    Weights,
    bucket_copies,
    reduced_axes,
)
from clustersim.workloads.data_parallel.gradients import (
    actions,
    backward_ops,
    map_replicas,
    reduce_gradients,
    weights_by_stage,
)
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import REPLICAS, ParameterTensor
from clustersim.workloads.parallelism._parallelism import ReducingMethod, TrainingStep
from clustersim.workloads.reductions.all_reduce import all_reduce

BUCKET_BYTES = 25 * 2**20
"""torch.nn.parallel.DistributedDataParallel: ``bucket_cap_mb=25``."""

FIRST_BUCKET_BYTES = 2**20
"""torch.distributed: ``_DEFAULT_FIRST_BUCKET_BYTES``; used if no bucket size is given."""


class DistributedDataParallel(ReducingMethod):
    """Gradients are all-reduced in buckets, as by torch's DistributedDataParallel."""

    method: Literal["ddp"]
    """ddp: torch's DistributedDataParallel; gradients are all-reduced in buckets."""
    overlap: Flag = True
    """Buckets are reduced beside the backward pass."""
    bucket: Size | None = None
    """Bytes of a bucket of gradients; by default 25 MiB, as in torch."""
    first_bucket: Size | None = None
    """Bytes of the first bucket; by default 1 MiB, as in torch."""
    no_sync: Flag = True
    """Only the last micro-batch of a step communicates."""

    @property
    def overlaps(self) -> bool:
        """As given."""
        return self.overlap

    @property
    def broadcasts(self) -> bool:
        """Every rank has the whole model."""
        return True

    def copies(self, model: Model, software: Software, dtype: str) -> BucketCopies:
        """Those of *software*."""
        return bucket_copies(software, model)

    def most_buffers(self, largest: float, precision: str, software: Software, dtype: str) -> float:
        """None: buckets are parts of the gradients, or kept all the time; compressed ones have more."""
        return inf if self.compression else 0.0

    def apply(self, schedule: Schedule, step: TrainingStep) -> Schedule:
        """Reduce the gradients of all replicas."""
        return data_parallel(
            schedule,
            step.model,
            gradient_dtype=step.gradient_dtype,
            overlap=self.overlap and not step.software.blocking_all_reduces,
            bucket=self.bucket,
            first_bucket=self.first_bucket,
            no_sync=self.no_sync,
            copies=step.software.gradient_buffers == "copies",
            around=bucket_copies(step.software, step.model),
            compressed=self.compressed,
        )

    def facts(self) -> Mapping[str, Any]:
        """The sizes of buckets."""
        if not self.overlap:
            return {}
        first, rest = self.first_bucket or self.bucket or FIRST_BUCKET_BYTES, self.bucket or BUCKET_BYTES
        return {"first_bucket": show(first, "size"), "bucket": show(rest, "size")}


def data_parallel(
    schedule: Schedule,
    model: Model,
    replicas: int | None = None,
    *,
    gradient_dtype: str | None = None,
    overlap: bool = True,
    bucket: float | None = None,
    first_bucket: float | None = None,
    no_sync: bool = True,
    copies: bool = True,
    around: BucketCopies = NO_COPIES,
    compressed: Callable[[Reduction], Reduction] | None = None,
) -> Schedule:
    """*schedule* with gradients that are averaged over the axis ``dp``.

    *replicas*: make so many copies first; None: the mesh has the axis. *model* has its layers as one rank holds them.
    With *no_sync*, gradient accumulation communicates only in the backward pass of the last micro-batch; else in each.
    Without *overlap*, one all-reduce of all gradients follows the backward pass. *bucket*, *first_bucket*: bytes.
    *copies*: buckets are copies of gradients, as torch's are with *overlap*; else parts of them, as Megatron-LM's are.
    *around*: as *copies* of `reduce_gradients`. *compressed* wraps the reduction.
    """
    dtype = gradient_dtype or model.precision
    reduction = all_reduce(REPLICAS if overlap else None)
    reduction = compressed(reduction) if compressed else reduction

    def reduced(program: Program, degrees: Mapping[str, int]) -> Program:
        stages = weights_by_stage(program, model)
        parts = {
            stage: [part for axis in degrees for part in buckets(own, dtype, bucket, first_bucket, axis)]
            for stage, own in stages.items()
        }
        parts = parts if overlap else _whole(program, parts, no_sync)
        program = reduce_gradients(program, parts, reduction, degrees, every=not no_sync, copies=around)
        # torch keeps the buckets beside the gradients unless gradient_as_bucket_view is set
        copied = sum(part.nbytes for own in parts.values() for part in own) if overlap and copies else 0.0
        resident = {**program.resident, "buffers": program.resident.get("buffers", 0.0) + copied}
        return replace(program, resident=resident)

    return map_replicas(schedule if replicas is None else schedule.replicate(REPLICAS, replicas), model, reduced)


def buckets(
    layers: Sequence[Weights],
    gradient_dtype: str,
    bucket: float | None = None,
    first_bucket: float | None = None,
    over: str = REPLICAS,
) -> list[Bucket]:
    """The buckets of those trained tensors of *layers* (in forward order) that are reduced over the axis *over*.

    They are filled in reverse order of the parameters, as torch does. A bucket closes when it holds at least its size
    in bytes, *first_bucket* for the first and *bucket* for the others; a tensor is never divided. Default: 1 MiB and
    25 MiB.
    """
    first = first_bucket or bucket or FIRST_BUCKET_BYTES
    rest = bucket or BUCKET_BYTES
    width = BYTES[gradient_dtype]
    made: list[Bucket] = []
    filled: list[ParameterTensor] = []
    last = ""
    for layer in reversed(layers):
        for tensor in reversed(layer.over(over).trained.tensors):
            filled.append(tensor)
            last = layer.name
            if sum(one.count for one in filled) * width >= (rest if made else first):
                made.append(Bucket.of(filled, gradient_dtype, last, over))
                filled = []
    return [*made, Bucket.of(filled, gradient_dtype, last, over)] if filled else made


def _whole(program: Program, parts: Mapping[int, Sequence[Bucket]], no_sync: bool) -> dict[int, list[Bucket]]:
    """One bucket (for each axis) for all stages, after the last backward pass; without *no_sync* one for each stage."""
    last = {action.stage: layer for action, layer in backward_ops(program)}
    by_stage = {stage: list(own) for stage, own in parts.items()}
    if no_sync and last:
        end = next(actions(program, "BW", from_end=True))[1].stage
        every = [part for own in parts.values() for part in own]
        by_stage = {stage: every if stage == end else [] for stage in parts}
    return {stage: _merged(own, last[stage]) if own else [] for stage, own in by_stage.items()}


def _merged(parts: Sequence[Bucket], layer: str) -> list[Bucket]:
    """*parts* as one bucket for each axis, complete after *layer*."""
    merged: dict[str, Bucket] = {}
    for part in parts:
        before = merged.get(part.over, replace(part, nbytes=0.0, layer=layer, tensors=(), matrices=()))
        merged[part.over] = replace(
            before,
            nbytes=before.nbytes + part.nbytes,
            tensors=before.tensors + part.tensors,
            matrices=before.matrices + part.matrices,
        )
    return list(merged.values())


def initial_broadcast(schedule: Schedule, model: Model) -> Schedule:
    """What precedes the first step: rank 0 of ``dp`` broadcasts its parameters, so that all replicas start equal.

    Those of experts are broadcast over their own groups.
    A schedule of its own, on the same mesh; it is simulated and shown apart from the step.
    """

    def broadcast(program: Program) -> Program:
        own = [weights for stage in weights_by_stage(program, model).values() for weights in stage]
        ops = []
        for axis in reduced_axes(own):
            nbytes = float(sum(weights.over(axis).parameters for weights in own) * BYTES[model.precision])
            name = "broadcast" if axis == REPLICAS else f"broadcast over {axis}"
            ops.append(Collective(name=name, kind="broadcast", over=axis, nbytes=nbytes))
        return replace(program, ops=tuple(op for op in ops if op.nbytes))

    return replace(schedule.map_programs(broadcast), steps=1)
