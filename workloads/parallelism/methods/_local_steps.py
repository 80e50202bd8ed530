"""What methods with local steps have in common: batches that end a period, and reductions within groups of replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from typing import ClassVar

from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.quantities import Count
from clustersim.simulator.reading.validation import Fault
from clustersim.simulator.schedule.ops import Compute, Op
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.architectures.shape import nearest_divisors
from clustersim.workloads.data_parallel.buckets import Bucket, Reduction, bucket_copies
from clustersim.workloads.data_parallel.gradients import weights_by_stage
from clustersim.workloads.data_parallel.sharded_states import SHARD, with_hybrid_axes
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.parallelism._parallelism import DataMethod, Parallelism, TrainingStep
from clustersim.workloads.parallelism.ddp import data_parallel
from clustersim.workloads.parallelism.pipeline import Pipeline
from clustersim.workloads.reductions.all_reduce import all_reduce


class LocalSteps(DataMethod):
    """Replicas train alone for many steps, then they exchange weights."""

    exchanges_weights: ClassVar[bool] = True

    subgroup: Count = 1
    """Neighbouring replicas that all-reduce their gradients in every step, such as those of a node; 1: none do."""

    @property
    def broadcasts(self) -> bool:
        """Every rank has the whole model."""
        return True

    def check(self, others: Mapping[str, Parallelism]) -> None:
        """Ranks with equal weights reduce gradients in each step, so they cannot be on the axis of the replicas."""
        for key, other in others.items():
            if other.same_weights and prod(other.degrees(1).values()) > 1:
                raise Fault(key, f"must be 1: {self.method} does not reduce gradients over its ranks in each step")
            if other.reduces_apart:
                raise Fault(key, f"reduces some gradients apart, but {self.method} averages all weights together")
            if isinstance(other, Pipeline) and other.mirrored:
                raise Fault("schedule", f"{other.schedule} holds each stage twice, which {self.method} does not sum")

    def within_groups(self, schedule: Schedule, step: TrainingStep, synchronous: int = 0) -> Schedule:
        """*schedule* with gradients all-reduced within each subgroup; over all replicas in *synchronous* first batches.

        Both as by torch's DistributedDataParallel: its hook ``post_localSGD_hook`` does this.
        """
        (replicas,) = set(schedule.degrees(REPLICAS))
        if replicas % self.subgroup:
            good = " or ".join(map(str, nearest_divisors(replicas, self.subgroup)))
            raise ScenarioError(f"subgroup = {self.subgroup} does not divide dp = {replicas}; try {good}")
        if self.subgroup == 1 and not synchronous:
            return schedule
        schedule = with_hybrid_axes(schedule, self.subgroup) if self.subgroup > 1 else schedule

        def grouped(reduction: Reduction) -> Reduction:
            within = all_reduce(REPLICAS, SHARD)

            def reduce(bucket: Bucket) -> Iterable[Op]:
                assert bucket.action is not None and bucket.action.micro_batch is not None
                if bucket.action.micro_batch // step.micro_batches < synchronous:
                    return reduction(bucket)
                return within(bucket) if self.subgroup > 1 else ()

            return reduce

        software, model = step.software, step.model
        return data_parallel(
            schedule,
            model,
            gradient_dtype=step.gradient_dtype,
            copies=software.gradient_buffers == "copies",
            around=bucket_copies(software, model),
            compressed=grouped,
        )


def held(program: Program, model: Model) -> list[int]:
    """The parameters of each layer of *model* that *program* holds, in order of the forward pass."""
    return [own.trained.parameters for stage in weights_by_stage(program, model).values() for own in stage]


def after_batches(program: Program, batches: int, ops: Callable[[int], Iterable[Op]]) -> Program:
    """*program*, of so many *batches*, with the ops that ``ops(number of a batch)`` returns at the end of each."""
    updates = [op.name for op in program.distinct() if _is_update(op)]
    each = len(updates) // batches
    ends = {name: number for number, name in enumerate(updates[each - 1 :: each])}

    def change(op: Op) -> Iterator[Op]:
        yield op
        if op.name in ends:
            yield from ops(ends[op.name])

    return program.map_ops(change)


def _is_update(op: Op) -> bool:
    return isinstance(op, Compute) and op.action is not None and op.action.phase == "O"
