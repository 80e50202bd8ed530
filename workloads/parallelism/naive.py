"""Naive data parallelism: one main GPU hands out the batch, gathers and averages all gradients, and sends them back.

As in torch.nn.DataParallel and textbooks. All traffic passes the port of the main GPU, so it suits one node.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from clustersim.simulator.hardware.kernel import BYTES, Operation, memory_bound
from clustersim.simulator.schedule.ops import Collective, Compute, Op
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import REPLICAS
from clustersim.workloads.parallelism._parallelism import DataMethod, TrainingStep

AVERAGE = Operation("average of gradients", "elementwise")


class Naive(DataMethod):
    """One main GPU hands out the batch, gathers the gradients and sends back the result."""

    whole_model: ClassVar[bool] = True

    method: Literal["naive"]
    """naive: one main GPU hands out the batch and gathers the gradients."""
    update: Literal["everywhere", "main"] = "everywhere"
    """everywhere: the main GPU sends the averaged gradient back; main: it alone updates, and sends the model."""

    def apply(self, schedule: Schedule, step: TrainingStep) -> Schedule:
        """Make rank 0 the main GPU."""
        samples = step.micro_batch_size * step.micro_batches
        return naive(schedule, step.model, samples=samples, gradient_dtype=step.gradient_dtype, update=self.update)


def naive(
    schedule: Schedule,
    model: Model,
    replicas: int | None = None,
    *,
    samples: int,
    gradient_dtype: str | None = None,
    update: str = "everywhere",
) -> Schedule:
    """Return *schedule*, of one stage, with replicas along ``dp``; rank 0 is the main GPU.

    *replicas*: make so many copies first; None: the mesh has the axis. A step scatters the batch (*samples* to each
    GPU), computes, gathers the gradients at the main GPU and averages them there. *update* ``everywhere``: the average
    is sent back and every GPU takes the optimizer step. *update* ``main``: the main GPU takes it and sends the model at
    the start of the next step (torch.nn.DataParallel).
    """
    schedule = schedule if replicas is None else schedule.replicate(REPLICAS, replicas)
    (program,) = schedule.programs
    (count,) = schedule.degrees(REPLICAS)
    if count == 1:
        return schedule
    gradients = float(model.trainable_parameters * BYTES[gradient_dtype or model.precision])
    before: list[Op] = [_direct("send batch", "scatter", float(model.sample_bytes * samples * count))]
    if update == "main":
        before.insert(0, _direct("send model", "broadcast", float(model.parameters * BYTES[model.precision])))
    gather = _direct("gather gradients", "gather", gradients * count)
    average = _average(model, count, gradients)
    after: list[Op] = [] if update == "main" else [_direct("send average", "broadcast", gradients)]

    body = [op for op in program.ops if not _updates(op)]
    step = [op for op in program.ops if _updates(op)]
    main = (*before, *body, gather, average, *after, *step)
    rest = (*before, *body, gather, *after, *(step if update == "everywhere" else ()))
    received = program.resident.get("buffers", 0.0) + gradients * (count - 1)
    programs = (
        Program("main GPU", main, {**program.resident, "buffers": received}),
        Program("other GPU", rest, program.resident if update == "everywhere" else _without_optimizer(program)),
    )
    return replace(schedule, programs=programs, program_of=(0,) + (1,) * (count - 1))


def _updates(op: Op) -> bool:
    return op.action is not None and op.action.phase == "O"


def _average(model: Model, count: int, gradients: float) -> Compute:
    """Return the average of the gradients of *count* GPUs: all of them are read, and the result is written."""
    adds = memory_bound((count + 1) * gradients, precision=model.precision, operation=AVERAGE)
    return Compute(name="average", kernels=() if model.optimizer_seconds is not None else (adds,))


def _direct(name: str, kind: str, nbytes: float) -> Collective:
    return Collective(name=name, kind=kind, over=REPLICAS, nbytes=nbytes, algorithm="direct")


def _without_optimizer(program: Program) -> dict[str, float]:
    return {category: nbytes for category, nbytes in program.resident.items() if category != "optimizer"}
