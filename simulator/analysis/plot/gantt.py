"""Gantt charts: a row for each rank and stream, or for each stage of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from simulator.analysis.palette import WAIT, Paint, in_order
from simulator.analysis.pipeline import pipeline_rows
from simulator.analysis.plot.canvas import (
    DPI,
    HATCH,
    PIXELS,
    VIRTUAL_HATCHES,
    WIDTH,
    Window,
    legend,
    patch,
    time_axis,
    virtual_hatch,
    virtual_patch,
)
from simulator.analysis.rows import Row, chosen, rows, shown_window
from simulator.timeline import Floats, Timeline

COMPUTE_HEIGHT, OTHER_HEIGHT, GAP = 1.0, 0.62, 0.3
"""Of rows and between ranks; the unit is the height of a row that computes."""
LEAST_TEXT = 14
"""Pixels that a line of text needs."""
LEAST_EDGED = 10
"""Pixels of the median box of a row and paint from which boxes have edges; below it edges would hide the boxes."""


def timeline_chart(timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None) -> Figure:
    """A row for each rank and stream."""
    shown, window = chosen(timeline, ranks), shown_window(timeline, window)
    what = "" if len(shown) == timeline.world_size else f" ({len(shown)} of {timeline.world_size:,} ranks)"
    return _gantt(rows(timeline, shown, window), window, (title or "Timeline") + what)


def pipeline_chart(timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None) -> Figure:
    """A row for each stage of the pipeline, with boxes numbered by micro-batch, and hatched by virtual stage."""
    window = shown_window(timeline, window)
    chart = pipeline_rows(timeline, ranks, window)
    return _gantt(chart, window, title or "Pipeline", name=lambda row: row.stream)


def _gantt(chart: Sequence[Row], window: Window, title: str, name: Callable[[Row], str] | None = None) -> Figure:
    figure = Figure(figsize=(WIDTH, max(2.6, height_of(chart) + 1.5)), layout="constrained")
    axes = figure.add_subplot(title=title)
    paints = draw_rows(axes, chart, window, name)
    time_axis(axes, window)
    deepest = max((boxes.virtual for row in chart for boxes in row.boxes), default=0)
    virtual = [virtual_patch(number) for number in range(min(deepest + 1, len(VIRTUAL_HATCHES)))] if deepest else []
    legend(figure, [patch(paint) for paint in in_order(paints)] + virtual)
    return figure


def height_of(chart: Sequence[Row]) -> float:
    """Inches that the rows of *chart* take, one below the other."""
    bottoms, heights = _places(chart)
    return float(bottoms[-1] + heights[-1]) * _pitch(bottoms, heights)


def draw_rows(
    axes: Axes, chart: Sequence[Row], window: Window, name: Callable[[Row], str] | None = None
) -> list[Paint]:
    """Draw *chart* on *axes*, which are `height_of` it high; the paints that were used. *name* names a row."""
    bottoms, heights = _places(chart)
    pitch = _pitch(bottoms, heights)
    axes.set_xlim(*window)
    axes.set_ylim(float(bottoms[-1] + heights[-1]) + 0.2, -0.2)
    paints = _boxes(axes, chart, bottoms, heights, window)
    if pitch * DPI > 12:
        _texts(axes, chart, bottoms, heights, window)
    _row_names(axes, chart, bottoms, heights, pitch, name)
    return paints


def _places(chart: Sequence[Row]) -> tuple[Floats, Floats]:
    """Where each row begins, from the top, and how high it is."""
    heights = np.array([COMPUTE_HEIGHT if row.computes else OTHER_HEIGHT for row in chart])
    new_rank = np.array([i > 0 and chart[i].rank != chart[i - 1].rank for i in range(len(chart))])
    return np.cumsum(heights + GAP * new_rank) - heights, heights


def _pitch(bottoms: Floats, heights: Floats) -> float:
    """Inches of a row that computes."""
    return float(np.clip(10.0 / float(bottoms[-1] + heights[-1]), 0.095, 0.42))


def _boxes(axes: Axes, chart: Sequence[Row], bottoms: Floats, heights: Floats, window: Window) -> list[Paint]:
    """Draw the boxes, a collection for each paint and hatch, with edges or without; the paints that were used."""
    wide = (window[1] - window[0]) / PIXELS * LEAST_EDGED
    parts: dict[tuple[Paint, bool, int], list[Floats]] = {}
    for row, bottom, height in zip(chart, bottoms, heights, strict=True):
        for boxes in row.boxes:
            edge = boxes.apart and float(np.median(boxes.end - boxes.begin)) > wide
            corners = _corners(boxes.begin, boxes.end, bottom + 0.04 * height, bottom + 0.96 * height)
            parts.setdefault((boxes.paint, edge, boxes.virtual), []).append(corners)
    # waits first, so that work is drawn over them
    for (paint, edge, virtual), pieces in sorted(parts.items(), key=lambda part: part[0][0] != WAIT):
        look: dict[str, Any] = HATCH if paint == WAIT else {"edgecolor": "white" if edge else "none"}
        if virtual:
            look = {"hatch": virtual_hatch(virtual), "edgecolor": "white"}
        width = 0.5 if edge and paint != WAIT else 0.0
        shapes = PolyCollection(list(np.concatenate(pieces)), facecolors=paint.fill, linewidths=width, **look)
        axes.add_collection(shapes, autolim=False)
    return [paint for paint, *_ in parts]


def _corners(left: Floats, right: Floats, low: float, high: float) -> Floats:
    """The four corners of each box, an array of n x 4 x 2."""
    below, above = np.full_like(left, low), np.full_like(left, high)
    return np.stack((left, below, left, above, right, above, right, below), axis=1).reshape(-1, 4, 2)


def _texts(axes: Axes, chart: Sequence[Row], bottoms: Floats, heights: Floats, window: Window, most: int = 500) -> None:
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
        # the box hides the edges between the layers of one action, and the hatch; it stays inside the action's own
        room = (label.end - label.begin) / letter - len(label.text)
        behind = {"facecolor": label.paint.fill, "edgecolor": "none", "pad": min(1.5, 2.0 * room)}
        place = (label.begin + label.end) / 2
        text = axes.text(place, middle, label.text, color=label.paint.ink, fontsize=7.5, bbox=behind, clip_on=True)
        text.set(horizontalalignment="center", verticalalignment="center")


def _row_names(
    axes: Axes,
    chart: Sequence[Row],
    bottoms: Floats,
    heights: Floats,
    pitch: float,
    name: Callable[[Row], str] | None,
) -> None:
    """Name every row if there is room, else every rank, else every so many ranks."""
    middles = (bottoms + heights / 2).tolist()
    first = [i for i, row in enumerate(chart) if i == 0 or row.rank != chart[i - 1].rank]
    if name is not None:
        axes.set_yticks(middles, [name(row) for row in chart])
    elif OTHER_HEIGHT * pitch * DPI >= LEAST_TEXT:
        axes.set_yticks(
            middles, [f"rank {row.rank}  {row.stream}" if i in first else row.stream for i, row in enumerate(chart)]
        )
    else:
        apart = float(np.diff(bottoms[first]).min()) * pitch * DPI if len(first) > 1 else np.inf
        every = 1 if apart >= 15 else int(np.ceil(15 / apart))
        axes.set_yticks([middles[i] for i in first[::every]], [f"rank {chart[i].rank}" for i in first[::every]])
    for i in first[1:]:
        axes.axhline(bottoms[i] - GAP / 2, color="#DDDDDD", linewidth=0.5, zorder=0)
    axes.tick_params(axis="y", length=0)
