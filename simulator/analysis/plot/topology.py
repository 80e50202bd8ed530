"""The topology of a cluster as a picture: vertices by kind, links by bandwidth, the busiest coloured."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from typing import Any

from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch
from numpy import linspace

from simulator.analysis.network.topology import SERVERS, Edge, Topology, Vertex, topology
from simulator.analysis.plot.canvas import RIGHT, WIDTH, Window, stacked
from simulator.analysis.plot.links import percent
from simulator.errors import SimulatorError
from simulator.timeline import Timeline
from simulator.units import show

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


def _draw_edge(axes: Axes, edge: Edge, seen: Topology, places: Sequence[tuple[float, float]]) -> None:
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


def _width(edge: Edge, seen: Topology) -> float:
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


def _vertex_entries(seen: Topology) -> list[Artist]:
    counts: dict[str, int] = {}
    for vertex in seen.vertices:
        counts[vertex.kind] = counts.get(vertex.kind, 0) + vertex.count
    kinds = sorted(counts, key=lambda kind: list(FILLS).index(kind) if kind in FILLS else len(FILLS))
    return [Patch(facecolor=FILLS.get(kind, SWITCH), label=f"{kind} ({counts[kind]:,})") for kind in kinds]


def _edge_entries(seen: Topology) -> list[Artist]:
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


def _told(seen: Topology) -> str:
    parts = [] if seen.whole else [f"one of {seen.servers:,} nodes, and the fabric by kind"]
    if seen.hottest is not None:
        name, use = seen.hottest
        parts.append(f"busiest: {name}, {percent(use)} of its bandwidth, the mean over the step")
    return "; ".join(parts)
