"""Gantt charts: a row for each class of equal ranks and stream, or for each stage of a pipeline; of one timeline, or
of several one above the other on one time axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from clustersim.simulator.analysis.timeline import Floats, Timeline
from clustersim.simulator.charts.canvas import (
    DPI,
    HATCH,
    PIXELS,
    VIRTUAL_HATCHES,
    Window,
    columns_beside,
    patch,
    stacked,
    time_axis,
    virtual_hatch,
    virtual_patch,
)
from clustersim.simulator.charts.palette import WAIT, Paint, in_order
from clustersim.simulator.charts.pipeline import pipeline_rows
from clustersim.simulator.charts.rank_groups import groups
from clustersim.simulator.charts.rows import ChartRow, Shown, chosen, evenly, rows, shown, shown_window
from clustersim.simulator.charts.short_ops import Drawn, Period, Shades, colours, drawn, steady_period
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.units import show

COMPUTE_HEIGHT, OTHER_HEIGHT, GAP = 1.0, 0.62, 0.3
"""Of rows and between ranks; the unit is the height of a row that computes."""

LEAST_TEXT = 14
"""Pixels that a line of text needs."""

LEAST_SHARE = 1 / 256
"""Of a column of pixels; what has less changes no colour, and is not in the legend."""

LEAST_ROW = 1 / 16
"""Of a column of pixels; a stream that nowhere has so much looks empty, and has no row."""

LONGEST_PERIOD = 0.5
"""Share of the step that a period has at most, to show more than the step itself."""

PERIOD_RANKS = 4
"""Ranks of which a period is shown."""

MARK = "#D55E00"
"""The colour of the mark of a period."""

MERGED = "what is narrower than 3 pixels is merged into shades"

Picture = Sequence[tuple[list[Drawn], Shades]]
"""What is drawn of each row."""

MOST_RANKS = 8
"""Ranks of each timeline that are shown by default, so that both are legible."""

MOST_PANELS = 8
"""Timelines in one figure."""

Rows = Callable[[Timeline, Sequence[int] | None, Window], tuple[list[ChartRow], str]]


def timeline_chart(timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None) -> Figure:
    """A row for each class of equal ranks, or each of *ranks*, and stream.

    Of a step whose ops are too short to be seen, a panel below shows one period of the steady state, which is marked
    above, unless a *window* is given.
    """
    whole = shown_window(timeline, window)
    chart, told = timeline_rows(timeline, ranks, whole)
    if window is None and (period := _unseen(timeline, chart, whole)) is not None:
        return _with_period(timeline, chart, whole, period, title or "Timeline", told)
    return panels_chart({"": chart}, whole, title or "Timeline", told)


def _unseen(timeline: Timeline, chart: Sequence[ChartRow], window: Window) -> Period | None:
    """Return one period of the steady state if most of the work in *chart* is drawn as shades, and there is one."""
    columns = columns_beside(row_names(chart))
    pictures = [drawn(row.boxes, window, columns) for row in chart if row.computes]
    shaded = sum(float((1.0 - _waits(shades)).sum()) for _, shades in pictures)
    boxes = sum(
        float((one.boxes.end - one.boxes.begin).sum())
        for wide, _ in pictures
        for one in wide
        if one.boxes.paint != WAIT
    )
    if shaded * (window[1] - window[0]) / columns <= boxes:
        return None
    period = steady_period(timeline, list(dict.fromkeys(row.rank for row in chart if row.computes)))
    return None if period is None or period.end - period.begin > LONGEST_PERIOD * (window[1] - window[0]) else period


def _waits(shades: Shades) -> Floats:
    """Return the share of each column of *shades* in which nothing works."""
    works = np.array([paint != WAIT for paint in shades.paints], np.bool_)
    return np.asarray(1.0 - shades.shares[works].sum(axis=0), np.float64)


def _with_period(
    timeline: Timeline, chart: Sequence[ChartRow], whole: Window, period: Period, title: str, told: str
) -> Figure:
    """Return *chart* of the *whole* time and below it the *period*, of a few of its ranks."""
    names = list(dict.fromkeys((row.rank, row.name) for row in chart))
    ranks = list(dict.fromkeys([*evenly([rank for rank, _ in names], PERIOD_RANKS - 1), period.rank]))
    kept = [Shown(rank, name) for rank, name in names if rank in ranks]
    window = period.begin, period.end
    below = [row for row in rows(timeline, kept, window) if row.computes or _works(row, window)]
    some = f", {len(kept)} of {len(names)} rows" if len(kept) < len(names) else ""
    place = " to ".join(show(moment, "time", 5) for moment in window)
    above = f"the whole step; marked: one period of its steady state, {period.what}"
    heads = {above: (chart, whole), f"{period.what}: {place}{some}": (below, window)}
    columns = columns_beside(name for part, _ in heads.values() for name in row_names(part))
    pictures = [[drawn(row.boxes, within, columns) for row in part] for part, within in heads.values()]
    every = [row for picture in pictures for row in picture]
    told = "; ".join(filter(None, (told, MERGED)))
    heights = [max(0.8, height_of(part)) for part, _ in heads.values()]
    figure, panels = stacked(heights, columns, title, told, entries(every), headed=True, one_axis=False)
    for axes, (head, (part, within)), picture in zip(panels, heads.items(), pictures, strict=True):
        draw_rows(axes, part, picture, within)
        axes.set_title(head, loc="left", fontsize=9.5)
        time_axis(axes, within)
    for moment in window:
        panels[0].axvline(moment, color=MARK, linewidth=1.0, zorder=6)
    panels[0].axvspan(*window, color=MARK, alpha=0.18, linewidth=0, zorder=5)
    return figure


def timeline_rows(timeline: Timeline, ranks: Sequence[int] | None, window: Window) -> tuple[list[ChartRow], str]:
    """Return the rows of a timeline chart within *window* (s), and a note of what is left out.

    Ranks that differ by less than half a pixel share their rows.
    """
    half = (window[1] - window[0]) / PIXELS / 2
    seen, told = shown(timeline, ranks, join=lambda classes: groups(timeline, classes, half))
    every = rows(timeline, seen, window)
    chart = [row for row in every if row.computes or _works(row, window)] or every
    empty = f"{len(every) - len(chart)} streams with only ops too short to see are left out"
    return chart, "; ".join(filter(None, (told, empty if len(chart) < len(every) else "")))


def _works(row: ChartRow, window: Window) -> bool:
    """Return whether an op of *row* can be seen, not only a wait for one."""
    wide, shades = drawn(row.boxes, window, round(PIXELS))
    return _seen(shades, LEAST_ROW) or any(one.boxes.paint != WAIT for one in wide)


def _seen(shades: Shades, least: float = LEAST_SHARE) -> bool:
    """Return whether work has a share of *least* in any column of *shades*."""
    parts = zip(shades.paints, shades.shares, strict=True)
    return any(paint != WAIT and share.max(initial=0.0) >= least for paint, share in parts)


def pipeline_chart(timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None) -> Figure:
    """A row for each stage of the pipeline, with boxes numbered by micro-batch, and hatched by virtual stage."""
    window = shown_window(timeline, window)
    chart, told = pipeline_rows(timeline, ranks, window)
    return panels_chart({"": chart}, window, title or "Pipeline", told)


PANELS: dict[str, Rows] = {"timeline": timeline_rows, "pipeline": pipeline_rows}
"""The charts that can show several timelines in one figure."""


def panels_chart(charts: Mapping[str, Sequence[ChartRow]], window: Window, title: str, told: str = "") -> Figure:
    """Return a figure with a panel for each of *charts*, by name, one below the other on one axis, *window* (s)."""
    columns = columns_beside(name for chart in charts.values() for name in row_names(chart))
    pictures = [[drawn(row.boxes, window, columns) for row in chart] for chart in charts.values()]
    whole = [row for picture in pictures for row in picture]
    told = "; ".join(filter(None, (told, MERGED if _shaded(whole) else "")))
    heights = [max(0.8, height_of(chart)) for chart in charts.values()]
    figure, panels = stacked(heights, columns, title, told, entries(whole), headed=any(charts))
    for axes, (name, chart), picture in zip(panels, charts.items(), pictures, strict=True):
        draw_rows(axes, chart, picture, window)
        axes.set_title(name, loc="left", fontsize=9.5)
    time_axis(panels[-1], window)
    return figure


def beside_chart(timelines: Mapping[str, Timeline], ranks: Sequence[int] | None, title: str) -> Figure:
    """Return a chart of *timelines* of one schedule, by name, from 0 to the end of the longest."""
    window = 0.0, max(timeline.makespan for timeline in timelines.values())
    first, *_ = timelines.values()
    seen = chosen(first, ranks, MOST_RANKS)
    told = "" if len(seen) == first.world_size else f"{len(seen)} of {first.world_size:,} ranks"
    named = [Shown(rank, f"rank {rank}") for rank in seen]
    return panels_chart(
        {name: rows(timeline, named, window) for name, timeline in timelines.items()}, window, title, told
    )


def variants_chart(
    timelines: Mapping[str, Timeline], chart: str, ranks: Sequence[int] | None, window: Window | None, title: str
) -> Figure:
    """Return *timelines* of different schedules, by name, as *chart*, one of `PANELS`, on one time axis.

    Raises `SimulatorError` for more than `MOST_PANELS`.
    """
    if len(timelines) > MOST_PANELS:
        raise SimulatorError(f"{len(timelines)} timelines do not fit into one figure; at most {MOST_PANELS} do")
    longest = max(timelines.values(), key=lambda timeline: timeline.makespan)
    window = shown_window(longest, window)
    charts = {}
    for name, timeline in timelines.items():
        seen, told = PANELS[chart](timeline, ranks, window)
        length = f"{name}: {show(timeline.step_time, 'time')}"
        charts["; ".join(filter(None, (length, told)))] = seen
    return panels_chart(charts, window, title)


def _shaded(picture: Picture) -> bool:
    """Return whether shades of work can be seen in *picture*."""
    return any(_seen(shades) for _, shades in picture)


def entries(picture: Picture) -> list[Any]:
    """Return the entries of the legend."""
    paints = [one.boxes.paint for wide, _ in picture for one in wide]
    for _, shades in picture:
        shares = zip(shades.paints, shades.shares.max(axis=1, initial=0.0), strict=True)
        paints += [paint for paint, most in shares if most >= LEAST_SHARE]
    deepest = max((one.boxes.virtual for wide, _ in picture for one in wide), default=0)
    virtual = [virtual_patch(number) for number in range(min(deepest + 1, len(VIRTUAL_HATCHES)))] if deepest else []
    return [patch(paint) for paint in in_order(paints)] + virtual


def height_of(chart: Sequence[ChartRow]) -> float:
    """Return the height of the rows of *chart* in inches."""
    bottoms, heights = _places(chart)
    return float(bottoms[-1] + heights[-1]) * _pitch(bottoms, heights)


def middles(chart: Sequence[ChartRow]) -> Floats:
    """Return the distance in inches of the middle of each row of *chart* from the top."""
    bottoms, heights = _places(chart)
    return bottoms + heights / 2


def draw_rows(axes: Axes, chart: Sequence[ChartRow], picture: Picture, window: Window) -> None:
    """Draw the rows of *chart*, given as *picture*, on *axes* of the height `height_of`."""
    bottoms, heights = _places(chart)
    pitch = _pitch(bottoms, heights)
    _boxes(axes, picture, bottoms, heights)
    _shades(axes, picture, bottoms, heights, window)
    if pitch * DPI > 12:
        _texts(axes, chart, bottoms, heights, window)
    _name_rows(axes, chart, bottoms, heights)
    axes.set_xlim(*window)
    axes.set_ylim(float(bottoms[-1] + heights[-1]) + 0.2, -0.2)


def _places(chart: Sequence[ChartRow]) -> tuple[Floats, Floats]:
    """Return the position of each row from the top, and its height."""
    heights = np.array([COMPUTE_HEIGHT if row.computes else OTHER_HEIGHT for row in chart])
    new_rank = np.array([i > 0 and chart[i].rank != chart[i - 1].rank for i in range(len(chart))])
    return np.cumsum(heights + GAP * new_rank) - heights, heights


def _pitch(bottoms: Floats, heights: Floats) -> float:
    """Return the height of a row of computation in inches."""
    return float(np.clip(10.0 / float(bottoms[-1] + heights[-1]), 0.095, 0.42))


def _boxes(axes: Axes, picture: Picture, bottoms: Floats, heights: Floats) -> None:
    """Draw the wide boxes, a collection for each paint and hatch, with edges or without."""
    parts: dict[tuple[Paint, bool, int], list[Floats]] = {}
    for (wide, _), bottom, height in zip(picture, bottoms, heights, strict=True):
        for boxes, edged in wide:
            corners = _corners(boxes.begin, boxes.end, bottom + 0.04 * height, bottom + 0.96 * height)
            parts.setdefault((boxes.paint, edged, boxes.virtual), []).append(corners)
    # waits first, so that work is drawn over them
    for (paint, edged, virtual), pieces in sorted(parts.items(), key=lambda part: part[0][0] != WAIT):
        look: dict[str, Any] = HATCH if paint == WAIT else {"edgecolor": "white" if edged else "none"}
        if virtual:
            look = {"hatch": virtual_hatch(virtual), "edgecolor": "white"}
        width = 0.5 if edged and paint != WAIT else 0.0
        shapes = PolyCollection(list(np.concatenate(pieces)), facecolors=paint.fill, linewidths=width, **look)
        axes.add_collection(shapes, autolim=False)


def _corners(left: Floats, right: Floats, low: float, high: float) -> Floats:
    """Return the four corners of each box, of shape (n, 4, 2)."""
    below, above = np.full_like(left, low), np.full_like(left, high)
    return np.stack((left, below, left, above, right, above, right, below), axis=1).reshape(-1, 4, 2)


def _shades(axes: Axes, picture: Picture, bottoms: Floats, heights: Floats, window: Window) -> None:
    """Draw the shades of each row over its boxes, as an image."""
    for (_, shades), bottom, height in zip(picture, bottoms, heights, strict=True):
        if len(shades.columns):
            fills = np.array([to_rgb(paint.fill) for paint in shades.paints])
            lines = max(1, round(0.92 * height * _pitch(bottoms, heights) * DPI))
            image = np.zeros((lines, shades.of, 4), np.uint8)
            image[:, shades.columns, :3] = np.rint(255 * colours(shades, fills, lines))
            image[:, shades.columns, 3] = 255
            edges = (*window, bottom + 0.96 * height, bottom + 0.04 * height)
            axes.imshow(image, extent=edges, aspect="auto", interpolation="nearest", zorder=2)


def _texts(
    axes: Axes, chart: Sequence[ChartRow], bottoms: Floats, heights: Floats, window: Window, most: int = 500
) -> None:
    """Write the labels that fit into their boxes, the widest first if there are too many."""
    letter = (window[1] - window[0]) / (PIXELS * 0.85) * 8.0
    fitting = [
        (label, bottom + height / 2)
        for row, bottom, height in zip(chart, bottoms, heights, strict=True)
        for label in row.labels
        if label.end - label.begin > letter * (len(label.text) + 0.5)
    ]
    fitting.sort(key=lambda item: item[0].begin - item[0].end)
    for label, middle in fitting[:most]:
        # the background hides edges between the layers of an action, and the hatch; it stays within the action
        room = (label.end - label.begin) / letter - len(label.text)
        behind = {"facecolor": label.paint.fill, "edgecolor": "none", "pad": min(1.5, 2.0 * room)}
        place = (label.begin + label.end) / 2
        text = axes.text(place, middle, label.text, color=label.paint.ink, fontsize=7.5, bbox=behind, clip_on=True)
        text.set(horizontalalignment="center", verticalalignment="center")


def row_names(chart: Sequence[ChartRow]) -> list[str]:
    """Return the names of the rows of *chart*: rank and stream if there is room, else the rank at its first row.

    If the rank has no name, rows of a pipeline have only that of their stage.
    """
    bottoms, heights = _places(chart)
    firsts = _first_rows(chart)
    if OTHER_HEIGHT * _pitch(bottoms, heights) * DPI >= LEAST_TEXT or not all(row.name for row in chart):
        return [
            f"{row.name}  {row.stream}".strip() if first else row.stream
            for row, first in zip(chart, firsts, strict=True)
        ]
    return [row.name if first else "" for row, first in zip(chart, firsts, strict=True)]


def _first_rows(chart: Sequence[ChartRow]) -> list[bool]:
    """Return for each row whether it is the first of its rank."""
    return [place == 0 or row.rank != chart[place - 1].rank for place, row in enumerate(chart)]


def _name_rows(axes: Axes, chart: Sequence[ChartRow], bottoms: Floats, heights: Floats) -> None:
    """Write the names of the rows that have room, and lines between ranks."""
    middles, firsts = bottoms + heights / 2, np.flatnonzero(_first_rows(chart))
    named = [place for place, name in enumerate(row_names(chart)) if name]
    apart = float(np.diff(middles[named]).min()) * _pitch(bottoms, heights) * DPI if len(named) > 1 else np.inf
    named = named[:: max(1, int(np.ceil(0.9 * LEAST_TEXT / apart)))]
    axes.set_yticks(middles[named], [row_names(chart)[place] for place in named])
    across = [[(0.0, place), (1.0, place)] for place in (bottoms[firsts[1:]] - GAP / 2).tolist()]
    lines = LineCollection(across, colors="#DDDDDD", linewidths=0.5, zorder=0, transform=axes.get_yaxis_transform())
    axes.add_collection(lines, autolim=False)
    axes.tick_params(axis="y", length=0)
