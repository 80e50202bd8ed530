"""Curves over time: use of links, and memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from simulator.analysis import memory, traffic
from simulator.analysis.palette import categories_in_order, category_fill
from simulator.analysis.pipeline import pipeline_ranks
from simulator.analysis.plot.canvas import WIDTH, Window, legend, time_axis
from simulator.analysis.rows import shown_window
from simulator.errors import SimulatorError
from simulator.timeline import Floats, Timeline
from simulator.units import show

MOST_KINDS, MOST_CURVES = 6, 10
"""Kinds of links, and curves of ranks, in one chart at most."""
BINS = 1000
"""Bins of time in a chart of memory, about one per pixel: a chart is some 1,100 pixels wide."""
FAR = 2.5
"""If the capacity is more than so many times the peak, the chart states it as text, so that curves are not flat."""


def links_chart(timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None) -> Figure:
    """Return curves of the mean use and of the fullest link at each moment, by kind of link; *ranks* is ignored."""
    window = shown_window(timeline, window)
    use = dict(list(traffic.over_time(timeline, window).items())[:MOST_KINDS])
    figure = Figure(figsize=(WIDTH, 1.2 + 1.55 * len(use)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(len(use), sharex=True))
    figure.suptitle(title or "Link use over time", fontsize=11)
    for axes, (kind, one) in zip(panels, use.items(), strict=True):
        axes.stairs(one.mean, one.edges, fill=True, color="#56B4E9", label="mean of all links of the kind")
        if one.link >= 0:
            axes.stairs(one.highest, one.edges, color="#D55E00", linewidth=0.9, label="fullest link", baseline=None)
        axes.set_ylim(0, 1.08)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_yticks([0, 0.5, 1.0])
        axes.grid(axis="y", color="#E4E4E4", linewidth=0.6)
        busiest = ""
        if timeline.cluster and one.link >= 0:
            source, target = timeline.cluster.ends[one.link]
            busiest = f"busiest {source} → {target}, {one.busiest.mean():.0%} of the window; "
        axes.set_title(f"{kind}: {busiest}mean {one.mean.mean():.0%}", fontsize=9, loc="left")
    panels[0].set_xlim(*window)
    time_axis(panels[-1], window)
    figure.supylabel("share of bandwidth", fontsize=9)
    legend(figure, [*panels[0].get_legend_handles_labels()[0]])
    return figure


def memory_chart(timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None) -> Figure:
    """The fullest rank by category, and below the first rank of each pipeline stage, or *ranks*."""
    window = shown_window(timeline, window)
    top = memory.peak(timeline).peak
    if not top.nbytes:
        raise SimulatorError("nothing is held in memory; a chart of memory needs parameters or activations with a size")
    every = pipeline_ranks(timeline, ranks)
    shown = [every[place] for place in sorted({round(p) for p in np.linspace(0, len(every) - 1, MOST_CURVES)})]
    count = 2 if ranks or len(shown) > 1 else 1
    figure = Figure(figsize=(WIDTH, 0.9 + 2.7 * count), layout="constrained")
    figure.suptitle(title or "Memory over time", fontsize=11)
    panels = np.atleast_1d(figure.subplots(count, sharex=True))
    kept = int(timeline.representative[top.rank]) in timeline.columns
    edges, held = np.linspace(*window, BINS + 1), memory.curve(timeline, top.rank if kept else every[0])
    most = f"{show(top.nbytes, 'size', 3)} at {show(top.time, 'time', 3)}"
    not_kept = f"rank {every[0]}; the fullest, rank {top.rank}, whose spans were not kept, has {most}"
    text = f"rank {top.rank}, the fullest: {most}" if kept else not_kept
    thinned = "; each pixel shows its fullest moment" if len(held.times) > BINS else ""
    panels[0].set_title(text + thinned, fontsize=9, loc="left")
    _stacked(panels[0], held.highest(edges), window[1])
    if count == 2:
        _lines(panels[1], timeline, shown, edges, "rank" if ranks else "stage")
        text = "by rank" if ranks else "by pipeline stage, the first rank of each"
        some = "" if len(shown) == len(every) else f"; {len(shown)} of {len(every)}"
        panels[1].set_title(text + some, fontsize=9, loc="left")
    _capacity(timeline, top, panels)
    for axes in panels:
        axes.set_ylim(0, None)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: show(nbytes, "size", 3)))
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)
    panels[0].set_xlim(*window)
    time_axis(panels[-1], window)
    return figure


def _lines(axes: Axes, timeline: Timeline, shown: Sequence[int], edges: Floats, of: str) -> None:
    """The memory of each of *shown*, named by its rank or its stage."""
    for number, rank in enumerate(shown):
        held = memory.curve(timeline, rank).highest(edges)
        name = rank if of == "rank" else memory.stage_of(timeline.schedule, rank)
        shade = colormaps["viridis"](0.9 * number / max(1, len(shown) - 1))
        steps = np.append(held.times, edges[-1])
        axes.stairs(held.total, steps, baseline=None, linewidth=1.2, color=shade, label=f"{of} {name}")


def _stacked(axes: Axes, held: memory.Curve, end: float) -> None:
    """The categories of *held* one on top of the other, in the same order in every chart."""
    below = np.zeros(len(held.times))
    edges = np.append(held.times, end)
    for category in categories_in_order(held.by_category):
        nbytes = held.by_category[category]
        axes.stairs(below + nbytes, edges, baseline=below, fill=True, color=category_fill(category), label=category)
        below = below + nbytes


def _capacity(timeline: Timeline, top: memory.Peak, panels: Iterable[Axes]) -> None:
    """The capacity of the GPU of the fullest rank: a line, or its value where it is `FAR` away."""
    if timeline.cluster is None or not timeline.devices:
        return
    capacity = timeline.cluster.accelerator(timeline.devices[top.rank]).memory_bytes
    if not np.isfinite(capacity):
        return
    for axes in panels:
        if capacity > FAR * top.nbytes:
            text = f"{axes.get_title(loc='left')}; capacity {show(capacity, 'size', 3)}, above the chart"
            axes.set_title(text, fontsize=9, loc="left")
        else:
            axes.axhline(capacity, color="#D55E00", linestyle="--", linewidth=1.2, label="capacity")
