"""Curves of the use of links over time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from simulator.analysis.network import traffic
from simulator.analysis.network.cables import CableLoad, cable_load
from simulator.analysis.plot.canvas import TITLE, WIDTH, Window, fitting, legend, time_axis
from simulator.analysis.rows import shown_window
from simulator.timeline import Timeline

LINKS = "Link use over time"
MOST_KINDS = 6
"""Kinds of links in one chart at most."""


def links_chart(timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None) -> Figure:
    """Return curves of the mean use and of the fullest link at each moment, by kind of link; *ranks* is ignored."""
    window = shown_window(timeline, window)
    use = dict(list(traffic.over_time(timeline, window).items())[:MOST_KINDS])
    load = cable_load(timeline)
    rows = len(use) + (load is not None)
    figure = Figure(figsize=(WIDTH, 1.2 + 1.55 * rows), layout="constrained")
    every = np.atleast_1d(figure.subplots(rows))
    panels = every[: len(use)]
    for axes in panels[:-1]:
        axes.sharex(panels[-1])
        axes.tick_params(labelbottom=False)
    figure.suptitle(title or LINKS, fontsize=fitting(title or LINKS, TITLE))
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
            busiest = f"busiest {source} → {target}, {percent(float(one.busiest.mean()))} of the window; "
        axes.set_title(f"{kind}: {busiest}mean {percent(float(one.mean.mean()))}", fontsize=9, loc="left")
    panels[0].set_xlim(*window)
    time_axis(panels[-1], window)
    if load is not None:
        _draw_cables(every[-1], load)
    figure.supylabel("share of bandwidth", fontsize=9)
    legend(figure, [*panels[0].get_legend_handles_labels()[0]])
    return figure


def _draw_cables(axes: Axes, load: CableLoad) -> None:
    """Draw the bytes of each cable over their mean, the fullest cable first."""
    over_mean = load.nbytes / load.nbytes.mean()
    edges = np.arange(len(over_mean) + 1)
    # the outline shows a cable that is narrower than a pixel
    axes.stairs(over_mean, edges, fill=True, color="#009E73", edgecolor="#009E73", linewidth=1.0)
    axes.axhline(1.0, color="#555555", linewidth=0.8, linestyle="--")
    axes.set_xlim(-0.01 * len(over_mean), len(over_mean))
    axes.set_ylim(0, 1.15 * load.over_mean)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.6)
    source, target = load.busiest
    told = f"fullest {source} → {target}, {load.over_mean:.2f} times the mean; {load.count - len(over_mean):,} idle"
    axes.set_title(f"cables between switches: {told}", fontsize=9, loc="left")
    axes.set_xlabel("cables that carry bytes, fullest first", fontsize=9)
    axes.set_ylabel("bytes over mean", fontsize=9)


def percent(share: float) -> str:
    """Return *share* as text; little is not nothing.

    >>> percent(0.437), percent(0.004), percent(2e-9), percent(0.0)
    ('44%', '0.4%', 'under 0.1%', '0%')
    """
    if 0 < share < 1e-3:
        return "under 0.1%"
    return f"{share:.1%}" if 0 < share < 0.01 else f"{share:.0%}"
