"""Links: bytes and use by kind, use over time, and the picture of the topology."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from scenarios.report.memory import TIME
from scenarios.report.parts import Cell, Chart, Part, Section, Table, Text
from scenarios.report.topology import topology_chart
from simulator.analysis.network import traffic
from simulator.errors import SimulatorError
from simulator.timeline import Timeline
from simulator.units import show

MOST_KINDS = 8
"""Kinds of links in the chart at most, the busiest first."""


def links_section(timeline: Timeline) -> Section:
    """Return the links of *timeline*: a table by kind, their use over time, and the topology."""
    parts: list[Part] = []
    if timeline.cluster is not None:
        parts.append(_kinds(timeline))
        parts += _over_time(timeline)
        parts.append(topology_chart(timeline, timeline.cluster))
    return Section("links", "Links and topology", parts or [Text("This timeline was measured and knows no links.")])


def _kinds(timeline: Timeline) -> Table:
    used, nbytes = traffic.utilisation(timeline), traffic.by_link_kind(timeline)
    rows = [
        [
            Cell(kind),
            Cell(show(sent, "size", 3), sent),
            *(_share(used.get(kind, {}).get(of)) for of in ("mean", "max")),
        ]
        for kind, sent in nbytes.items()
    ]
    return Table(["kind of link", "bytes a step", "mean use", "busiest"], rows)


def _share(share: float | None) -> Cell:
    return Cell("-") if share is None else Cell(f"{share:.1%}", share)


def _over_time(timeline: Timeline) -> list[Part]:
    try:
        use = traffic.over_time(timeline)
    except SimulatorError as error:
        return [Text(f"No use of links over time: {error}.")]
    return [_curves(dict(list(use.items())[:MOST_KINDS]))]


def _curves(use: Mapping[str, traffic.LinkUse]) -> Chart:
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
        layout["annotations"].append(_title(kind, top))
        traces.append(_curve("mean of all links of the kind", one.edges, one.mean, axis, "#56B4E9", number == 1))
        if one.link >= 0:
            traces.append(_curve("fullest link", one.edges, one.highest, axis, "#D55E00", number == 1))
    return Chart("Use of links over time, as a share of their bandwidth", traces, layout, 120 + 130 * len(use))


def _title(kind: str, top: float) -> dict[str, Any]:
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
