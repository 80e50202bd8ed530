"""Timelines of one schedule, one above the other on one time axis: simulated and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from simulator.analysis.plot.canvas import columns_beside, stacked, time_axis
from simulator.analysis.plot.gantt import draw_rows, entries, height_of, row_names
from simulator.analysis.rows import Shown, chosen, rows
from simulator.analysis.shades import drawn
from simulator.timeline import Timeline

MOST_RANKS = 8
"""Ranks of each timeline that are shown by default, so that both are legible."""


def beside_chart(timelines: Mapping[str, Timeline], ranks: Sequence[int] | None, title: str) -> Figure:
    """Return a chart of *timelines* of one schedule, by name, from 0 to the end of the longest."""
    window = 0.0, max(timeline.makespan for timeline in timelines.values())
    first, *_ = timelines.values()
    seen = chosen(first, ranks, MOST_RANKS)
    told = "" if len(seen) == first.world_size else f"{len(seen)} of {first.world_size:,} ranks"
    named = [Shown(rank, f"rank {rank}") for rank in seen]
    charts = {name: rows(timeline, named, window) for name, timeline in timelines.items()}
    columns = columns_beside(name for chart in charts.values() for name in row_names(chart))
    pictures = [[drawn(row.boxes, window, columns) for row in chart] for chart in charts.values()]
    heights = [height_of(chart) for chart in charts.values()]
    paints = entries([row for picture in pictures for row in picture])
    figure, panels = stacked(heights, columns, title, told, paints, headed=True)
    for axes, (name, chart), picture in zip(panels, charts.items(), pictures, strict=True):
        draw_rows(axes, chart, picture, window)
        axes.set_title(name, loc="left", fontsize=9.5)
    time_axis(panels[-1], window)
    return figure
