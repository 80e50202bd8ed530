"""Charts of a timeline: ops of ranks over time, use of links, breakdown of the step time, memory, and the critical
path.

This is the only part of the simulator that imports matplotlib. It uses figures, never the global state of pyplot.
`figure` returns one, and `write` writes it to a file; the `draw` functions do both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure as Figure  # noqa: PLC0414 - the type of what this file returns

from clustersim.simulator.analysis.critical_path import CriticalPath, critical_path
from clustersim.simulator.analysis.timeline import Floats, Integers, Timeline
from clustersim.simulator.charts.bars import BREAKDOWN_TITLE, breakdown_bars, breakdown_chart, repeats_chart
from clustersim.simulator.charts.canvas import SUFFIXES, Window, columns_beside, patch, save, stacked, style, time_axis
from clustersim.simulator.charts.gantt import (
    beside_chart,
    draw_rows,
    height_of,
    middles,
    pipeline_chart,
    timeline_chart,
)
from clustersim.simulator.charts.memory import Reserved, memory_chart
from clustersim.simulator.charts.network import links_chart, topology_chart
from clustersim.simulator.charts.palette import PART_PAINTS, Paint, axis_paint, in_order
from clustersim.simulator.charts.rows import Boxes, ChartRow, chosen, shown_window
from clustersim.simulator.charts.scatter import ParetoPoint, pareto_chart
from clustersim.simulator.charts.short_ops import drawn
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.files import suffix_of
from clustersim.simulator.reading.units import show

Chart = Callable[[Timeline, Sequence[int] | None, Window | None, str | None], Figure]


def critical_chart(timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None) -> Figure:
    """Return a chart with a row for each of *ranks* on the path, or for each role; below, the path's composition.

    Raises `SimulatorError` if the timeline was not simulated, and if none of *ranks* is on the path.
    """
    window = shown_window(timeline, window)
    path = critical_path(timeline)
    number, names = _lines(path, ranks, window)
    chart = [_row(path, number == place, place, name) for place, name in enumerate(names)]
    panels = {"by kind": _kinds(path, window), "by layer": _layers(path, window), "by rank": _ranks(path, window)}
    columns = columns_beside([*names, *(part.name for parts in panels.values() for part in parts)])
    heights = [max(0.5, height_of(chart)), *(LINE * len(parts) for parts in panels.values())]
    entries = [patch(paint) for paint in in_order(kind_paint(part.name) for part in panels["by kind"])]
    told = f"{len(np.unique(path.rank))} of {timeline.world_size:,} ranks are on it"
    figure, axes = stacked(heights, columns, title or "Critical path", told, entries, headed=True)
    draw_rows(axes[0], chart, [drawn(row.boxes, window, columns) for row in chart], window)
    _turns(axes[0], path, number, middles(chart), window)
    for panel, parts in zip(axes[1:], panels.values(), strict=True):
        _waterfall(panel, parts, window)
    for panel, name in zip(axes, ("over time", *panels), strict=True):
        panel.set_title(name, fontsize=9, loc="left")
    time_axis(axes[-1], window)
    return figure


CHARTS: dict[str, Chart] = {
    "timeline": timeline_chart,
    "pipeline": pipeline_chart,
    "memory": memory_chart,
    "breakdown": breakdown_chart,
    "links": links_chart,
    "critical": critical_chart,
    "topology": topology_chart,
}
"""The charts by name."""


def figure(
    timeline: Timeline,
    chart: str,
    *,
    ranks: Sequence[int] | None = None,
    window: Window | None = None,
    title: str | None = None,
    reserved: Reserved | None = None,
) -> Figure:
    """Return *timeline* as *chart*, one of `CHARTS`.

    *ranks* and *window* (s) select what is shown; by default all, thinned if it is too much. *reserved*: the bytes
    that a rank holds beyond tensors, for the chart of memory. Raises `SimulatorError` for an unknown chart, and if
    there is nothing to show.
    """
    if chart not in CHARTS:
        raise SimulatorError(f'there is no chart "{chart}"; there are: {", ".join(CHARTS)}')
    with style():
        if chart == "memory" and reserved is not None:
            return memory_chart(timeline, ranks, window, title, reserved)
        return CHARTS[chart](timeline, ranks, window, title)


def write(drawn: Figure, path: Path) -> None:
    """Write the figure *drawn* to *path*. Its suffix gives the format: PNG, SVG or PDF. Raises `SimulatorError`."""
    with style():
        save(drawn, path)


def draw(
    timeline: Timeline,
    chart: str,
    path: Path | str,
    *,
    ranks: Sequence[int] | None = None,
    window: Window | None = None,
    title: str | None = None,
) -> None:
    """Draw *timeline* as *chart* to *path*; see `figure` and `write`."""
    suffix_of(Path(path), SUFFIXES)
    write(figure(timeline, chart, ranks=ranks, window=window, title=title), Path(path))


def draw_breakdowns(
    breakdowns: Mapping[str, Mapping[str, float]], path: Path | str, *, title: str | None = None
) -> None:
    """Draw several breakdowns (`metrics.breakdown`) as stacked bars, one below the other, to *path*."""
    if not breakdowns:
        raise SimulatorError("there are no results to compare")
    with style():
        save(breakdown_bars(breakdowns, title or BREAKDOWN_TITLE), Path(path))


def draw_beside(
    timelines: Mapping[str, Timeline], path: Path | str, *, ranks: Sequence[int] | None = None, title: str
) -> None:
    """Draw *timelines* of one schedule, by name, one above the other, to *path*, whose suffix gives the format."""
    suffix_of(Path(path), SUFFIXES)
    with style():
        save(beside_chart(timelines, ranks, title), Path(path))


def draw_pareto(points: Sequence[ParetoPoint], capacity: float, path: Path | str, *, title: str) -> None:
    """Draw memory against time of *points*, with the *capacity* of a GPU (bytes), to *path*."""
    suffix_of(Path(path), SUFFIXES)
    with style():
        save(pareto_chart(points, capacity, title), Path(path))


def draw_repeats(step_times: Sequence[float], path: Path | str, *, title: str) -> None:
    """Draw the *step_times* (s) of repeats as a histogram to *path*, whose suffix gives the format."""
    suffix_of(Path(path), SUFFIXES)
    with style():
        save(repeats_chart(step_times, title), Path(path))


MOST_ROWS = 24
"""Number of ranks on the path above which ranks of one role share a row."""
MOST_TURNS = 400
"""Changes of row that are drawn at most; more would hide the spans between them."""
MOST_BARS = 10
"""Layers and ranks with bars of their own."""
LINE = 0.19
"""Inches of a bar."""
BAR, REST = "#8DA0B6", "#CCCCCC"
"""Fill of bars of layers and ranks, and of that of all others."""
LEAST = 5e-4
"""Least share of the window that has a bar; less would be printed as 0.0 %."""
NOWHERE = -1
"""Stands for the row of a span that is not drawn."""


class PathBar(NamedTuple):
    """A bar: *seconds* of the path, with *name* and colour *fill*; the text colour *ink* is legible on it."""

    name: str
    seconds: float
    fill: str
    ink: str = "black"


def kind_paint(kind: str) -> Paint:
    """Return the paint of a kind of span on the critical path: a part of the breakdown, or an axis."""
    return PART_PAINTS.get(kind) or axis_paint(kind)


def _lines(path: CriticalPath, ranks: Sequence[int] | None, window: Window) -> tuple[Integers, list[str]]:
    """Return the row of each span of *path*, `NOWHERE` if it is not drawn, and the names of the rows."""
    timeline = path.timeline
    seen = (path.end > window[0]) & (path.begin < window[1]) & (path.end > path.begin)
    if ranks is not None:
        seen &= np.isin(path.rank, chosen(timeline, ranks, timeline.world_size))
    found = np.unique(path.rank[seen]).tolist()
    if not found:
        raise SimulatorError("nothing to draw: none of the chosen ranks is on the critical path in this window")
    names = {rank: timeline.schedule.program(rank).role for rank in found}
    if len(found) <= MOST_ROWS:
        names = {rank: _rank_name(timeline, rank) for rank in found}
    rows = list(dict.fromkeys(names.values()))
    line = np.full(timeline.world_size, NOWHERE)
    line[found] = [rows.index(name) for name in names.values()]
    return np.where(seen, line[path.rank], NOWHERE), rows


def _row(path: CriticalPath, mine: npt.NDArray[np.bool_], place: int, name: str) -> ChartRow:
    """Return row number *place*, with the spans *mine*."""
    kinds = {kind: mine & (path.kind == number) for number, kind in enumerate(path.kinds)}
    boxes = [Boxes(kind_paint(kind), path.begin[own], path.end[own]) for kind, own in kinds.items() if own.any()]
    return ChartRow(place, "", True, boxes, name=name)


def _turns(axes: Axes, path: CriticalPath, number: Integers, middle: Floats, window: Window) -> None:
    """Draw lines where the path goes from one row to another."""
    shown = np.flatnonzero((path.end > path.begin) & (number != NOWHERE))
    turns = shown[:-1][(np.diff(number[shown]) != 0) & (path.end[shown[:-1]] == path.begin[shown[1:]])]
    turns = turns[(path.end[turns] >= window[0]) & (path.end[turns] <= window[1])]
    if len(turns) <= MOST_TURNS:
        following = dict(pairwise(shown.tolist()))
        ends = [(path.end[at], middle[number[at]], middle[number[following[at]]]) for at in turns.tolist()]
        lines = LineCollection(
            [[(moment, above), (moment, below)] for moment, above, below in ends], colors="#4D4D4D", linewidths=0.5
        )
        axes.add_collection(lines, autolim=False)


def _kinds(path: CriticalPath, window: Window) -> list[PathBar]:
    seconds = np.bincount(path.kind, _within(path, window), len(path.kinds)).tolist()
    least = LEAST * (window[1] - window[0])
    return [PathBar(kind, s, *kind_paint(kind)[1:]) for kind, s in zip(path.kinds, seconds, strict=True) if s >= least]


def _layers(path: CriticalPath, window: Window) -> list[PathBar]:
    seconds = np.bincount(path.layer, _within(path, window), len(path.layers)).tolist()
    return _greatest({name or "no layer": s for name, s in zip(path.layers, seconds, strict=True)}, window)


def _ranks(path: CriticalPath, window: Window) -> list[PathBar]:
    ranks, number = np.unique(path.rank, return_inverse=True)
    seconds = np.bincount(number, _within(path, window)).tolist()
    names = (_rank_name(path.timeline, rank) for rank in ranks.tolist())
    return _greatest(dict(zip(names, seconds, strict=True)), window)


def _rank_name(timeline: Timeline, rank: int) -> str:
    """Return the name of *rank* with its role, its stage of a pipeline; only the rank if all have one role."""
    roles = {program.role for program in timeline.schedule.programs}
    return f"rank {rank} ({timeline.schedule.program(rank).role})" if len(roles) > 1 else f"rank {rank}"


def _within(path: CriticalPath, window: Window) -> Floats:
    """Return the seconds of each span on the path in *window* (s)."""
    within: Floats = np.clip(path.end, *window) - np.clip(path.begin, *window)
    return within


def _greatest(seconds: Mapping[str, float], window: Window) -> list[PathBar]:
    """Return the largest of *seconds*, and the sum of the others."""
    least = LEAST * (window[1] - window[0])
    top = sorted(((name, s) for name, s in seconds.items() if s > 0), key=lambda item: -item[1])
    parts = [PathBar(name, s, BAR) for name, s in top[:MOST_BARS] if s >= least]
    rest = sum(s for _, s in top[len(parts) :])
    return [*parts, *([PathBar(f"{len(top) - len(parts)} others", rest, REST)] if rest >= least else [])]


def _waterfall(axes: Axes, parts: Sequence[PathBar], window: Window) -> None:
    """Draw a bar for each of *parts*; each begins where the bar above it ends."""
    whole = window[1] - window[0]
    ends = window[0] + np.cumsum([part.seconds for part in parts])
    begins = np.append(window[0], ends[:-1])
    places = np.arange(len(parts))
    axes.barh(places, ends - begins, left=begins, height=0.8, color=[part.fill for part in parts])
    for place, part, begin, end in zip(places.tolist(), parts, begins.tolist(), ends.tolist(), strict=True):
        text = f"{show(part.seconds, 'time', 3)}, {part.seconds / whole:.1%}"
        # right of the bar, or left of it, or within a long one
        right = end < window[0] + 0.8 * whole
        moment = end if right or part.seconds > 0.4 * whole else begin
        axes.annotate(
            text,
            (moment, place),
            (4 if right else -4, 0),
            textcoords="offset points",
            fontsize=8,
            va="center",
            ha="left" if right else "right",
            color=part.ink if moment == end and not right else "black",
        )
    axes.set_yticks(places, [part.name for part in parts])
    axes.set_ylim(len(parts) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
