"""Several jobs that share a cluster: the timeline with a panel for each job, and the links that several of them use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.charts.canvas import Window, columns_beside, stacked
from clustersim.simulator.charts.gantt import panels_chart, timeline_rows
from clustersim.simulator.charts.palette import SERIES_FILLS

BAR = 0.24
"""Inches for a bar."""

Row = tuple[str, Mapping[str, float]]
"""The label of a bar, and the share of a link's bandwidth that each job uses, by its name."""


def jobs_chart(timeline: Timeline, ranks: Mapping[str, int], window: Window, title: str) -> Figure:
    """Return a panel for each job with the streams of a rank within *window* (s); *ranks*: by the name of the job."""
    charts = {f"{name}, rank {rank}": timeline_rows(timeline, [rank], window)[0] for name, rank in ranks.items()}
    return panels_chart(charts, window, title)


def shared_links_chart(panels: Mapping[str, Sequence[Row]], jobs: Sequence[str], title: str) -> Figure:
    """Return a panel of bars for each of *panels*: the shares of a link's bandwidth that each of *jobs* uses, stacked.

    A bar beyond the line at 100 % is more than the link carries.
    """
    fills = {name: SERIES_FILLS[number % len(SERIES_FILLS)] for number, name in enumerate(jobs)}
    sharing = {name for rows in panels.values() for _, shares in rows for name in shares}
    entries = [Patch(facecolor=fill, label=name) for name, fill in fills.items() if name in sharing]
    columns = columns_beside(label for rows in panels.values() for label, _ in rows)
    heights = [max(0.6, BAR * len(rows)) for rows in panels.values()]
    told = "share of the bandwidth that each job uses, on the mean of its step: alone, and beside the others"
    figure, every = stacked(heights, columns, title, told, entries, headed=True)
    most = max(sum(shares.values()) for rows in panels.values() for _, shares in rows)
    for axes, (head, rows) in zip(every, panels.items(), strict=True):
        axes.set_title(head, loc="left")
        left = np.zeros(len(rows))
        for name, fill in fills.items():
            share = np.array([shares.get(name, 0.0) for _, shares in rows])
            axes.barh(np.arange(len(rows)), share, left=left, height=0.72, color=fill, edgecolor="white", linewidth=0.5)
            left += share
        axes.axvline(1.0, color="#4D4D4D", linewidth=0.8, linestyle="--")
        axes.set_yticks(np.arange(len(rows)), [label for label, _ in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, max(1.0, most) * 1.05)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("share of bandwidth")
    return figure
