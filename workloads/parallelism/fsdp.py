"""Fully sharded data parallelism (FSDP): parameters, gradients and optimizer states all live in shards.

A layer's parameters are gathered before its forward pass and again before its backward pass. Its gradients are
reduce-scattered after it, in every micro-batch. Zhao et al., "PyTorch FSDP", VLDB 2023 (arXiv:2304.11277).

With ``no_sync`` (``set_requires_gradient_sync(False)`` of FSDP2) micro-batches before the last one add their gradients
up on each rank, whole: less communication, more memory. Hugging Face's Accelerate does so (accelerate/accelerator.py,
``accumulate``) unless ``sync_each_batch`` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import Literal

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.quantities import Count, Flag, Index
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.buckets import NO_COPIES, Bucket, BucketCopies, Reduction, Weights
from clustersim.workloads.data_parallel.parameter_gathers import PLAIN, Gathering
from clustersim.workloads.data_parallel.sharded_states import STATES, GroupSizes, check_hybrid, with_hybrid_axes
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.parallelism._parallelism import MOST_BUCKETS, ReducingMethod, TrainingStep
from clustersim.workloads.parallelism._sharding import Sharding, reduction_of


class FullyShardedDataParallel(ReducingMethod):
    """Everything is sharded, and parameters are gathered layer by layer."""

    method: Literal["fsdp"]
    """fsdp: torch's fully sharded data parallelism."""
    overlap: Flag = True
    """Parameters are gathered and gradients reduced beside the computation."""
    reshard: Flag = True
    """Gathered parameters are released between forward and backward pass."""
    prefetch: Index = 1
    """Layers that are gathered ahead of the computation."""
    hybrid: Count | None = None
    """Shards within groups of so many ranks, replicas across the groups; by default one group."""
    no_sync: Flag = False
    """Only the last micro-batch of a step reduces gradients; each rank holds them whole until then."""

    @property
    def overlaps(self) -> bool:
        """As given."""
        return self.overlap

    @property
    def least_exchanges(self) -> Mapping[str, int]:
        """Gathers before the forward and before the backward pass, or its recomputation, if layers are released in
        between; a reduction after the backward pass."""
        if self.hybrid is not None or self.compression is not None or not self.reshard:
            return {}
        return {"all_gather": 2, **({} if self.no_sync else {"reduce_scatter": 1})}

    def copies(self, model: Model, software: Software, dtype: str) -> BucketCopies:
        """Those of the units of *software*."""
        return copies(_units(model, software), model.precision, dtype)

    def most_buffers(self, largest: float, precision: str, software: Software, dtype: str) -> float:
        """Gathers of the layer in use, of those ahead and of one that ends; and `MOST_BUCKETS` of one layer each."""
        if not self.least_exchanges:
            return inf
        return largest * ((self.prefetch + 2) * BYTES[precision] + MOST_BUCKETS * BYTES[dtype])

    @property
    def whole_gradients(self) -> bool:
        """True with *no_sync*; else the gradients of each micro-batch are reduced to shards."""
        return self.no_sync

    def accumulation(self, software: Software) -> str:
        """FSDP2 casts those of a wider type (torch, distributed/fsdp/_fully_shard/_fsdp_param.py,
        ``to_accumulated_grad_if_needed``) and adds them; those of the model's type are added by autograd."""
        return "cast"

    @property
    def sharded(self) -> Collection[str]:
        """All of them, gradients at the end of a step."""
        return STATES

    def gradient_dtype(self, precision: str, software: Software) -> str:
        """*precision*: torch, ``MixedPrecisionPolicy.reduce_dtype``, is that of the computation by default."""
        return precision

    def apply(self, schedule: Schedule, step: TrainingStep) -> Schedule:
        """Shard the states over the replicas, gather parameters, and reduce gradients."""
        return fsdp(
            schedule,
            step.model,
            gradient_dtype=step.gradient_dtype,
            reshard=self.reshard,
            prefetch=self.prefetch,
            hybrid=self.hybrid,
            no_sync=self.no_sync and step.micro_batches > 1,
            overlap=self.overlap,
            blocking=step.software.blocking_reductions,
            compressed=self.compressed,
            gathering=self.gathering(max(schedule.degrees(REPLICAS))),
            units=_units(step.model, step.software),
        )


Units = Literal["none", "flat", "tensors"]
"""As `Software.fsdp_units`."""

FLAT = BucketCopies(passes=4.0, by_bucket=2)
"""What FSDP does to a unit's flat gradient: autograd joins it of the gradients of its views, which is read and written,
and it is divided in place before the reduction (torch, distributed/fsdp/_flat_param.py, ``_use_unsharded_views``;
_runtime_utils.py, ``_reduce_grad``)."""


def _units(model: Model, software: Software) -> Units:
    """Return what *software* does around exchanges; nothing more if *model* has measured durations."""
    return software.fsdp_units if model.optimizer_seconds is None else "none"


def copies(units: Units, precision: str, dtype: str) -> BucketCopies:
    """Return what is done to the gradients of a unit, of *precision*, beside their reduction in *dtype*.

    With shards of tensors they are copied to the buffer of the reduction, which divides (torch, distributed/fsdp/
    _fully_shard/_fsdp_collectives.py, ``foreach_reduce`` and ``torch._chunk_cat``).
    """
    if units == "tensors":
        return BucketCopies(passes=1.0 + BYTES[precision] / BYTES[dtype], by_bucket=1)
    return FLAT if units == "flat" else NO_COPIES


def fsdp(
    schedule: Schedule,
    model: Model,
    replicas: int | None = None,
    *,
    gradient_dtype: str | None = None,
    reshard: bool = True,
    prefetch: int = 1,
    hybrid: int | None = None,
    no_sync: bool = False,
    overlap: bool = True,
    blocking: bool = False,
    gradient_norm: bool = True,
    compressed: Callable[[Reduction], Reduction] | None = None,
    gathering: Gathering = PLAIN,
    units: Units = "none",
) -> Schedule:
    """Return *schedule* with its states sharded layer by layer over the axis ``dp``.

    *replicas*: make so many copies first; None: the mesh has the axis. *model* has its layers as one rank holds them.
    Each layer is one FSDP unit, the last one too: it is released between its forward and its backward pass, unlike
    torch's root module. Without *reshard* (``SHARD_GRAD_OP``) layers stay gathered from forward to backward.
    *prefetch*: how many layers ahead of the computation may be gathered; 1 is torch's limit of two gathers in flight
    (``_limiter_utils.py``). *hybrid* shards inside groups of so many ranks (axis ``dp.shard``) and all-reduces the
    shards across them (``dp.replica``). *no_sync*: gradients are held whole, and reduced before an optimizer step only.
    *gradient_norm*: all-reduce the norm before the optimizer step.

    Gathers (``dp.gather``), reductions (``dp.reduce``) and all-reduces across groups (``dp.across``) have streams of
    their own, as in torch (``FSDPCommContext``); without *overlap* they block, and with *blocking* reductions within
    groups do. *compressed* wraps the reduction. *gathering*: of parameters; a second copy needs no *hybrid*. *units*:
    what is copied around exchanges; with ``tensors`` also gathered parameters (``foreach_all_gather_copy_out``).

    Each rank sends, by rings over d shards and m micro-batches, 3 m (d - 1) / d of the parameters' bytes if gradients
    are as wide as parameters, (2 m + 1) (d - 1) / d with *no_sync*. Without *reshard* it sends 2 m (d - 1) / d if every
    backward pass follows its forward pass, and less in a pipeline that runs several forward passes first. Each rank
    holds 1/d of all states, at most *prefetch* + 1 gathered layers (without *reshard* all of them) and the unreduced
    gradients of two layers. A head tied to the embedding is assumed to need no gather of the shared matrix.
    """
    schedule = schedule if replicas is None else schedule.replicate(REPLICAS, replicas)
    world = max(schedule.degrees(REPLICAS))
    if prefetch < 0:
        raise ScenarioError(f"prefetch = {prefetch} layers; it must be 0 or more")
    check_hybrid(world, hybrid)
    sizes = GroupSizes.of(STATES, world, hybrid)
    schedule = _with_axes(schedule, sizes, gathering)
    dtype = gradient_dtype or model.precision
    plain = reduction_of(sizes, "dp.reduce" if overlap and not blocking else None, each_pass=not no_sync)
    return Sharding(
        model,
        sizes,
        lambda layers, axis: unit_buckets(layers, dtype, axis),
        compressed(plain) if compressed else plain,
        dtype,
        overlap,
        accumulated=no_sync,
        copies=copies(units, model.precision, dtype),
        gathers={"reshard": reshard, "prefetch": prefetch, "copied": units == "tensors"},
        gathering=gathering,
        norm=gradient_norm,
    ).applied(schedule)


def _with_axes(schedule: Schedule, sizes: GroupSizes, gathering: Gathering) -> Schedule:
    """Return *schedule* with the axes of the groups, and of a second copy of the parameters."""
    schedule = sizes.with_axes(schedule)
    if gathering.partition == 1:
        return schedule
    if sizes.parameters is not None:
        raise ScenarioError("compression: a second copy of the parameters in each node needs no hybrid; leave one away")
    return with_hybrid_axes(schedule, gathering.partition)


def unit_buckets(layers: Sequence[Weights], gradient_dtype: str, over: str = REPLICAS) -> list[Bucket]:
    """Return a bucket, an FSDP unit, for each of *layers* with trained parameters that are reduced over axis *over*."""
    width = BYTES[gradient_dtype]
    units = [layer.over(over).trained for layer in reversed(layers)]
    sizes = {unit.name: float(unit.parameters * width) for unit in units if unit.parameters}
    return [
        Bucket(nbytes, name, (nbytes,), over, buffer=nbytes, dtype=gradient_dtype) for name, nbytes in sizes.items()
    ]
