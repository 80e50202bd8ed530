"""The timeline of several jobs that share a cluster: a panel for each job, all on one axis of time."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.charts.canvas import Window
from clustersim.simulator.charts.gantt import panels_chart, timeline_rows


def jobs_chart(timeline: Timeline, ranks: Mapping[str, int], window: Window, title: str) -> Figure:
    """Return a panel for each job with the streams of a rank within *window* (s); *ranks*: by the name of the job."""
    charts = {f"{name}, rank {rank}": timeline_rows(timeline, [rank], window)[0] for name, rank in ranks.items()}
    return panels_chart(charts, window, title)
