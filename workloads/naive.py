"""Naive data parallelism: one main GPU hands out the batch, gathers every gradient, averages, and sends back.

As torch.nn.DataParallel and the textbooks have it; everything passes the main GPU's port, so it is for one node.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.kernel import BYTES, memory_bound
from simulator.schedule import Collective, Compute, Op, Program, Schedule
from workloads.model import Model


def naive(
    schedule: Schedule,
    model: Model,
    replicas: int,
    *,
    samples: int,
    gradient_dtype: str | None = None,
    update: str = "everywhere",
) -> Schedule:
    """*replicas* copies of a one-stage *schedule*, rank 0 the main GPU.

    A step scatters the batch (*samples* to each GPU), computes, gathers the gradients at the main GPU and averages them
    there. *update* ``everywhere``: the average is sent back and every GPU takes the optimizer step. *update* ``main``:
    the main GPU takes it and sends the model at the begin of the next step (torch.nn.DataParallel).
    """
    (program,) = schedule.programs
    if replicas == 1:
        return schedule.replicate("dp", 1)
    gradients = float(model.parameters * BYTES[gradient_dtype or model.precision])
    before: list[Op] = [_batch(model, samples, replicas)]
    if update == "main":
        before.insert(0, _sent("send model", "broadcast", float(model.parameters * BYTES[model.precision])))
    gather = _sent("gather gradients", "gather", gradients * replicas)
    # the main GPU reads every gradient and writes the average
    adds = memory_bound((replicas + 1) * gradients, precision=model.precision)
    average = Compute(name="average", kernels=() if model.optimizer_seconds is not None else (adds,))
    after: list[Op] = [] if update == "main" else [_sent("send average", "broadcast", gradients)]

    body = [op for op in program.ops if not (op.action and op.action.phase == "O")]
    step = [op for op in program.ops if op.action and op.action.phase == "O"]
    main = (*before, *body, gather, average, *after, *step)
    rest = (*before, *body, gather, *after, *(step if update == "everywhere" else ()))
    received = program.resident.get("buffers", 0.0) + gradients * (replicas - 1)
    programs = (
        Program("main GPU", main, {**program.resident, "buffers": received}),
        Program("other GPU", rest, program.resident if update == "everywhere" else _without_optimizer(program)),
    )
    spread = schedule.replicate("dp", replicas)
    return replace(spread, programs=programs, program_of=(0,) + (1,) * (replicas - 1))


def _batch(model: Model, samples: int, replicas: int) -> Collective:
    return _sent("send batch", "scatter", float(model.sample_bytes * samples * replicas))


def _sent(name: str, kind: str, nbytes: float) -> Collective:
    return Collective(name=name, kind=kind, over="dp", nbytes=nbytes, algorithm="direct")


def _without_optimizer(program: Program) -> dict[str, float]:
    return {category: nbytes for category, nbytes in program.resident.items() if category != "optimizer"}
