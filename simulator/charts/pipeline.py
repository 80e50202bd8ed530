"""The rows of a pipeline chart: one for each pipeline rank, with a box for each action, numbered by micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from clustersim.simulator.analysis.memory import stage_of, stages
from clustersim.simulator.analysis.timeline import NO_MICRO_BATCH, Timeline, micro_batches
from clustersim.simulator.charts.palette import PHASE_PAINTS
from clustersim.simulator.charts.rows import MOST_CLASSES, MOST_GIVEN, Boxes, ChartRow, Label, chosen, evenly
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.units import show
from clustersim.simulator.schedule.ops import Compute, Op
from clustersim.simulator.schedule.pipeline_order import PHASES, Action

PHASE_LETTERS = tuple(PHASES)


class Stretch(NamedTuple):
    """*action* of training step *step* ran from *begin* to *end* (s): its layers in a row, with waits between them."""

    action: Action
    step: int
    begin: float
    end: float


def stretches(timeline: Timeline, rank: int) -> list[Stretch]:
    """Return the actions that *rank* computed, in order of their begins."""
    program, own = timeline.schedule.program(rank), timeline.of(rank)
    computes = program.column(_computes, np.bool_)[own.op]
    computed = np.flatnonzero(computes)
    computed = computed[np.lexsort((own.end[computed], own.begin[computed]))]
    phase = program.column(lambda op: PHASE_LETTERS.index(op.action.phase) if op.action else 0, np.int64)
    stage = program.column(lambda op: op.action.stage if op.action else 0, np.int64)
    actions = np.stack((phase, stage, micro_batches(program)))[:, own.op[computed]]
    actions = np.concatenate((actions, own.step[None, computed]))
    firsts = np.flatnonzero(np.append(True, np.any(np.diff(actions) != 0, axis=0))[: len(computed)])
    if not len(firsts):
        return []
    ends = np.maximum.reduceat(own.end[computed], firsts)
    rows = zip(*actions[:, firsts].tolist(), own.begin[computed[firsts]].tolist(), ends.tolist(), strict=True)
    return [
        Stretch(Action(PHASE_LETTERS[phase], stage, None if number == NO_MICRO_BATCH else number), step, begin, end)
        for phase, stage, number, step, begin, end in rows
    ]


def _computes(op: Op) -> bool:
    """Return whether *op* is a computation of an action."""
    return isinstance(op, Compute) and op.action is not None


def pipeline_ranks(timeline: Timeline, ranks: Sequence[int] | None = None) -> list[int]:
    """Return the ranks to show: *ranks* if given, else the first GPU rank of each stage with kept spans.

    Raises `SimulatorError` for an unknown rank, and if no rank is on a GPU.
    """
    if ranks is not None:
        return chosen(timeline, ranks, timeline.world_size)
    gpus = np.array(timeline.gpu_ranks, np.int64)
    if not len(gpus):
        raise SimulatorError("nothing to show: no rank lives on a GPU")
    gpus = gpus[np.isin(timeline.representative[gpus], list(timeline.columns))]
    _, firsts = np.unique(stages(timeline.schedule)[gpus], return_index=True)
    return [int(rank) for rank in gpus[firsts]]


def pipeline_rows(
    timeline: Timeline, ranks: Sequence[int] | None, window: tuple[float, float]
) -> tuple[list[ChartRow], str]:
    """Return the rows of a pipeline chart within *window* (s), and a note of what is left out and how long boxes are.

    Boxes show the number of their micro-batch. Actions of no length, as the optimizer of a unit model, have no box.
    """
    every = pipeline_ranks(timeline, ranks)
    if len(every) > MOST_GIVEN:
        # one of each class of equal ranks
        _, firsts = np.unique(timeline.representative[every], return_index=True)
        every = [every[place] for place in sorted(firsts.tolist())]
    kept = evenly(every, MOST_CLASSES if ranks is None else MOST_GIVEN)
    told = "" if len(kept) == len(every) else f"{len(kept)} of {len(every)} stages, evenly spread; --ranks shows others"
    told = "; ".join(filter(None, (told, box_lengths(timeline, kept))))
    return [_row(timeline, rank, window) for rank in kept], told


def box_lengths(timeline: Timeline, ranks: Sequence[int] | None = None) -> str:
    """How long each phase of a micro-batch takes on a stage of *ranks* (default: those of the picture).

    For example ``boxes: F 1 s, B 2 s``; empty if no box has a length. Where the phase of a micro-batch has several
    boxes, as a backward pass that computes each layer again before, their sum is told and their number:
    ``F 38 ms, B 73 ms in 6 boxes``.
    """
    seconds: dict[str, list[float]] = {}
    counts: dict[str, set[int]] = {}
    for rank in pipeline_ranks(timeline) if ranks is None else ranks:
        of_action: dict[tuple[Action, int], list[float]] = {}
        for action, step, begin, end in stretches(timeline, rank):
            if end > begin:
                of_action.setdefault((action, step), []).append(end - begin)
        for (action, _), parts in of_action.items():
            seconds.setdefault(action.phase, []).append(sum(parts))
            counts.setdefault(action.phase, set()).add(len(parts))
    told = [
        f"{phase} {_range(min(own), max(own))}{_in_boxes(counts[phase])}"
        for phase, own in sorted(seconds.items(), key=_phase_order)
    ]
    return f"boxes: {', '.join(told)}" if told else ""


def _in_boxes(counts: set[int]) -> str:
    """Return in how many boxes a phase of a micro-batch is drawn; empty for one."""
    least, most = min(counts), max(counts)
    return "" if most == 1 else f" in {most} boxes" if least == most else f" in {least} to {most} boxes"


def _range(least: float, most: float) -> str:
    shortest, longest = show(least, "time", 3), show(most, "time", 3)
    return shortest if shortest == longest else f"{shortest} to {longest}"


def _phase_order(item: tuple[str, list[float]]) -> int:
    return PHASE_LETTERS.index(item[0])


def _row(timeline: Timeline, rank: int, window: tuple[float, float]) -> ChartRow:
    lasting = [s for s in stretches(timeline, rank) if s.end > s.begin]
    done = [s for s in lasting if s.end > window[0] and s.begin < window[1]]
    boxes = []
    for virtual, stage in enumerate(sorted({s.action.stage for s in lasting})):
        for phase, paint in PHASE_PAINTS.items():
            mine = [s for s in done if s.action.stage == stage and s.action.phase == phase]
            if mine:
                begin, end = np.array([s.begin for s in mine]), np.array([s.end for s in mine])
                boxes.append(Boxes(paint, np.clip(begin, *window), np.clip(end, *window), virtual=virtual))
    labels = [Label(_number(s.action), s.begin, s.end, PHASE_PAINTS[s.action.phase]) for s in done]
    return ChartRow(rank, f"stage {stage_of(timeline.schedule, rank)}", True, boxes, labels)


def _number(action: Action) -> str:
    return "" if action.micro_batch is None else str(action.micro_batch)
