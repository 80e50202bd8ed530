"""Several jobs that share a cluster: the timeline with a panel for each job and the links that several of them load;
and a queue of jobs: which job holds which node when, how many nodes are held, and how many jobs wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from clustersim.simulator.analysis.timeline import Floats, Timeline
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


LONG_UNITS = ((3 * 86_400.0, 86_400.0, "days"), (3 * 3600.0, 3600.0, "h"), (180.0, 60.0, "min"), (0.0, 1.0, "s"))
"""The window in s from which time is in a unit, the unit in s, and its name."""

NODE, LEAST, MOST = 0.16, 1.2, 6.4
"""Inches of a row for a node, and of the least and the greatest panel of nodes."""

SHORTEST_NAME = 5.5
"""Points of the smallest name of a job within its box."""

HELD, WAITING, BLOCKED = "#0072B2", "#D55E00", "#E4E4E4"


class HeldNodes(NamedTuple):
    """A job called *name*, of a *kind*, that holds *nodes* from *begin* to *end* (s)."""

    name: str
    kind: str
    begin: float
    end: float
    nodes: Sequence[int]


def nodes_chart(jobs: Sequence[HeldNodes], nodes: int, leaves: Sequence[int], window: Window, title: str) -> Figure:
    """Return the *nodes* over time within *window* (s), each coloured by the kind of the job that holds it.

    *leaves*: the number of the first node of each leaf but the first; lines separate them.
    """
    kinds = list(dict.fromkeys(job.kind for job in jobs))
    fills = {kind: SERIES_FILLS[number % len(SERIES_FILLS)] for number, kind in enumerate(kinds)}
    entries = [Patch(facecolor=fill, label=kind) for kind, fill in fills.items()]
    height = min(MOST, max(LEAST, NODE * nodes))
    told = "each node over time, by the kind of the job that holds it; lines separate leaves"
    figure, (axes,) = stacked([height], columns_beside(["0" * 8]), title, told, entries, headed=False)
    shown = [job for job in jobs if job.end > window[0] and job.begin < window[1]]
    boxes = [(job, *run) for job in shown for run in _runs(job.nodes)]
    corners = [[(job.begin, low), (job.end, low), (job.end, high), (job.begin, high)] for job, low, high in boxes]
    colours = [fills[job.kind] for job, _, _ in boxes]
    axes.add_collection(PolyCollection(corners, facecolors=colours, edgecolors="white", linewidths=0.4))
    _names(axes, boxes, window, height / nodes)
    for first in leaves:
        axes.axhline(first - 0.5, color="#4D4D4D", linewidth=0.6)
    axes.set_ylim(nodes - 0.5, -0.5)
    axes.yaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.set_ylabel("node")
    _long_time(axes, window)
    return figure


def _runs(nodes: Sequence[int]) -> list[tuple[float, float]]:
    """Return the edges of each run of neighbouring *nodes*, ascending."""
    ordered = np.sort(np.asarray(nodes))
    parts = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)
    return [(float(part[0]) - 0.5, float(part[-1]) + 0.5) for part in parts]


def _names(axes: Axes, boxes: Sequence[tuple[HeldNodes, float, float]], window: Window, inches: float) -> None:
    """Write the names of jobs into boxes that have room for them; *inches*: the height of a node."""
    width = axes.get_position().width * axes.figure.get_figwidth() / (window[1] - window[0])  # type: ignore[union-attr]
    for job, low, high in boxes:
        begin, end = max(job.begin, window[0]), min(job.end, window[1])
        points = 72 * min((high - low) * inches * 0.8, (end - begin) * width / (0.62 * len(job.name) + 0.6))
        if points >= SHORTEST_NAME:
            size = min(9.0, points)
            place = (begin + end) / 2, (low + high) / 2
            axes.text(*place, job.name, ha="center", va="center", fontsize=size, color="white", clip_on=True)


def queue_chart(times: Floats, held: Floats, waiting: Floats, nodes: int, window: Window, title: str) -> Figure:
    """Return the nodes that are *held* and the jobs that are *waiting* from each of *times* (s) on, within *window*."""
    entries = [
        Patch(facecolor=HELD, label="held nodes"),
        Patch(facecolor=BLOCKED, edgecolor="#999999", hatch="////", label="free while a job waits"),
        Patch(facecolor=WAITING, label="waiting jobs"),
    ]
    figure, (top, bottom) = stacked([2.2, 1.6], columns_beside(["0" * 10]), title, "", entries, headed=True)
    edges = np.append(times, window[1])
    top.set_title(f"nodes that jobs hold, of {nodes:,}", loc="left", fontsize=9.5)
    top.stairs(held, edges, fill=True, color=HELD)
    blocked = np.where(waiting > 0, float(nodes), held)
    top.stairs(
        blocked, edges, baseline=held, fill=True, facecolor=BLOCKED, hatch="////", edgecolor="#999999", linewidth=0
    )
    top.set_ylim(0, nodes * 1.02)
    bottom.set_title("jobs that wait", loc="left", fontsize=9.5)
    bottom.stairs(waiting, edges, fill=True, color=WAITING)
    bottom.set_ylim(0, max(1.0, float(waiting.max(initial=0.0))) * 1.05)
    for axes, name in ((top, "nodes"), (bottom, "jobs")):
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_ylabel(name)
        axes.grid(color="#E4E4E4", linewidth=0.6, axis="y")
        axes.set_axisbelow(True)
    _long_time(bottom, window)
    return figure


def _long_time(axes: Axes, window: Window) -> None:
    """Give the x axis of *axes*, which shows *window* (s), ticks in s, min, h or days."""
    length = window[1] - window[0]
    scale, name = next((scale, name) for least, scale, name in LONG_UNITS if length >= least)
    axes.set_xlim(*window)
    step = MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]).tick_values(window[0] / scale, window[1] / scale)
    axes.set_xticks([tick * scale for tick in step if window[0] <= tick * scale <= window[1]])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda moment, _: f"{moment / scale:.6g}"))
    axes.set_xlabel(f"time ({name})")
