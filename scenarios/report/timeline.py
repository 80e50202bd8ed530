"""Rows of spans over time: the timeline by class of equal ranks and stream, and the pipeline by stage with why its
GPUs wait. Short neighbours become one span, so that a page of a large run stays small.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import ceil, log

import numpy as np

from clustersim.scenarios.report.parts import Cell, Gantt, Lane, PageSection, PageTable, Part, Text
from clustersim.scenarios.results import efficiency
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.simulator.analysis import metrics
from clustersim.simulator.analysis.memory import stage_of
from clustersim.simulator.analysis.timeline import Columns, Integers, Timeline
from clustersim.simulator.charts.palette import PHASE_PAINTS, WAIT, Paint
from clustersim.simulator.charts.pipeline import pipeline_ranks, stretches
from clustersim.simulator.charts.rank_groups import groups
from clustersim.simulator.charts.rows import MOST_CLASSES, Looks, Shown, evenly, looks_of, shown
from clustersim.simulator.reading.units import show

ALIKE = 8
"""Ops of one paint are joined up to so many times the length of ops of several."""
FIRST, STEP = 2.0**-22, 1.5
"""The first length that is tried, as a share of the window, and by what it grows."""


def within(lanes: Sequence[Lane], most: int, window: tuple[float, float]) -> tuple[list[Lane], float]:
    """Return *lanes* with at most *most* spans in all, or one for each lane, and how short merged spans are (s).

    0 s if all spans are kept; see `merged`.
    """
    most = max(most, len(lanes))
    if sum(len(lane.begin) for lane in lanes) <= most:
        return list(lanes), 0.0
    steps = ceil(log(ALIKE / FIRST, STEP))
    tried = [(window[1] - window[0]) * FIRST * STEP**step for step in range(steps)]
    enough = bisect_left(tried, True, key=lambda shortest: _count(lanes, shortest) <= most)
    shortest = tried[min(enough, steps - 1)]
    return [merged(lane, shortest) for lane in lanes], shortest


def _count(lanes: Sequence[Lane], shortest: float) -> int:
    return sum(len(merged(lane, shortest).begin) for lane in lanes)


def merged(lane: Lane, shortest: float) -> Lane:
    """Return *lane* in which neighbours are one span that are of one paint and shorter than *shortest* (s).

    Of different paints they are one if they are `ALIKE` times shorter and begin in the same interval of twice that
    length. A span has the paint that takes most of its time, and the text of its first op.
    """
    gap = shortest / ALIKE
    one = _joined(lane, shortest, gap, lane.paint)
    return _joined(one, gap, gap, np.floor(one.begin / (2 * gap)).astype(np.int64))


def _joined(lane: Lane, shortest: float, gap: float, kind: Integers) -> Lane:
    """Return *lane* in which neighbours of one *kind* are one span if they are short and nearer than *gap* (s)."""
    if len(lane.begin) < 2:
        return lane
    length = lane.end - lane.begin
    short = length < shortest
    near = lane.begin[1:] - np.maximum.accumulate(lane.end)[:-1] < gap
    same = kind[1:] == kind[:-1]
    group = np.cumsum(np.append(True, ~(short[1:] & short[:-1] & near & same))) - 1
    firsts = np.flatnonzero(np.diff(group, prepend=-1))
    kinds = int(lane.paint.max()) + 1
    shares = np.bincount(group * kinds + lane.paint, lane.busy, len(firsts) * kinds).reshape(len(firsts), kinds)
    return Lane(
        lane.name,
        np.minimum(np.minimum.reduceat(lane.ready, firsts), lane.begin[firsts]),
        lane.begin[firsts],
        np.maximum.reduceat(lane.end, firsts),
        shares.argmax(axis=1),
        lane.text[firsts],
        np.add.reduceat(lane.count, firsts),
        np.add.reduceat(lane.busy, firsts),
    )


def joined_note(what: str, shortest: float) -> str:
    """Return what a reader should know of a chart in which spans were merged up to *shortest* (s)."""
    several = show(shortest / ALIKE, "time", 3)
    return (
        f"To keep the page small, neighbouring {what} shorter than {show(shortest, 'time', 3)} are one box, of several "
        f"kinds only below {several}."
    )


EQUAL = 1e-4
"""Share of the timeline by which ranks of one row may differ: an eighth of a pixel of a picture 1,250 pixels wide."""

MIXED = (
    "Ops that are too narrow to be drawn share a box. Of several kinds, its colour is theirs mixed by their times, "
    "paler with idle time among them. Point at a box to read the times of its kinds."
)
"""What the colours of a timeline mean that are in no legend."""


def timeline_section(timeline: Timeline, most: int) -> PageSection:
    """Return the section of *timeline*, with at most *most* spans."""
    whole = (0.0, timeline.makespan)
    if not timeline.makespan or not timeline.columns:
        return PageSection("timeline", "Timeline", [Text("The timeline takes no time.")])
    ranks, note = shown(timeline, None, join=lambda classes: groups(timeline, classes, EQUAL * whole[1]))
    paints: dict[Paint, int] = {WAIT: 0}
    texts: dict[str, int] = {}
    looks = looks_of(timeline, [rank for rank, _ in ranks])
    every = [
        lane
        for one in ranks
        for lane in _lanes(timeline.of(one.rank), looks[timeline.schedule.program_of[one.rank]], one, paints, texts)
    ]
    lanes, shortest = within(every, most, whole)
    told = ["Zoom by a drag or the wheel: detail appears as there is room for it. A double click shows all."]
    if shortest:
        told.append(joined_note("ops", shortest))
    told.append(MIXED)
    noted = [f"{note[0].upper()}{note[1:]}."] if note else []
    parts: list[Part] = [Text(" ".join([*noted, *told]))]
    fills = [(paint.label, paint.fill) for paint in paints]
    parts.append(Gantt("Timeline", lanes, fills, list(texts), whole))
    return PageSection("timeline", "Timeline", parts)


def _lanes(own: Columns, looks: Looks, one: Shown, paints: dict[Paint, int], texts: dict[str, int]) -> list[Lane]:
    """Return the rows of the rank *one*; new paints and texts are added to *paints* and *texts*."""
    order = np.argsort(own.begin, kind="stable")
    op, ready, begin, end = own.op[order], own.ready[order], own.begin[order], own.end[order]
    paint = np.array([paints.setdefault(paint, len(paints)) for paint in looks.paints], np.int64)[looks.paint[op]]
    used, place = np.unique(op, return_inverse=True)
    text = np.array([texts.setdefault(looks.names[number], len(texts)) for number in used.tolist()], np.int64)[place]
    made = []
    for number, stream in enumerate(looks.lanes):
        mine = (looks.lane[op] == number) & (end > begin)
        if mine.any():
            name = f"{one.name}  {stream}"
            ones = np.ones(int(mine.sum()), np.int64)
            busy = end[mine] - begin[mine]
            made.append(Lane(name, ready[mine], begin[mine], end[mine], paint[mine], text[mine], ones, busy))
    return made


PHASES = list(PHASE_PAINTS)


def pipeline_section(result: StepNumbers, most: int) -> PageSection | None:
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
    return PageSection("pipeline", "Pipeline", [*parts, *_bubble(result)])


def _lane(timeline: Timeline, rank: int, texts: dict[str, int]) -> Lane:
    done = [one for one in stretches(timeline, rank) if one.end > one.begin]
    begin, end = np.array([one.begin for one in done]), np.array([one.end for one in done])
    paint = np.array([1 + PHASES.index(one.action.phase) for one in done], np.int64)
    text = np.array([texts.setdefault(str(one.action), len(texts)) for one in done], np.int64)
    name = f"stage {stage_of(timeline.schedule, rank)}  rank {rank}"
    return Lane(name, begin, begin, end, paint, text, np.ones(len(done), np.int64), end - begin)


def _bubble(result: StepNumbers) -> list[Part]:
    """Return the bubble beside its closed form, and its causes."""
    expected, share = efficiency.bubble(result.scenario), metrics.bubble_fraction(result.breakdown)
    if expected is None:
        return [Text(f"Bubble: {share:.1%} of the step. This order has no closed form here to divide it by cause.")]
    told = (
        f"Bubble: {share:.1%} of the step. In theory {expected.fraction:.1%} = {expected.formula}, for equal stages, "
        "free messages and no recomputation."
    )
    found = metrics.bubble_causes(result.timeline, expected.fraction)
    return [Text(told), *([_causes(found, result.timeline.step_time)] if found else [])]


def _causes(found: metrics.Bubble, step: float) -> PageTable:
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
    return PageTable(["cause of the bubble", "time", "share of the step", "why, and what shortens it"], rows)
