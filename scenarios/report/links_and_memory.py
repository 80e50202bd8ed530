"""Links: bytes and use by kind, use over time, and the picture of the topology. Memory over time: the fullest rank by
category, and the first rank of each pipeline stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

from clustersim.scenarios.report.parts import Cell, Chart, PageSection, PageTable, Part, Text
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.simulator.analysis import memory, network_traffic
from clustersim.simulator.analysis.timeline import Floats, Timeline
from clustersim.simulator.charts.network import FILLS, SWITCH, edge_colour, percent, vertex_places
from clustersim.simulator.charts.palette import SERIES_FILLS, categories_in_order, category_fill
from clustersim.simulator.charts.pipeline import pipeline_ranks
from clustersim.simulator.charts.rows import evenly
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


BINS = 1000
"""Bins of time, about one for each pixel; each shows its fullest moment."""
MOST_STAGES = 16
"""Curves in the chart of stages at most, evenly spread."""
AXIS = {"title": {"text": "memory of a GPU"}, "ticksuffix": "B", "tickformat": "~s", "rangemode": "tozero"}
TIME = {"title": {"text": "time"}, "ticksuffix": "s", "tickformat": "~s"}


def memory_section(result: StepNumbers) -> PageSection:
    """Return the memory of *result* over time."""
    timeline, top = result.timeline, result.memory.peak
    title = "Memory over time"
    if not top.nbytes or not timeline.makespan:
        return PageSection("memory", title, [Text("Nothing of this run is held in memory.")])
    edges = np.linspace(0.0, timeline.makespan, BINS + 1)
    every = pipeline_ranks(timeline)
    rank = top.rank if int(timeline.representative[top.rank]) in timeline.columns else every[0]
    parts: list[Part] = [Text(f"Rank {top.rank} is the fullest: {result.need}.")]
    if rank != top.rank:
        parts.append(Text(f"Its spans were not kept; the chart shows rank {rank}."))
    held = memory.curve(timeline, rank).highest(edges)
    parts.append(_by_category(rank, held, sum(result.reserved.values()), result.capacity, edges[-1]))
    if len(every) > 1:
        parts.append(_by_stage(result, evenly(every, MOST_STAGES), edges))
    return PageSection("memory", title, parts)


def _by_category(rank: int, held: memory.Curve, reserved: float, capacity: float, end: float) -> Chart:
    """Return the categories of *held* one on top of the other, over *reserved* bytes, and the *capacity*."""
    times = [*held.times.tolist(), end]
    layers = {"reserved": ("#DDDDDD", np.full(len(held.times), reserved))} if reserved else {}
    for name in categories_in_order(held.by_category):
        if held.by_category[name].any():
            layers[name] = category_fill(name), held.by_category[name]
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "memory",
            "line": {"shape": "hv", "width": 0, "color": fill},
            "fillcolor": fill,
            "name": name,
            "x": times,
            "y": _rounded(nbytes),
            "hovertemplate": "%{y:.4~s}B",
        }
        for name, (fill, nbytes) in layers.items()
    ]
    if isfinite(capacity):
        line = {"color": "#D55E00", "dash": "dash"}
        ends = {"x": [0.0, end], "y": [capacity, capacity], "hovertemplate": "%{y:.4~s}B"}
        traces.append({"type": "scatter", "mode": "lines", "name": "capacity", "line": line, **ends})
    layout = {"xaxis": TIME, "yaxis": AXIS, "hovermode": "x unified"}
    return Chart(f"Memory of rank {rank} by category", traces, layout)


def _by_stage(result: StepNumbers, ranks: list[int], edges: Floats) -> Chart:
    """Return a curve of the tensors of each of *ranks*, the first of its stage."""
    timeline, traces = result.timeline, []
    for number, rank in enumerate(ranks):
        held = memory.curve(timeline, rank).highest(edges)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"stage {memory.stage_of(timeline.schedule, rank)}",
                "line": {"shape": "hv", "color": SERIES_FILLS[number % len(SERIES_FILLS)], "width": 1.5},
                "x": [*held.times.tolist(), float(edges[-1])],
                "y": _rounded(held.total),
                "hovertemplate": "%{y:.4~s}B",
            }
        )
    return Chart("Tensors by pipeline stage, the first rank of each", traces, {"xaxis": TIME, "yaxis": AXIS})


def _rounded(nbytes: Floats) -> list[float]:
    """Return *nbytes* as whole numbers, the last one twice: the curve goes on to the end."""
    values = np.rint(nbytes).tolist()
    return [*values, values[-1]]
