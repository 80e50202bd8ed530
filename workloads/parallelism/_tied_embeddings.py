"""Tied embeddings: the first and the last stage of a pipeline hold copies of one tensor, and sum its gradients.

So does the stage with the first decoder layer of an encoder-decoder, which looks up the decoder's tokens.
Megatron-LM, ``_allreduce_word_embedding_grads``, for orders that flush. The papers of PipeDream (arXiv:1806.03377) and
PipeDream-2BW (arXiv:2006.09503) do not say how they keep tied copies equal. Assumed is what keeps their pipelines full:
the last stage is ahead of the first and does not wait for it. It applies each sum with the optimizer step that it is
ahead, so that both copies get all sums, the last stage some steps later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.mesh import NOWHERE, axis_of
from clustersim.simulator.schedule.ops import Collective, Compute, Op
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.gradients import actions
from clustersim.workloads.memory.compute import PIPELINE
from clustersim.workloads.operators.model import Model

TIED = "embedding"
"""The axis that joins the ranks of a pipeline with a copy of the tied tensor."""


def tied_embeddings(schedule: Schedule, model: Model, *, gradient_dtype: str | None = None) -> Schedule:
    """*schedule* with the all-reduce that keeps the embedding of the first stage and the tied head of the last equal.

    It is over the axis ``embedding`` of their ranks of ``pp``. It is the first op before the optimizer step; with
    the steps of an asynchronous order, it is on a stream of its own. Nothing changes if one rank has all, or if they
    are not tied. Raises `ScheduleError` if the two ends of an asynchronous order have unequal numbers of steps.
    """
    if not model.trains_tied:
        return schedule
    ends = {model.layers[0].name, *model.sharing}
    held = [_end_stages(program, ends) for program in schedule.programs]
    stages = [next(iter(own.values()), None) for own in held]
    holders = [number for number, own in enumerate(held) if own]
    if len(holders) < 2 or any(len(own) == len(ends) for own in held):
        return schedule
    pipelines = schedule.mesh.axes[PIPELINE].members
    held_by = np.isin(np.append(schedule.program_numbers, NOWHERE), holders)[pipelines]
    mesh = schedule.mesh.with_axis_after(PIPELINE, TIED, axis_of(np.where(held_by, pipelines, NOWHERE)))
    nbytes = float(model.tied_parameters * BYTES[gradient_dtype or model.precision])
    op = Collective(name="embedding gradients", kind="all_reduce", over=TIED, nbytes=nbytes)
    own = {number: _updates(schedule.programs[number], stages[number]) for number in holders}
    programs = list(schedule.programs)
    for number in holders:
        if own[number] and own[number][0].micro_batch is not None:
            flushes = all(_flushes(schedule.programs[holder]) for holder in holders)
            late = 0 if flushes else _steps_ahead(list(own.values()), stages[number] or 0)
            programs[number] = _beside_updates(programs[number], op, own[number], late)
        else:
            programs[number] = _before_update(programs[number], op)
    return replace(schedule, mesh=mesh, programs=tuple(programs))


def _end_stages(program: Program, ends: set[str]) -> dict[str, int]:
    """The stage of each layer of *ends* that *program* has, in order of issue."""
    ops = [op for op in program.distinct() if op.action and op.layer in ends]
    return {op.layer: op.action.stage for op in reversed(ops) if op.action and op.layer}


def _updates(program: Program, stage: int | None) -> list[Action]:
    """The optimizer steps of *program* in order of issue: of *stage* in an asynchronous order, else the one of all."""
    return [action for _, action in actions(program, "O") if action.micro_batch is None or action.stage == stage]


def _flushes(program: Program) -> bool:
    """True if no micro-batch is between its passes at an optimizer step: all ranks are at the same step then."""
    open_passes = 0
    for _, action in actions(program, "FBIO"):
        open_passes += (action.phase == "F") - (action.phase in "BI")
        if action.phase == "O" and open_passes:
            return False
    return True


def _steps_ahead(updates: Sequence[Sequence[Action]], stage: int) -> int:
    """By how many steps *stage* is ahead of stage 0 in the backward pass; *updates* are the steps of both ends.

    It is ahead by at most *stage* micro-batches. Raises `ScheduleError` if the ends have unequal numbers of steps.
    """
    counts = sorted({len(own) for own in updates})
    if len(counts) > 1:
        raise ScheduleError(
            f"both ends of the pipeline hold tied embeddings, but a rank of one takes {counts[-1] / counts[0]:g} "
            "optimizer steps for each of the other; give both ends as many replicas, or take "
            "model.tie_embeddings: false"
        )
    numbers = [action.micro_batch or 0 for action in updates[0]]
    each = numbers[1] - numbers[0] if len(numbers) > 1 else stage
    return ceil(stage / each) if stage else 0


def _before_update(program: Program, op: Op) -> Program:
    """*program* with *op* first in the block that has its optimizer step."""
    ops = program.templated
    templates = [(op, *own) if any(map(_is_update, own)) else own for own in ops.templates]
    return program.with_templated_ops(ops.mapped(templates))


def _beside_updates(program: Program, op: Collective, updates: Sequence[Action], late: int) -> Program:
    """*program* with one of *op* for each of *updates*, which waits for the one that is *late* steps older.

    It begins as soon as the computation before the step is over.
    """
    ops = program.templated
    templates, sums, last = list(ops.templates), list[str](), ""
    for number, template in enumerate(ops.which.tolist()):
        own = list(templates[template])
        update = next((place for place, one in enumerate(own) if one.action in updates and _is_update(one)), None)
        if update is not None:
            sums.append(f"{own[update].name}.{op.name}")
            beside = replace(op, name=sums[-1], action=own[update].action, stream=TIED, after=(last,))
            own[update] = replace(own[update], after=(*own[update].after, *sums[-1 - late :][: len(sums) > late]))
            templates[template] = (*own[:update], beside, *own[update:])
        computed = [one.name for one in own if isinstance(one, Compute)]
        last = ops.block(number).name(computed[-1]) if computed else last
    return program.with_templated_ops(ops.mapped(templates))


def _is_update(op: Op) -> bool:
    return op.action is not None and op.action.phase == "O"
