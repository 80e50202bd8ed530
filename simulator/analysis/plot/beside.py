"""Several timelines, one above the other on one time axis: simulated and measured, or variants of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure

from simulator.analysis.pipeline import pipeline_rows
from simulator.analysis.plot.canvas import Window
from simulator.analysis.plot.gantt import panels_chart, timeline_rows
from simulator.analysis.rows import Row, Shown, chosen, rows, shown_window
from simulator.errors import SimulatorError
from simulator.timeline import Timeline
from simulator.units import show

MOST_RANKS = 8
"""Ranks of each timeline that are shown by default, so that both are legible."""
MOST_PANELS = 8
"""Timelines in one figure."""

Rows = Callable[[Timeline, Sequence[int] | None, Window], tuple[list[Row], str]]

PANELS: dict[str, Rows] = {"timeline": timeline_rows, "pipeline": pipeline_rows}
"""The charts that can show several timelines in one figure."""


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
