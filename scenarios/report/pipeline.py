"""The pipeline of a run: what each stage computes when, and why its GPUs wait."""

from __future__ import annotations

import numpy as np

from scenarios.report.coarse import joined_note, within
from scenarios.report.parts import Cell, Gantt, Lane, Part, Section, Table, Text
from scenarios.results import theory
from scenarios.results.step_numbers import StepNumbers
from simulator.analysis import bubble, metrics
from simulator.analysis.memory import stage_of
from simulator.analysis.palette import PHASE_PAINTS, WAIT
from simulator.analysis.pipeline import pipeline_ranks, stretches
from simulator.analysis.rows import MOST_CLASSES, evenly
from simulator.timeline import Timeline
from simulator.units import show

PHASES = list(PHASE_PAINTS)


def pipeline_section(result: StepNumbers, most: int) -> Section | None:
    """Return the section of the pipeline of *result*, with at most *most* spans; None without a pipeline."""
    timeline = result.timeline
    ranks = pipeline_ranks(timeline) if timeline.columns else []
    if result.scenario.derived.degree("pp") == 1 or not ranks or not timeline.makespan:
        return None
    texts: dict[str, int] = {}
    lanes = [_lane(timeline, rank, texts) for rank in evenly(ranks, MOST_CLASSES)]
    window = (0.0, timeline.makespan)
    kept, shortest = within(lanes, most, window)
    paints = [(WAIT.label, WAIT.fill), *((paint.label, paint.fill) for paint in PHASE_PAINTS.values())]
    told = "Boxes are actions, as 2F0: stage 2, forward, micro-batch 0. Nothing is computed between them."
    if len(lanes) < len(ranks):
        told += f" {len(lanes)} of {len(ranks)} stages, evenly spread."
    if shortest:
        told += f" {joined_note('actions', shortest)}"
    parts: list[Part] = [Text(told), Gantt("Pipeline, the first rank of each stage", kept, paints, list(texts), window)]
    return Section("pipeline", "Pipeline", [*parts, *_bubble(result)])


def _lane(timeline: Timeline, rank: int, texts: dict[str, int]) -> Lane:
    done = [one for one in stretches(timeline, rank) if one.end > one.begin]
    begin, end = np.array([one.begin for one in done]), np.array([one.end for one in done])
    paint = np.array([1 + PHASES.index(one.action.phase) for one in done], np.int64)
    text = np.array([texts.setdefault(str(one.action), len(texts)) for one in done], np.int64)
    name = f"stage {stage_of(timeline.schedule, rank)}  rank {rank}"
    return Lane(name, begin, begin, end, paint, text, np.ones(len(done), np.int64), end - begin)


def _bubble(result: StepNumbers) -> list[Part]:
    """Return the bubble beside its closed form, and its causes."""
    expected, share = theory.bubble(result.scenario), metrics.bubble_fraction(result.breakdown)
    if expected is None:
        return [Text(f"Bubble: {share:.1%} of the step. This order has no closed form here to divide it by cause.")]
    told = (
        f"Bubble: {share:.1%} of the step. In theory {expected.fraction:.1%} = {expected.formula}, for equal stages, "
        "free messages and no recomputation."
    )
    found = bubble.explained(result.timeline, expected.fraction)
    return [Text(told), *([_causes(found, result.timeline.step_time)] if found else [])]


def _causes(found: bubble.Bubble, step: float) -> Table:
    slowest = f"stage {found.slowest} works {found.excess:.1%} more than the mean; the others wait for it"
    causes = {
        "fill and drain": (found.fill_and_drain, "the last stage waits for the first micro-batch; more micro-batches"),
        "unequal stages": (found.unequal_stages, slowest),
        "optimizer": (found.optimizer, "ranks wait for the norm of all gradients, or for the updates of others"),
        "messages and order": (found.messages, "ranks wait for messages, or unequal stages break the order's pattern"),
    }
    rows = [
        [Cell(cause), Cell(show(seconds, "time"), seconds), Cell(f"{seconds / step:.1%}", seconds), Cell(why)]
        for cause, (seconds, why) in causes.items()
    ]
    return Table(["cause of the bubble", "time", "share of the step", "why, and what shortens it"], rows)
