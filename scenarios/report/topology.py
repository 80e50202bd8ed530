"""The picture of the topology: vertices by tier, links coloured by their use."""

from __future__ import annotations

from typing import Any

from scenarios.report.parts import Chart
from simulator.analysis.network.topology import Edge, Topology, Vertex, topology
from simulator.analysis.plot.links import percent
from simulator.analysis.plot.topology import FILLS, SWITCH, edge_colour, vertex_places
from simulator.cluster import Cluster
from simulator.timeline import Timeline
from simulator.units import show

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
    return Chart(_title(seen), traces, layout, height=140 + 90 * tiers)


def _title(seen: Topology) -> str:
    parts = ["Topology" if seen.whole else f"Topology: one of {seen.servers:,} nodes, and the fabric by kind"]
    if seen.hottest is not None:
        parts.append(f"busiest {seen.hottest[0]}, {percent(seen.hottest[1])} of the step")
    return "; ".join(parts)


def _line(edge: Edge, seen: Topology, places: list[tuple[float, float]]) -> dict[str, Any]:
    (x0, y0), (x1, y1) = places[edge.source], places[edge.target]
    line = {"color": edge_colour(edge), "width": 2.0, "shape": "spline"}
    bend = -0.3 if y0 == y1 else 0.0
    points = {"x": [x0, (x0 + x1) / 2, x1], "y": [y0, (y0 + y1) / 2 + bend, y1]}
    return {"type": "scatter", "mode": "lines", "line": line, **points, "hoverinfo": "skip", "showlegend": False}


def _middles(seen: Topology, places: list[tuple[float, float]]) -> dict[str, Any]:
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


def _vertices(kind: str, seen: Topology, places: list[tuple[float, float]]) -> dict[str, Any]:
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
