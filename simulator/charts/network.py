"""The network of a cluster: the use of links over time as curves, and the topology as a picture, with vertices by
kind, links by bandwidth, the busiest coloured.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy import linspace

from clustersim.simulator.analysis import network_traffic
from clustersim.simulator.analysis.network_traffic import CableLoad, cable_load
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.charts.canvas import RIGHT, TITLE, WIDTH, Window, fitting, legend, stacked, time_axis
from clustersim.simulator.charts.rows import shown_window
from clustersim.simulator.charts.topology_layout import SERVERS, Edge, TopologyPicture, Vertex, topology
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.units import show

LINKS = "Link use over time"

MOST_KINDS = 6
"""Kinds of links in one chart at most."""

FILLS = {
    "gpu": "#56B4E9",
    "host": "#CCCCCC",
    "nic": "#E69F00",
    "nvswitch": "#44AA99",
    "pcie_switch": "#DDCC77",
    SERVERS: "#A6CEE3",
}

SWITCH = "#CC79A7"
"""The fill of switches of the fabric."""

IDLE = "#BBBBBB"
"""The colour of links without traffic, or of unknown traffic."""

USES = ListedColormap(colormaps["YlOrRd"](linspace(0.12, 0.95, 256)), "uses")
"""Colours of links from no use to the whole bandwidth."""

TIER = 0.95
"""Inches between tiers."""

LEAST_WIDTH, WIDTH_PER_DECADE = 0.8, 1.3
"""Points of the line of the slowest link, and more for each tenfold bandwidth."""


def links_chart(timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None) -> Figure:
    """Return curves of the mean use and of the fullest link at each moment, by kind of link; *ranks* is ignored."""
    window = shown_window(timeline, window)
    use = dict(list(network_traffic.over_time(timeline, window).items())[:MOST_KINDS])
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


def topology_chart(timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None) -> Figure:
    """Return the picture of the cluster of *timeline*; *ranks* and *window* are ignored.

    Raises `SimulatorError` if the timeline has no cluster.
    """
    if timeline.cluster is None:
        raise SimulatorError("nothing to draw: this timeline was measured, not simulated, and knows no links")
    seen = topology(timeline, timeline.cluster)
    places = vertex_places(seen.vertices)
    entries: list[Artist] = [*_vertex_entries(seen), *_edge_entries(seen)]
    tiers = sorted({vertex.tier for vertex in seen.vertices})
    told = _told(seen)
    columns = round(120 * (WIDTH - 2 * RIGHT))
    figure, (axes,) = stacked([TIER * (len(tiers) + 0.2)], columns, title or "Topology", told, entries, headed=False)
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.6, len(tiers) - 0.4)
    if seen.hottest is not None:
        _scale(figure)
    for edge in seen.edges:
        _draw_edge(axes, edge, seen, places)
    for vertex, (x, y) in zip(seen.vertices, places, strict=True):
        _draw_vertex(axes, vertex, x, y, crowd=sum(other.tier == vertex.tier for other in seen.vertices))
    return figure


def vertex_places(vertices: Sequence[Vertex]) -> list[tuple[float, float]]:
    """Return the place of each vertex: x from 0 to 1 within its tier, in order, and the number of its tier."""
    tiers = sorted({vertex.tier for vertex in vertices})
    order = sorted(range(len(vertices)), key=lambda number: vertices[number].kind == SERVERS)
    members = {tier: [number for number in order if vertices[number].tier == tier] for tier in tiers}
    return [
        ((members[vertex.tier].index(number) + 0.5) / len(members[vertex.tier]), float(tiers.index(vertex.tier)))
        for number, vertex in enumerate(vertices)
    ]


def _draw_vertex(axes: Axes, vertex: Vertex, x: float, y: float, crowd: int) -> None:
    text = vertex.name or f"{vertex.count:,}{' ' if vertex.kind == SERVERS else ' x '}{vertex.kind}"
    if crowd > 12:
        text = text.rpartition(" ")[2]
    box = {"boxstyle": "round,pad=0.35", "facecolor": FILLS.get(vertex.kind, SWITCH), "edgecolor": "#666666"}
    size = 8.0 if crowd <= 16 else 6.5
    axes.text(x, y, text, ha="center", va="center", fontsize=size, bbox=box, zorder=3)


def _draw_edge(axes: Axes, edge: Edge, seen: TopologyPicture, places: Sequence[tuple[float, float]]) -> None:
    """Draw a line, or an arc below the tier if both ends are in one."""
    (x0, y0), (x1, y1) = places[edge.source], places[edge.target]
    look: dict[str, Any] = {
        "color": edge_colour(edge),
        "linewidth": _width(edge, seen),
        "zorder": 1 + (edge.use or 0.0),
    }
    bend = 0.0 if y0 != y1 else 2 * TIER * (0.15 + 0.25 * abs(x1 - x0)) / (abs(x1 - x0) * WIDTH)
    axes.add_patch(
        FancyArrowPatch(
            (x0, y0), (x1, y1), arrowstyle="-", connectionstyle=f"arc3,rad={bend}", shrinkA=0, shrinkB=0, **look
        )
    )


def _width(edge: Edge, seen: TopologyPicture) -> float:
    slowest = min(one.bandwidth for one in seen.edges)
    return LEAST_WIDTH + WIDTH_PER_DECADE * log10(edge.bandwidth / slowest)


def edge_colour(edge: Edge) -> str:
    """Return the colour of the use of *edge*, on one scale for all pictures: from 0 to the whole bandwidth."""
    return to_hex(USES(min(1.0, edge.use))) if edge.use else IDLE


def _scale(figure: Figure) -> None:
    """Draw the scale of colours at the right, below the title, as a bar."""
    height = figure.get_figheight()
    axes = figure.add_axes((1 - 2.3 / WIDTH, 1 - 0.66 / height, 1.9 / WIDTH, 0.1 / height))
    bar = figure.colorbar(ScalarMappable(Normalize(0.0, 1.0), USES), cax=axes, orientation="horizontal")
    bar.set_ticks([0.0, 0.5, 1.0], labels=["0%", "mean use 50%", "100%"])
    bar.ax.tick_params(labelsize=7.5, length=2, pad=1)
    bar.outline.set_visible(False)


def _vertex_entries(seen: TopologyPicture) -> list[Artist]:
    counts: dict[str, int] = {}
    for vertex in seen.vertices:
        counts[vertex.kind] = counts.get(vertex.kind, 0) + vertex.count
    kinds = sorted(counts, key=lambda kind: list(FILLS).index(kind) if kind in FILLS else len(FILLS))
    return [Patch(facecolor=FILLS.get(kind, SWITCH), label=f"{kind} ({counts[kind]:,})") for kind in kinds]


def _edge_entries(seen: TopologyPicture) -> list[Artist]:
    """Return an entry for each kind of link and bandwidth, with the use of the busiest of them."""
    found: dict[tuple[str, float], list[Edge]] = {}
    for edge in seen.edges:
        found.setdefault((edge.kind, edge.bandwidth), []).append(edge)
    entries: list[Artist] = []
    for (kind, bandwidth), edges in found.items():
        top = max(edges, key=lambda edge: edge.use or 0.0)
        use = "" if top.use is None else f", busiest {percent(top.use)}"
        label = f"{kind} {show(bandwidth, 'bandwidth', 3)} (x{sum(edge.count for edge in edges):,}){use}"
        look: dict[str, Any] = {"color": edge_colour(top), "linewidth": max(1.2, _width(top, seen))}
        entries.append(Line2D([], [], label=label, **look))
    return entries


def _told(seen: TopologyPicture) -> str:
    parts = [] if seen.whole else [f"one of {seen.servers:,} nodes, and the fabric by kind"]
    if seen.hottest is not None:
        name, use = seen.hottest
        parts.append(f"busiest: {name}, {percent(use)} of its bandwidth, the mean over the step")
    return "; ".join(parts)
