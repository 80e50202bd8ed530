"""Links: bytes and use by kind, use over time, and the picture of the topology."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clustersim.scenarios.report.memory import TIME
from clustersim.scenarios.report.parts import Cell, Chart, PageSection, PageTable, Part, Text
from clustersim.simulator.analysis import network_traffic
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.charts.network import FILLS, SWITCH, edge_colour, percent, vertex_places
from clustersim.simulator.charts.topology_layout import Edge, TopologyPicture, Vertex, topology
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.units import show

MOST_NAMED = 12
"""Vertices of a tier up to which each has its name beside it; more have it on hover."""


def topology_chart(timeline: Timeline, cluster: Cluster) -> Chart:
    """Return the picture of *cluster*, on which *timeline* ran; of a large one a server and the rest by kind."""
    seen = topology(timeline, cluster)
    places = vertex_places(seen.vertices)
    hidden: dict[str, Any] = {"visible": False, "fixedrange": True}
    tiers = len({vertex.tier for vertex in seen.vertices})
    layout = {
        "xaxis": {**hidden, "range": [-0.02, 1.02]},
        "yaxis": {**hidden, "range": [-0.6, tiers - 0.4]},
        "hovermode": "closest",
    }
    traces = [*(_line(edge, seen, places) for edge in seen.edges), _middles(seen, places)]
    traces += [_vertices(kind, seen, places) for kind in dict.fromkeys(vertex.kind for vertex in seen.vertices)]
    return Chart(_topology_title(seen), traces, layout, height=140 + 90 * tiers)


def _topology_title(seen: TopologyPicture) -> str:
    parts = ["Topology" if seen.whole else f"Topology: one of {seen.servers:,} nodes, and the fabric by kind"]
    if seen.hottest is not None:
        parts.append(f"busiest {seen.hottest[0]}, {percent(seen.hottest[1])} of the step")
    return "; ".join(parts)


def _line(edge: Edge, seen: TopologyPicture, places: list[tuple[float, float]]) -> dict[str, Any]:
    (x0, y0), (x1, y1) = places[edge.source], places[edge.target]
    line = {"color": edge_colour(edge), "width": 2.0, "shape": "spline"}
    bend = -0.3 if y0 == y1 else 0.0
    points = {"x": [x0, (x0 + x1) / 2, x1], "y": [y0, (y0 + y1) / 2 + bend, y1]}
    return {"type": "scatter", "mode": "lines", "line": line, **points, "hoverinfo": "skip", "showlegend": False}


def _middles(seen: TopologyPicture, places: list[tuple[float, float]]) -> dict[str, Any]:
    """Return invisible points in the middle of the links, which tell what a link is."""
    ends = [(places[edge.source], places[edge.target]) for edge in seen.edges]
    return {
        "type": "scatter",
        "mode": "markers",
        "marker": {"size": 12, "opacity": 0.0},
        "x": [(a[0] + b[0]) / 2 for a, b in ends],
        "y": [(a[1] + b[1]) / 2 - (0.3 if a[1] == b[1] else 0.0) for a, b in ends],
        "text": [_link_text(edge) for edge in seen.edges],
        "hovertemplate": "%{text}<extra></extra>",
        "showlegend": False,
    }


def _link_text(edge: Edge) -> str:
    use = "" if edge.use is None else f", busiest {percent(edge.use)}"
    return f"{edge.count:,} x {edge.kind} {show(edge.bandwidth, 'bandwidth', 3)}{use}"


def _vertices(kind: str, seen: TopologyPicture, places: list[tuple[float, float]]) -> dict[str, Any]:
    mine = [number for number, vertex in enumerate(seen.vertices) if vertex.kind == kind]
    return {
        "type": "scatter",
        "mode": "markers+text" if len(mine) <= MOST_NAMED else "markers",
        "name": kind,
        "marker": {"size": 18, "symbol": "square", "color": FILLS.get(kind, SWITCH), "line": {"width": 1}},
        "x": [places[number][0] for number in mine],
        "y": [places[number][1] for number in mine],
        "text": [_name(seen.vertices[number]) for number in mine],
        "textposition": "top center",
        "hovertemplate": "%{text}<extra></extra>",
    }


def _name(vertex: Vertex) -> str:
    return vertex.name or f"{vertex.count:,} x {vertex.kind}"


MOST_KINDS = 8
"""Kinds of links in the chart at most, the busiest first."""


def links_section(timeline: Timeline) -> PageSection:
    """Return the links of *timeline*: a table by kind, their use over time, and the topology."""
    parts: list[Part] = []
    if timeline.cluster is not None:
        parts.append(_kinds(timeline))
        parts += _over_time(timeline)
        parts.append(topology_chart(timeline, timeline.cluster))
    return PageSection("links", "Links and topology", parts or [Text("This timeline was measured and knows no links.")])


def _kinds(timeline: Timeline) -> PageTable:
    used, nbytes = network_traffic.utilisation(timeline), network_traffic.by_link_kind(timeline)
    rows = [
        [
            Cell(kind),
            Cell(show(sent, "size", 3), sent),
            *(_share(used.get(kind, {}).get(of)) for of in ("mean", "max")),
        ]
        for kind, sent in nbytes.items()
    ]
    return PageTable(["kind of link", "bytes a step", "mean use", "busiest"], rows)


def _share(share: float | None) -> Cell:
    return Cell("-") if share is None else Cell(f"{share:.1%}", share)


def _over_time(timeline: Timeline) -> list[Part]:
    try:
        use = network_traffic.over_time(timeline)
    except SimulatorError as error:
        return [Text(f"No use of links over time: {error}.")]
    return [_curves(dict(list(use.items())[:MOST_KINDS]))]


def _curves(use: Mapping[str, network_traffic.LinkUtilisation]) -> Chart:
    """Return a panel for each kind: the mean of all links, and the fullest link of each moment."""
    traces: list[dict[str, Any]] = []
    height = 1.0 / len(use)
    layout: dict[str, Any] = {
        "xaxis": {**TIME, "anchor": f"y{len(use)}"},
        "annotations": [],
        "legend": {"orientation": "h", "y": 1.08, "yanchor": "bottom"},
    }
    for number, (kind, one) in enumerate(use.items(), 1):
        axis, top = f"y{number}" if number > 1 else "y", 1.0 - (number - 1) * height
        domain = [top - 0.72 * height, top]
        layout[f"yaxis{number}" if number > 1 else "yaxis"] = {
            "domain": domain, "range": [0, 1.05], "tickformat": ".0%", "fixedrange": True,
        }  # fmt: skip
        layout["annotations"].append(_kind_title(kind, top))
        traces.append(_curve("mean of all links of the kind", one.edges, one.mean, axis, "#56B4E9", number == 1))
        if one.link >= 0:
            traces.append(_curve("fullest link", one.edges, one.highest, axis, "#D55E00", number == 1))
    return Chart("Use of links over time, as a share of their bandwidth", traces, layout, 120 + 130 * len(use))


def _kind_title(kind: str, top: float) -> dict[str, Any]:
    place = {"xref": "paper", "yref": "paper", "x": 0.0, "y": top, "xanchor": "left", "yanchor": "bottom"}
    return {"text": kind, "showarrow": False, **place}


def _curve(name: str, edges: Any, share: Any, axis: str, colour: str, first: bool) -> dict[str, Any]:
    values = np.round(share, 5).tolist()
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "legendgroup": name,
        "showlegend": first,
        "line": {"shape": "hv", "width": 1.2, "color": colour},
        "fill": "tozeroy" if name.startswith("mean") else "none",
        "x": edges.tolist(),
        "y": [*values, values[-1]],
        "yaxis": axis,
        "hovertemplate": "%{y:.1%}<extra>%{fullData.name}</extra>",
    }
