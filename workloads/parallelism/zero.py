"""ZeRO is data parallelism without redundancy: optimizer states, then gradients, then parameters live in shards.

Rajbhandari et al., "ZeRO", SC 2020 (arXiv:1910.02054), as DeepSpeed runs it: stage 1 shards the optimizer states,
stage 2 the gradients too, stage 3 also the parameters.

Stage 0 all-reduces and stage 1 reduce-scatters gradients once, in the backward pass of the last micro-batch or after
it; stages 2 and 3 reduce-scatter them in every backward pass. Some stacks all-reduce them in stages 1 and 2: DeepSpeed
since November 2023 (v0.12.4, ``use_multi_rank_bucket_allreduce``, on by default) and its bf16 optimizer always, since a
bucket has gradients of several ranks. Stages 1 and 2 gather the updated parameters after the optimizer step, or each
rank broadcasts those that it owns. Stage 3 gathers each layer before its forward pass and again before its backward
pass, one layer ahead, on the stream ``dp.gather``; beyond `LIMITS` a layer is also gathered between its recomputation
and its backward pass, and not ahead.

Bytes that each rank sends, by rings over d ranks and m micro-batches, as multiples of the parameters' bytes, if
gradients are as wide as parameters: 2 (d - 1) / d in stages 0 and 1, (m + 1) (d - 1) / d in stage 2, 3 m (d - 1) / d in
stage 3. All-reduced gradients add (d - 1) / d in stage 1 and m times that in stage 2. Each rank holds its share of
the states, and buffers unless they are part of the gradients: unreduced gradients of two buckets and a layer
(of one bucket if they are reduced after the backward pass) and, in stage 3, two gathered layers.

Not modelled: parameters below ``stage3_param_persistence_threshold``, which stage 3 leaves whole; the split of a layer
by ``stage3_prefetch_bucket_size``; the rank with the largest tensor, if whole tensors are assigned to ranks.

Host time of the hooks by which DeepSpeed's ZeRO-3 gathers and releases parameters, module by module.

Every module of a model has four hooks (deepspeedai/DeepSpeed, runtime/zero/parameter_offload.py,
``_register_hooks_recursively``): before and after its forward pass, and autograd functions around its backward pass.
Each of them looks up which parameters to gather, to await, to gather ahead and to release
(runtime/zero/partitioned_param_coordinator.py, ``fetch_sub_module``, ``release_sub_module``), also where the module has
none, and on a single rank. A parameter that is gathered is allocated, viewed and freed by operators of its own, and a
gradient is copied, divided and partitioned (runtime/zero/stage3.py, ``__add_grad_to_ipg_bucket``,
``partition_grads``). The hooks run on the thread that launches kernels, so that they add to its time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.hardware.kernel import BYTES, Operation, memory_bound
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.quantities import Count, Flag, Size, whole_number
from clustersim.simulator.reading.validation import Fault
from clustersim.simulator.schedule.ops import Compute, Op
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.records import changed
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.buckets import (
    NO_COPIES,
    Bucket,
    BucketCopies,
    Reduction,
    Weights,
    bucket_copies,
)
from clustersim.workloads.data_parallel.parameter_gathers import PLAIN, Gathering, GatherLimits
from clustersim.workloads.data_parallel.sharded_states import (
    Groups,
    GroupSizes,
    check_hybrid,
    with_half_buckets,
    with_hybrid_axes,
)
from clustersim.workloads.data_parallel.sub_groups import in_sub_groups
from clustersim.workloads.memory.compute import PIPELINE
from clustersim.workloads.operators.model import Layer, Model
from clustersim.workloads.operators.operator import REPLICAS, ParameterTensor
from clustersim.workloads.parallelism._parallelism import (
    MOST_BUCKETS,
    Parallelism,
    ReducingMethod,
    TrainingStep,
)
from clustersim.workloads.parallelism._sharding import Sharding, Updates, reduction_of
from clustersim.workloads.reductions.all_reduce import all_reduce

SHARDED: Mapping[int, tuple[str, ...]] = {
    0: (),
    1: ("optimizer",),
    2: ("optimizer", "gradients"),
    3: ("optimizer", "gradients", "parameters"),
}
"""The states that are divided among the d ranks, by stage (arXiv:1910.02054, section 5 and figure 1)."""

BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed, runtime/zero/config.py: ``reduce_bucket_size`` of 5e8 elements."""

LIMITS = GatherLimits(reuse=1e9, live=1e9)
"""DeepSpeed's defaults (runtime/zero/config.py)."""


def stage_of(groups: Mapping[str, Any]) -> int:
    """Return the largest stage of which *groups* divide the states: 3 if they divide the parameters, 0 if nothing.

    >>> stage_of({"parameters": 8}), stage_of({"parameters": 1, "gradients": 1})
    (3, 1)
    """
    return next((stage for stage in (3, 2, 1) if groups.get(SHARDED[stage][-1], "all") != 1), 0)


class Zero(ReducingMethod):
    """ZeRO: optimizer states, gradients and parameters are sharded over the replicas, stage by stage."""

    method: Literal["zero"]
    """zero: DeepSpeed's ZeRO, or Megatron-LM's distributed optimizer."""
    stage: Annotated[Literal[0, 1, 2, 3], BeforeValidator(whole_number)] = 1
    """What the replicas shard: 1 optimizer states, 2 gradients too, 3 parameters too, 0 nothing."""
    overlap: Flag | None = None
    """Exchanges run beside the computation; by default only in stage 3, as in DeepSpeed."""
    bucket: Size | None = None
    """Bytes of a bucket of gradients; by default 5e8 elements, as in DeepSpeed."""
    hybrid: Count | None = None
    """Replicas that share the optimizer states, in stage 1; gradients are then all-reduced over all replicas. By
    default all of them share."""
    groups: Groups | None = None
    """Replicas that share parameters, gradients and optimizer states, each a number of its own, in place of stage: MiCS
    with one number for all, AMSP with several. By default all replicas share what the stage says."""
    allow: list[Literal["zero_with_pipeline"]] = Field(default_factory=list)
    """zero_with_pipeline: simulate stages 2 and 3 with a pipeline, which DeepSpeed refuses."""

    @model_validator(mode="before")
    @classmethod
    def _stage_of_groups(cls, data: Any) -> Any:
        groups = data.get("groups") if isinstance(data, dict) else None
        return {"stage": stage_of(groups), **data} if isinstance(groups, dict) else data

    @model_validator(mode="after")
    def _groups_alone(self) -> Self:
        if self.groups is not None and self.hybrid is not None:
            raise Fault("groups", "says which replicas share the optimizer states; leave hybrid away")
        if self.groups is not None and self.stage != stage_of(self.groups.model_dump()):
            raise Fault("groups", f"says what is sharded in place of stage, which is {self.stage}; leave stage away")
        if self.groups is not None and self.compression and self.compression.gathering:
            raise Fault(
                ("compression", "method"),
                f"{self.compression.method} gathers parameters over all replicas; take stage: 3 in place of groups",
            )
        return self

    @property
    def overlaps(self) -> bool:
        """*overlap*, else the default of the stage (DeepSpeed, runtime/zero/config.py, ``overlap_comm_valid``)."""
        return self.stage == 3 if self.overlap is None else self.overlap

    def exchanges_after(self, software: Software) -> Sequence[str]:
        """In stage 1 those of gradients, and of parameters unless they are gathered beside the next forward pass."""
        plain = self.groups is None and self.hybrid is None and self.compression is None
        if self.stage != 1 or self.overlaps or not plain:
            return ()
        reduced = "all_reduce" if software.zero_gradients == "all_reduce" else "reduce_scatter"
        later = software.gather_ahead or software.zero_parameters == "broadcast"
        return (reduced,) if later else (reduced, "all_gather")

    @property
    def least_exchanges(self) -> Mapping[str, int]:
        """In stage 3 gathers before the forward and before the backward pass; a bucket has gradients of many layers."""
        plain = self.groups is None and self.compression is None
        return {"all_gather": 2} if self.stage == 3 and plain else {}

    def copies(self, model: Model, software: Software, dtype: str) -> BucketCopies:
        """Those of *software*, up to stage 2."""
        return bucket_copies(software, model) if "parameters" not in self.sharded else NO_COPIES

    def most_buffers(self, largest: float, precision: str, software: Software, dtype: str) -> float:
        """`MOST_BUCKETS`, unless they are parts of the gradients; in stage 3 gathers of the layer in use, of the one
        ahead and of one that ends."""
        if self.groups is not None or self.compression:
            return inf
        bucket = max(self.bucket or BUCKET_ELEMENTS * BYTES[dtype], largest * BYTES[dtype])
        buckets = 0.0 if _in_place(software, self.stage) else MOST_BUCKETS * bucket
        return buckets + (3.0 * largest * BYTES[precision] if self.stage == 3 else 0.0)

    @property
    def broadcasts(self) -> bool:
        """True if every rank has the whole model."""
        return self.stage < 3

    @property
    def whole_gradients(self) -> bool:
        """Up to stage 1; later stages reduce the gradients of each micro-batch to shards."""
        return self.stage < 2

    @property
    def sharded(self) -> Collection[str]:
        """Those of the stage."""
        return SHARDED[self.stage]

    @property
    def label(self) -> str:
        """With its stage, or its groups."""
        if self.groups is not None:
            sizes = (self.groups.parameters, self.groups.gradients, self.groups.optimizer)
            return f"zero, groups of {', '.join(map(str, sizes))}"
        return f"zero {self.stage}"

    def gradient_dtype(self, precision: str, software: Software) -> str:
        """In stage 0, and in stage 1 of a stack with a mixed-precision optimizer of its own, as *software* has them.

        Else DeepSpeed converts the model and its gradients to *precision* (runtime/engine.py, ``get_data_types``).
        """
        own = self.stage == 0 or (self.stage == 1 and software.unfused_update and software.zero_fp32_gradients)
        return software.gradient_dtype(precision) if own else precision

    def check(self, others: Mapping[str, Parallelism]) -> None:
        """DeepSpeed's pipeline engine asserts a stage below 2 (runtime/pipe/engine.py)."""
        stages = max((part.degrees(1).get(PIPELINE, 1) for part in others.values()), default=1)
        if self.stage > 1 and stages > 1 and "zero_with_pipeline" not in self.allow:
            raise Fault(
                ("data", "stage"),
                f"DeepSpeed refuses ZeRO-{self.stage} with a pipeline (pp is {stages}), whose engine accumulates whole "
                "gradients over the micro-batches; take stage: 1, or allow: [zero_with_pipeline] to simulate it all "
                "the same",
            )

        if self.hybrid is not None and self.stage != 1:
            raise Fault(
                ("data", "hybrid"), f"belongs to stage 1, where gradients stay whole, but stage is {self.stage}"
            )

    def facts(self) -> Mapping[str, Any]:
        """Whether exchanges overlap."""
        return {"overlap": self.overlaps}

    def apply(self, schedule: Schedule, step: TrainingStep) -> Schedule:
        """Shard the states over the replicas, and reduce the gradients."""
        half = self.groups is None and step.software.gradient_buffers == "half"
        sharded = zero(
            with_half_buckets(schedule, step.model) if half else schedule,
            step.model,
            stage=self.stage,
            hybrid=self.hybrid,
            groups=self.groups,
            gradient_dtype=step.gradient_dtype,
            overlap=self.overlaps,
            bucket=self.bucket,
            software=step.software,
            compressed=self.compressed,
            gathering=self.gathering(max(schedule.degrees(REPLICAS))),
        )
        if self.stage == 3 and step.software.flat_update:
            dtype = step.gradient_dtype or step.model.precision
            sharded = sharded.map_programs(lambda one: in_sub_groups(one, dtype))
        return sharded.map_programs(lambda one: self.with_host_work(one, step.model.layers, step.software))

    def with_host_work(
        self, program: Program, layers: Sequence[Layer], software: Software, *, again: bool = False
    ) -> Program:
        """In stage 3 the hooks of modules."""
        return with_module_hooks(program, layers, software, again=again) if self.stage == 3 else program


def zero(
    schedule: Schedule,
    model: Model,
    replicas: int | None = None,
    *,
    stage: int = 1,
    hybrid: int | None = None,
    groups: Groups | None = None,
    gradient_dtype: str | None = None,
    overlap: bool = True,
    bucket: float | None = None,
    gradient_norm: bool = True,
    software: Software | None = None,
    compressed: Callable[[Reduction], Reduction] | None = None,
    gathering: Gathering = PLAIN,
) -> Schedule:
    """Return *schedule* with its states sharded over the axis ``dp`` as in *stage* 0, 1, 2 or 3.

    *replicas*: make so many copies first; None: the mesh has the axis. *model* has its layers as one rank holds them.
    *hybrid*: so many replicas share the states, and gradients are all-reduced over all. *groups*: each state has groups
    of its own, in place of the stage. Gradients are reduced in buckets of *bucket* bytes (default: 5e8 elements). With
    *overlap* reductions have a stream of their own, ``dp.reduce``, as with DeepSpeed's ``overlap_comm`` (its default
    only in stage 3); else they block, and stages 0 and 1 reduce after the last backward pass: DeepSpeed then has no
    hooks in it (runtime/zero/stage_1_and_2.py, ``create_reduce_and_remove_grad_hooks``; runtime/pipe/engine.py,
    ``_exec_reduce_grads``). With *gradient_norm* sharded stages all-reduce the norm (`NORM_BYTES`) before the optimizer
    step. *software*: the stack whose properties of ZeRO hold, and whose kernels are around reductions; None: no such
    kernels. *compressed* wraps the reduction. *gathering*: of parameters in stage 3.
    """
    if stage not in SHARDED:
        raise ScenarioError(f"ZeRO has the stages 0, 1, 2 and 3, not {stage}")
    schedule = schedule if replicas is None else schedule.replicate(REPLICAS, replicas)
    world = max(schedule.degrees(REPLICAS))
    check_hybrid(world, hybrid)
    sizes = groups.sizes(world) if groups else GroupSizes.of(SHARDED[stage], world, hybrid)
    schedule = sizes.with_axes(schedule)
    if gathering.partition > 1:
        schedule = with_hybrid_axes(schedule, gathering.partition)
    dtype, stream = gradient_dtype or model.precision, "dp.reduce" if overlap else None
    size, stack = bucket or BUCKET_ELEMENTS * BYTES[dtype], software or Software()
    # stacks have stages; groups are those of MiCS and AMSP, whose shards are reduced in two hops
    whole = stage < 3 and (sizes.optimizer is not None or stack.zero_gradients == "all_reduce")
    all_reduced = groups is None and whole
    plain = all_reduce(stream) if all_reduced else reduction_of(sizes, stream)
    sharding = Sharding(
        model,
        sizes,
        lambda layers, axis: zero_buckets(layers, dtype, size, axis),
        compressed(plain) if compressed else plain,
        dtype,
        overlap,
        all_reduced,
        copies=bucket_copies(software, model) if software and not sizes.divides("parameters") else NO_COPIES,
        gathers={"limits": LIMITS},
        gathering=gathering,
        norm=gradient_norm,
    )
    return (sharding if groups else _as_in(stack, stage, sharding)).applied(schedule)


def _as_in(stack: Software, stage: int, sharding: Sharding) -> Sharding:
    """*sharding* as *stack* runs that stage.

    In stages 0 and 1 buckets may be parts of the gradients (Megatron-LM,
    core/distributed/param_and_grad_buffer.py). Stages 1 and 2 may gather the updated parameters layer by layer beside
    the next forward pass (Megatron-LM, ``--overlap-param-gather``), or the owner of each tensor broadcasts it.
    """
    if stage == 3:
        return replace(sharding, slice_seconds=stack.slice_seconds)
    ahead: Updates = "ahead" if stack.gather_ahead else "gathered"
    updated: Updates = "broadcast" if stack.zero_parameters == "broadcast" else ahead
    return replace(sharding, in_place=_in_place(stack, stage), updated=updated)


def _in_place(stack: Software, stage: int) -> bool:
    """True if the buckets of *stage* are parts of the gradients under *stack*."""
    return stage < 2 and stack.gradient_buffers in ("none", "half", "averaged")


def zero_buckets(layers: Sequence[Weights], gradient_dtype: str, size: float, over: str = REPLICAS) -> list[Bucket]:
    """Return the buckets of the tensors of *layers* (in forward order) whose gradients are reduced over axis *over*.

    Buckets are filled in reverse order of the parameters, as by DeepSpeed. A bucket closes before the tensor with which
    it would exceed *size* bytes; a tensor is never divided (runtime/zero/stage_1_and_2.py,
    ``reduce_independent_p_g_buckets_and_remove_grads``).
    """
    width = BYTES[gradient_dtype]
    made: list[Bucket] = []
    filled: list[ParameterTensor] = []
    last = ""
    for layer in reversed(layers):
        for tensor in reversed(layer.over(over).trained.tensors):
            if filled and sum(one.count for one in (*filled, tensor)) * width > size:
                made.append(Bucket.of(filled, gradient_dtype, last, over))
                filled = []
            filled.append(tensor)
            last = layer.name
    made += [Bucket.of(filled, gradient_dtype, last, over)] if filled else []
    return [changed(one, buffer=one.nbytes) for one in made]


HOOKS = Operation("hooks of ZeRO-3", "elementwise")

PASSES = "FRBI"
"""Phases in which modules run: forward, again, backward."""


def with_module_hooks(program: Program, layers: Sequence[Layer], software: Software, *, again: bool = False) -> Program:
    """*program* with the operators of the hooks of *software* at the begin of each pass of one of *layers*.

    *again*: passes of the program stand for those of layers that are computed again, which it does not have itself.
    """
    by_name = {layer.name: layer for layer in layers}
    kept = by_name if again else {op.layer for op in program.computations() if op.action and op.action.phase == "R"}
    added: dict[str, int] = {}
    for template, _ in program.templates():
        begun = set()
        for op in template:
            if not (isinstance(op, Compute) and op.kernels and op.action and op.layer in by_name):
                continue
            key = op.action, op.layer
            if key not in begun:
                begun.add(key)
                added[op.name] = hook_operators(by_name[op.layer], op.action.phase, software, kept=op.layer in kept)

    def change(op: Op) -> list[Op]:
        assert isinstance(op, Compute)
        hooks = memory_bound(0.0, launches=0, operators=added[op.name], operation=HOOKS)
        return [changed(op, kernels=(hooks, *op.kernels))]

    return program.map_ops(change, {name for name, count in added.items() if count})


def hook_operators(layer: Layer, phase: str, software: Software, *, kept: bool) -> int:
    """Return the operators that take as long as the hooks of *layer* in *phase*; *kept*: its backward pass finds the
    parameters gathered by its recomputation.

    Matrices alone are gathered: vectors are below DeepSpeed's ``stage3_param_persistence_threshold``. A bucket of
    gradients has as many elements as a square of the hidden size, so that most matrices fill one, and adapters share it
    (Hugging Face Transformers, integrations/deepspeed.py, ``trainer_config_finalize``, ``reduce_bucket_size``).
    """
    matrices = [tensor for tensor in layer.tensors if tensor.rows]
    bucket = max((min(one.rows, one.columns) for one in matrices), default=1) ** 2
    modules = software.module_hooks * layer.modules if phase in PASSES else 0
    fetched = phase in "FR" or (phase in "BI" and not kept)
    reduced = sum(min(1.0, one.count / bucket) for one in matrices if one.trainable) if phase in "BW" else 0.0
    return modules + software.fetch_hooks * len(matrices) * fetched + round(software.gradient_hooks * reduced)
