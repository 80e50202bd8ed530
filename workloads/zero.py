"""ZeRO is data parallelism without redundancy: optimizer states, then gradients, then parameters live in shards.

Rajbhandari et al., "ZeRO", SC 2020 (arXiv:1910.02054), as DeepSpeed runs it: stage 1 shards the optimizer states,
stage 2 the gradients too, stage 3 also the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from simulator.errors import ScenarioError
from simulator.kernel import BYTES
from simulator.order import Action
from simulator.program import Block, TemplatedOps
from simulator.schedule import Collective, Compute, Op, Program, Schedule
from workloads.gradients import Bucket, Reduction, Weights, reduce_gradients, updated_stages, weights_by_stage
from workloads.listed import listed
from workloads.model import Model
from workloads.optimizer import state_bytes
from workloads.sharding import bucket_reduction, double_buffered, norm_before_update, sharded_states
from workloads.unshard import Limits, Listing, unsharded

SHARDED: Mapping[int, tuple[str, ...]] = {
    0: (),
    1: ("optimizer",),
    2: ("optimizer", "gradients"),
    3: ("optimizer", "gradients", "parameters"),
}
"""The states of which each rank keeps one part in d, by stage (arXiv:1910.02054, section 5 and figure 1)."""

BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed, runtime/zero/config.py: ``reduce_bucket_size`` and ``allgather_bucket_size`` of 5e8 elements."""

LIMITS = Limits(reuse=1e9, live=1e9)
"""DeepSpeed's defaults (runtime/zero/config.py)."""

PERSISTENT_ELEMENTS = 100_000
"""DeepSpeed, runtime/zero/config.py, ``stage3_param_persistence_threshold``: smaller tensors stay whole. Only where
tensors are gathered one by one: beside the others they are next to nothing."""


def zero(
    schedule: Schedule,
    model: Model,
    replicas: int,
    *,
    stage: int = 1,
    gradient_dtype: str | None = None,
    overlap: bool = True,
    bucket: float | None = None,
    gradient_norm: bool = True,
    slice_seconds: float = 0.0,
    gather_ahead: bool = False,
) -> Schedule:
    """*replicas* copies of *schedule* over a new, slowest axis ``dp``, sharded as *stage* (0 to 3) says.

    *model* has its layers as one rank holds them (under tensor parallelism, its share). Gradients are reduced in
    buckets of *bucket* bytes (5e8 elements unless given), with *overlap* on a stream of their own, ``dp.reduce``, as
    DeepSpeed's ``overlap_comm`` does (off by default there but in stage 3), else blocking. Stage 0 all-reduces and
    stage 1 reduce-scatters in the last micro-batch's backward, stages 2 and 3 reduce-scatter in every one. Stages 1
    and 2 gather the updated parameters after the optimizer step; with *gather_ahead* layer by layer beside the next
    forward pass, at the begin of a step (Megatron-LM, ``--overlap-param-gather``). Stage 3 gathers each layer before
    its forward pass and again before its backward pass, one layer ahead, on the stream ``dp.gather``; beyond `LIMITS` a
    layer also between its recomputation and its backward pass, and not ahead. With *slice_seconds* it communicates
    tensor by tensor, and the host takes so long for each rank's slice of each (`listed`). With *gradient_norm*, sharded
    stages all-reduce 4 bytes before the optimizer step.

    Each rank sends, by rings over d ranks and m micro-batches, so many times the parameters' bytes, where gradients
    are as wide as parameters: stages 0 and 1 2 (d - 1) / d, stage 2 (m + 1) (d - 1) / d, stage 3 3 m (d - 1) / d.
    It holds the states of `zero_state_bytes`, and buffers: unreduced gradients of two buckets and a layer and, in stage
    3, two gathered layers (`unshard.gathered_at_most`).

    Not modelled: parameters under ``stage3_param_persistence_threshold`` that stage 3 leaves whole, the split of a
    layer by ``stage3_prefetch_bucket_size``, and that DeepSpeed's ``use_multi_rank_bucket_allreduce`` trades stage 1's
    reduce-scatter for an all-reduce of each bucket.
    """
    if stage not in SHARDED:
        raise ScenarioError(f"ZeRO has the stages 0, 1, 2 and 3, not {stage}")
    if replicas == 1:
        return schedule.replicate("dp", 1)
    dtype = gradient_dtype or model.precision
    size = bucket or BUCKET_ELEMENTS * BYTES[dtype]
    reduction = bucket_reduction("reduce_scatter" if stage else "all_reduce", "dp", overlap)
    slices = slice_seconds * replicas if stage == 3 else 0.0
    if slices:
        reduction = _listed(reduction, slices)

    def change(program: Program) -> Program:
        stages = weights_by_stage(program, model)
        buckets = {number: zero_buckets(own, dtype, size) for number, own in stages.items()}
        program = sharded_states(program, SHARDED[stage], replicas, stages)
        program = reduce_gradients(program, buckets, reduction, every=stage > 1)
        program = double_buffered(program, stages, dtype)
        if stage == 3:
            listing = Listing(PERSISTENT_ELEMENTS, slices) if slices else None
            program = unsharded(program, model, "dp", overlap=overlap, limits=LIMITS, listing=listing)
        elif stage and gather_ahead:
            program = _gathered_ahead(program, stages, BYTES[model.precision])
        elif stage:
            program = _with_gathers(program, stages, BYTES[model.precision])
        return norm_before_update(program, "dp") if gradient_norm and stage else program

    return schedule.replicate("dp", replicas).map_programs(change)


def zero_state_bytes(
    stage: int, replicas: int, optimizer: str, precision: str, gradient_dtype: str | None = None
) -> dict[str, float]:
    """Bytes per parameter that each of *replicas* ranks holds all step, by category.

    With Adam in 16 bits (K = 12) and N ranks 4 + K/N in stage 1, 2 + (2 + K)/N in stage 2, (4 + K)/N in stage 3:
    arXiv:1910.02054, table 1.

    >>> zero_state_bytes(2, 4, "adam", "fp16")
    {'parameters': 2.0, 'gradients': 0.5, 'optimizer': 3.0}
    """
    whole = state_bytes(optimizer, precision, gradient_dtype)
    return {name: nbytes / (replicas if name in SHARDED[stage] else 1) for name, nbytes in whole.items()}


def zero_buckets(layers: Sequence[Weights], gradient_dtype: str, size: float) -> list[Bucket]:
    """The buckets of *layers* (in order of the forward pass), filled in reverse order of parameters as DeepSpeed does.

    A bucket closes before the tensor that would bring it over *size* bytes; a tensor is never cut
    (runtime/zero/stage_1_and_2.py, ``reduce_independent_p_g_buckets_and_remove_grads``).
    """
    made: list[Bucket] = []
    filled: list[float] = []
    at = ""
    for layer in reversed(layers):
        for elements in reversed(layer.tensors):
            nbytes = float(elements * BYTES[gradient_dtype])
            if filled and sum(filled) + nbytes > size:
                made.append(Bucket(sum(filled), at, tuple(filled)))
                filled = []
            filled.append(nbytes)
            at = layer.name
    return [*made, Bucket(sum(filled), at, tuple(filled))] if filled else made


def _listed(reduction: Reduction, seconds: float) -> Reduction:
    """*reduction* tensor by tensor, with *seconds* of the host for each."""

    def tensor_by_tensor(name: str, action: Action, bucket: Bucket, completed: str) -> Iterator[Op]:
        for op in reduction(name, action, bucket, completed):
            yield from listed(op, bucket.tensors, seconds) if isinstance(op, Collective) else (op,)

    return tensor_by_tensor


def _gathered_ahead(program: Program, stages: Mapping[int, Sequence[Weights]], width: int) -> Program:
    """*program* that begins with an all-gather of each layer, on ``dp.gather``; its first forward pass waits for it."""
    own = [weights for stage in stages.values() for weights in stage if weights.parameters]
    gathers = tuple(
        Collective(
            name=f"{weights.name}.gather",
            kind="all_gather",
            over="dp",
            nbytes=float(weights.parameters * width),
            stream="dp.gather",
        )
        for weights in own
    )
    awaited = {weights.name: gather.name for weights, gather in zip(own, gathers, strict=True)}

    def awaiting(op: Op) -> Op:
        name = awaited.pop(op.layer, None) if isinstance(op, Compute) and op.layer else None
        return op if name is None else replace(op, after=(*op.after, name))

    blocks = [Block(gathers)]
    for block in program.blocks:
        first = any(op.layer in awaited for op in block.ops) if awaited else False
        blocks.append(Block(tuple(map(awaiting, block.materialise().ops)), block.micro_batch) if first else block)
    return replace(program, ops=TemplatedOps(blocks))


def _with_gathers(program: Program, stages: Mapping[int, Sequence[Weights]], width: int) -> Program:
    """*program* whose optimizer steps are followed by all-gathers of what they have updated, in place."""
    updates = updated_stages(program)

    def change(op: Op) -> Iterator[Op]:
        yield op
        if op.name in updates:
            elements = sum(weights.parameters for stage in updates[op.name] for weights in stages.get(stage, ()))
            for number, begin in enumerate(range(0, elements, BUCKET_ELEMENTS)):
                nbytes = float(min(BUCKET_ELEMENTS, elements - begin) * width)
                name = f"{op.name}.gather{number}"
                yield Collective(name=name, action=op.action, kind="all_gather", over="dp", nbytes=nbytes)

    return program.map_ops(change)
