"""Local SGD: replicas take optimizer steps of their own, and average their weights after every few steps.

Stich 2019, "Local SGD Converges Fast and Communicates Little" (arXiv:1805.09767). Post-local SGD is synchronous at
first: Lin et al. 2020, "Don't Use Large Mini-Batches, Use Local SGD" (arXiv:1808.07217). The average is torch's
(torch/distributed/algorithms/model_averaging/utils.py, ``average_parameters``): weights are flattened, divided by the
number of replicas and all-reduced in one piece, and nothing runs beside it. Optimizer states stay local.

A run goes through a whole period; the step time is the mean over it. Replicas wait for one another only at its end:
under jitter a period takes the maximum over the replicas of the sum of their steps, not the sum of the maxima.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, Literal

from clustersim.simulator.hardware.kernel import BYTES, Kernel, memory_bound
from clustersim.simulator.reading.quantities import Count, Index
from clustersim.simulator.schedule.ops import Collective, Compute, Op
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.gradients import map_replicas
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.parallelism._parallelism import TrainingStep
from clustersim.workloads.parallelism.methods._local_steps import LocalSteps, after_batches, held
from clustersim.workloads.pipelines._row_patterns import SteadyState

MASTER = 4.0
"""Bytes of a weight as the optimizer holds it: fp32."""


class LocalSGD(LocalSteps):
    """Every replica takes steps of its own; after a period of them all average their weights."""

    method: Literal["local_sgd"]
    """local_sgd: replicas take steps of their own and average their weights after a period of them."""
    every: Count
    """Steps of a period; 1 averages weights in each step. Required."""
    start: Index = 0
    """Synchronous steps before the first local one (post-local SGD). One of them is simulated and not measured."""
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """In which weights are averaged; by default fp32, as optimizers hold them."""

    @property
    def first_steps(self) -> int:
        """The synchronous ones."""
        return self.start

    def period(self, steps: int) -> SteadyState:
        """Whole periods; a synchronous step before them stands for all that *start* asks for."""
        return SteadyState(int(self.start > 0), ceil(steps / self.every) * self.every, 0)

    def apply(self, schedule: Schedule, step: TrainingStep) -> Schedule:
        """Average the weights of all replicas after each period."""
        synchronous = schedule.filling
        schedule = self.within_groups(schedule, step, synchronous)
        batches, width = schedule.batches, float(BYTES[self.dtype])

        def averaged(program: Program, _: Mapping[str, int]) -> Program:
            parameters = sum(held(program, step.model))

            def ops(batch: int) -> Iterator[Op]:
                local = batch + 1 - synchronous
                if local > 0 and local % self.every == 0:
                    yield from _average(local // self.every - 1, step.model, parameters, width)

            return after_batches(program, batches, ops)

        return map_replicas(schedule, step.model, averaged)

    def facts(self) -> Mapping[str, Any]:
        """The period."""
        return {"steps_between_averages": self.every, **({"synchronous_steps": self.start} if self.start else {})}


def _average(number: int, model: Model, parameters: int, width: float) -> Iterator[Op]:
    """The average of that *number* of so many *parameters*, *width* bytes each."""
    nbytes = width * parameters
    # a flat copy is written and divided; it becomes the weights unless these are of another type
    flat = memory_bound((MASTER + width) * parameters + 2 * nbytes, launches=2)
    copies = (width + MASTER if width != MASTER else 0.0) + (MASTER + BYTES[model.precision]) * _has_copy(model)
    held = {"buffers": nbytes}
    name = f"average {number}"
    yield Compute(name=f"{name}.flatten", kernels=_kernels(model, flat), allocates=held)
    yield Collective(name=name, kind="all_reduce", over=REPLICAS, nbytes=nbytes)
    back = memory_bound(copies * parameters)
    yield Compute(name=f"{name}.unflatten", kernels=_kernels(model, back), frees=held)


def _has_copy(model: Model) -> bool:
    """True if the weights of products are copies of fp32 masters."""
    return BYTES[model.precision] < MASTER


def _kernels(model: Model, kernel: Kernel) -> tuple[Kernel, ...]:
    """*kernel*, if it moves bytes and the durations of *model* are not given."""
    return (kernel,) if kernel.nbytes and model.optimizer_seconds is None else ()
