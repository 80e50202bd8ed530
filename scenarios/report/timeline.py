"""The timeline of a page: a row for each class of equal ranks and stream."""

from __future__ import annotations

import numpy as np

from scenarios.report.coarse import joined_note, within
from scenarios.report.parts import Gantt, Lane, Part, Section, Text
from simulator.analysis.alike import groups
from simulator.analysis.palette import WAIT, Paint
from simulator.analysis.rows import Looks, Shown, looks_of, shown
from simulator.timeline import Columns, Timeline

EQUAL = 1e-4
"""Share of the timeline by which ranks of one row may differ: an eighth of a pixel of a picture 1,250 pixels wide."""

MIXED = (
    "Ops that are too narrow to be drawn share a box. Of several kinds, its colour is theirs mixed by their times, "
    "paler with idle time among them. Point at a box to read the times of its kinds."
)
"""What the colours of a timeline mean that are in no legend."""


def timeline_section(timeline: Timeline, most: int) -> Section:
    """Return the section of *timeline*, with at most *most* spans."""
    whole = (0.0, timeline.makespan)
    if not timeline.makespan or not timeline.columns:
        return Section("timeline", "Timeline", [Text("The timeline takes no time.")])
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
    return Section("timeline", "Timeline", parts)


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
