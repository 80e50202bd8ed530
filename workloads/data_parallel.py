"""Distributed data parallelism (DDP): every rank holds the model, gradients are all-reduced in buckets.

Backward runs layer by layer; as soon as a bucket is full its all-reduce begins on a stream of its own, while the rest
is still being computed. Li et al., "PyTorch Distributed", VLDB 2020 (arXiv:2006.15704).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from simulator.kernel import BYTES
from simulator.order import Action
from simulator.schedule import Collective, Op, Program, Schedule
from workloads.model import Layer, Model

BUCKET_BYTES = 25 * 2**20
"""torch.nn.parallel.DistributedDataParallel: ``bucket_cap_mb=25``."""

FIRST_BUCKET_BYTES = 2**20
"""torch.distributed: ``_DEFAULT_FIRST_BUCKET_BYTES``; used where no bucket size is given."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """*nbytes* of gradients, complete when the backward pass has gone through *layer*, the last of its layers."""

    nbytes: float
    layer: str


def buckets(
    layers: Sequence[Layer], gradient_dtype: str, bucket: float | None = None, first_bucket: float | None = None
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
    layers = {layer.name: layer for layer in model.layers}
    dtype = gradient_dtype or model.precision

    def reduced(program: Program) -> Program:
        own = _layers_of(program, layers)
        parts = buckets(own, dtype, bucket, first_bucket)
        if not overlap:
            parts = [Bucket(sum(part.nbytes for part in parts), own[0].name)] if parts else []
        program = _with_all_reduces(program, parts, overlap, no_sync)
        # torch keeps the buckets beside the gradients unless gradient_as_bucket_view is set
        copies = sum(part.nbytes for part in parts) if overlap else 0.0
        held = {**program.resident, "buffers": program.resident.get("buffers", 0.0) + copies}
        return replace(program, resident=held)

    return schedule.replicate("dp", replicas).weave(reduced)


def _layers_of(program: Program, layers: dict[str, Layer]) -> list[Layer]:
    """The program's layers in order of the forward pass."""
    seen = dict.fromkeys(op.layer for op in program.ops if op.action and op.action.phase == "F" and op.layer)
    return [layers[name] for name in seen]


def _with_all_reduces(program: Program, parts: list[Bucket], overlap: bool, no_sync: bool) -> Program:
    last = {op.action.stage: op.action for op in program.ops if op.action and op.action.phase in "BW"}
    reduced: list[str] = []

    def change(op: Op) -> Iterator[Op]:
        if op.action and op.action.phase == "O":
            yield replace(op, after=(*op.after, *reduced))
            return
        yield op
        if op.action is None or op.action.phase not in "BW" or (no_sync and last[op.action.stage] != op.action):
            return
        for number, part in enumerate(parts):
            if part.layer == op.layer:
                yield _all_reduce(op.action, number, part, op.name, overlap)
                reduced.append(_name(op.action, number))

    return program.weave(change)


def _name(action: Action, number: int) -> str:
    return f"{action}.bucket{number}"


def _all_reduce(action: Action, number: int, part: Bucket, after: str, overlap: bool) -> Collective:
    return Collective(
        name=_name(action, number),
        action=action,
        kind="all_reduce",
        over="dp",
        nbytes=part.nbytes,
        stream="dp" if overlap else "compute",
        after=(after,) if overlap else (),
    )


def initial_broadcast(schedule: Schedule, model: Model) -> Schedule:
    """What precedes the first step: rank 0 of ``dp`` broadcasts its parameters, so that all replicas start equal.

    A schedule of its own, on the same mesh, so that it is simulated and shown apart from the step.
    """
    layers = {layer.name: layer for layer in model.layers}

    def broadcast(program: Program) -> Program:
        nbytes = float(sum(layer.parameters for layer in _layers_of(program, layers)) * BYTES[model.precision])
        op = Collective(name="broadcast", kind="broadcast", over="dp", nbytes=nbytes)
        return replace(program, ops=(op,) if nbytes else ())

    return replace(schedule.weave(broadcast), steps=1)
