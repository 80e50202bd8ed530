"""Two timelines of one schedule, one above the other on one axis of time: as simulated, as measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from simulator.analysis.palette import in_order
from simulator.analysis.plot.canvas import WIDTH, legend, patch, time_axis
from simulator.analysis.plot.gantt import draw_rows, height_of
from simulator.analysis.rows import chosen, rows
from simulator.timeline import Timeline

MOST_RANKS = 8
"""Shown of each timeline unless ranks are chosen, so that both stay legible."""


def beside_chart(timelines: Mapping[str, Timeline], ranks: Sequence[int] | None, title: str) -> Figure:
    """*timelines* by name, all of the same schedule, from their begin to the end of the longest."""
    window = 0.0, max(timeline.makespan for timeline in timelines.values())
    charts = {name: rows(timeline, chosen(timeline, ranks, MOST_RANKS), window) for name, timeline in timelines.items()}
    heights = [height_of(chart) for chart in charts.values()]
    figure = Figure(figsize=(WIDTH, sum(heights) + 1.0), layout="constrained")
    figure.suptitle(title, fontsize=11.0)
    panels = figure.subplots(len(charts), sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    paints = []
    for axes, (name, chart) in zip(panels, charts.items(), strict=True):
        paints += draw_rows(axes, chart, window)
        axes.set_title(name, loc="left", fontsize=9.5)
    time_axis(panels[-1], window)
    legend(figure, [patch(paint) for paint in in_order(paints)])
    return figure
