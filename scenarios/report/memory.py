"""Memory over time: the fullest rank by category, and the first rank of each pipeline stage."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from clustersim.scenarios.report.parts import Chart, PageSection, Part, Text
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.simulator.analysis import memory
from clustersim.simulator.analysis.timeline import Floats
from clustersim.simulator.charts.palette import SERIES_FILLS, categories_in_order, category_fill
from clustersim.simulator.charts.pipeline import pipeline_ranks
from clustersim.simulator.charts.rows import evenly

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
