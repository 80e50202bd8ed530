"""Fully sharded data parallelism (FSDP): parameters, gradients and optimizer states all live in shards.

A layer's parameters are gathered before its forward pass and again before its backward pass; its gradients are
reduce-scattered after it, in every micro-batch. Zhao et al., "PyTorch FSDP", VLDB 2023 (arXiv:2304.11277).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.errors import ScenarioError
from simulator.kernel import BYTES
from simulator.mesh import Axis
from simulator.schedule import Program, Schedule
from workloads.gradients import Bucket, Weights, reduce_gradients, weights_by_stage
from workloads.model import Model
from workloads.shape import nearest_divisors
from workloads.sharding import bucket_reduction, double_buffered, norm_before_update, sharded_states
from workloads.unshard import unsharded

STATES = ("parameters", "gradients", "optimizer")


def fsdp(
    schedule: Schedule,
    model: Model,
    replicas: int,
    *,
    gradient_dtype: str | None = None,
    reshard: bool = True,
    prefetch: int = 1,
    hybrid: int | None = None,
    overlap: bool = True,
    gradient_norm: bool = True,
) -> Schedule:
    """*replicas* copies of *schedule* over a new, slowest axis ``dp``, their states sharded layer by layer.

    *model* has its layers as one rank holds them (under tensor parallelism, its share). Each layer is one FSDP unit,
    the last one too: it is given up between its forward and its backward pass, where torch's root module is kept.
    Without *reshard* (``SHARD_GRAD_OP``) layers stay gathered from forward to backward. *prefetch*: how many layers
    ahead of the computation may be gathered; 1 is torch, whose limit is two gathers in flight (``_limiter_utils.py``).
    *hybrid* shards inside groups of so many ranks (axis ``dp.shard``) and all-reduces the shards across
    (``dp.replica``). *gradient_norm*: 4 bytes are all-reduced before the optimizer step.

    Gathers (``dp.gather``) and reductions (``dp.reduce``, and across ``dp.across``) have streams of their own, as
    torch has them (``FSDPCommContext``); without *overlap* they block.

    Each rank sends, by rings over d shards and m micro-batches, 3 m (d - 1) / d of the parameters' bytes where
    gradients are as wide as parameters, and 2 m (d - 1) / d without *reshard* where every backward follows its
    forward (a pipeline that runs several forwards before a backward finds layers still gathered). It holds 1/d of all
    states, at most *prefetch* + 1 gathered layers (`unshard.gathered_at_most`; without *reshard* all of them) and the
    unreduced gradients of two layers. A head tied to the embedding is taken to need no gather of the shared matrix.
    """
    _validate(replicas, prefetch, hybrid)
    spread = schedule.replicate("dp", replicas)
    if replicas == 1:
        return spread
    shards, over, across = replicas, "dp", None
    if hybrid is not None and hybrid < replicas:
        spread = with_hybrid_axes(spread, hybrid)
        shards, over, across = hybrid, "dp.shard", ("dp.replica", hybrid)
    dtype = gradient_dtype or model.precision
    reduction = bucket_reduction("reduce_scatter", over, overlap, across)

    def change(program: Program) -> Program:
        stages = weights_by_stage(program, model)
        buckets = {stage: unit_buckets(own, dtype) for stage, own in stages.items()}
        program = sharded_states(program, STATES, shards, stages)
        program = reduce_gradients(program, buckets, reduction, every=True)
        program = double_buffered(program, stages, dtype)
        program = unsharded(program, model, over, reshard=reshard, prefetch=prefetch, overlap=overlap)
        return norm_before_update(program, over) if gradient_norm else program

    return spread.map_programs(change)


def unit_buckets(layers: Sequence[Weights], gradient_dtype: str) -> list[Bucket]:
    """One bucket for each of *layers* that has parameters: FSDP reduces unit by unit."""
    width = BYTES[gradient_dtype]
    return [Bucket(float(layer.parameters * width), layer.name) for layer in reversed(layers) if layer.parameters]


def with_hybrid_axes(schedule: Schedule, shards: int) -> Schedule:
    """*schedule* with its axis ``dp`` cut in two: ``dp.shard``, runs of *shards* ranks, and ``dp.replica``, across."""
    groups = schedule.mesh.axes["dp"].groups
    inner = tuple(group[i : i + shards] for group in groups for i in range(0, len(group), shards))
    outer = tuple(group[i::shards] for group in groups for i in range(shards))
    axes = {"dp.shard": Axis(inner), "dp.replica": Axis(outer)}
    return replace(schedule, mesh=schedule.mesh.extended(0, axes))


def _validate(replicas: int, prefetch: int, hybrid: int | None) -> None:
    if prefetch < 0:
        raise ScenarioError(f"prefetch = {prefetch} layers; it must be 0 or more")
    if hybrid is None or replicas == 1:
        return
    if hybrid < 2:
        raise ScenarioError(f"hybrid = {hybrid} shards nothing; give 2 or more ranks to share the states, or use ddp")
    if replicas % hybrid:
        good = " or ".join(str(n) for n in nearest_divisors(replicas, hybrid) if n > 1)
        raise ScenarioError(f"hybrid = {hybrid} does not divide dp = {replicas}; try {good}")
