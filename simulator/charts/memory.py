"""Memory of GPUs against their capacity: over time, of the fullest rank by category and of the stages of a pipeline;
and the peaks of several runs as stacked bars, the bars of ZeRO.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from clustersim.simulator.analysis import memory
from clustersim.simulator.analysis.timeline import Floats, Timeline
from clustersim.simulator.charts.canvas import PIXELS, TITLE, WIDTH, Window, columns_beside, fitting, stacked, time_axis
from clustersim.simulator.charts.palette import categories_in_order, category_fill
from clustersim.simulator.charts.pipeline import pipeline_ranks
from clustersim.simulator.charts.rows import evenly, shown_window
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.units import show

MOST_CURVES = 10
"""Curves of ranks in one chart at most."""

FEW_CURVES = 4
"""Curves up to which the first are wider, so that equal curves are all seen."""

BINS = 1000
"""Bins of time in a chart of memory, about one per pixel: a chart is some 1,100 pixels wide."""

FAR = 2.5
"""If the capacity is more than so many times the peak, the chart states it as text, so that curves are not flat."""

RED, RESERVED_FILL = "#C00000", "#DDDDDD"
"""The colour of what does not fit, and of reserved memory."""

MEMORY = "Memory over time"

Reserved = Callable[[int], float]
"""The bytes that the process of a rank holds on its GPU beyond the tensors of the schedule."""

STATES = "Peak memory of the fullest GPU"

CAPACITY = "#D55E00"

ROOM = 1.28
"""Length of the axis against the longest bar: room for the sum, and for what does not fit."""


class _Full(NamedTuple):
    """The fullest rank: bytes of tensors, reserved bytes, and the capacity of its GPU; infinite if not known."""

    tensors: float
    reserved: float
    capacity: float

    @property
    def fits(self) -> bool:
        return self.tensors + self.reserved <= self.capacity


def memory_chart(
    timeline: Timeline,
    ranks: Sequence[int] | None,
    window: Window | None,
    title: str | None,
    reserved: Reserved = lambda _: 0.0,
) -> Figure:
    """The fullest rank by category, and below the first rank of each pipeline stage, or *ranks*.

    Raises `SimulatorError` if nothing holds memory.
    """
    window = shown_window(timeline, window)
    top = memory.peak(timeline).peak
    if not top.nbytes:
        raise SimulatorError("nothing is held in memory; a chart of memory needs parameters or activations with a size")
    every = pipeline_ranks(timeline, ranks)
    some = evenly(every, MOST_CURVES)
    count = 2 if ranks or len(some) > 1 else 1
    figure = Figure(figsize=(WIDTH, 0.9 + 2.7 * count), layout="constrained")
    figure.suptitle(title or MEMORY, fontsize=fitting(title or MEMORY, TITLE))
    panels = np.atleast_1d(figure.subplots(count, sharex=True))
    full = _Full(top.nbytes, reserved(top.rank), _capacity(timeline, top.rank))
    _fullest(panels[0], timeline, top, every, window, full)
    if count == 2:
        _lines(panels[1], timeline, some, np.linspace(*window, BINS + 1), "rank" if ranks else "stage", reserved)
        text = "by rank" if ranks else "by pipeline stage, the first rank of each"
        panels[1].set_title(text + ("" if len(some) == len(every) else f"; {len(some)} of {len(every)}"))
    for axes in panels:
        _against_capacity(axes, full)
        axes.set_title(axes.get_title(), fontsize=9, loc="left")
        axes.set_title("", loc="center")
        axes.set_ylim(0, None)
        axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: show(nbytes, "size", 3)))
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)
    panels[0].set_xlim(*window)
    time_axis(panels[-1], window)
    return figure


def _fullest(
    axes: Axes, timeline: Timeline, top: memory.Peak, every: Sequence[int], window: Window, full: _Full
) -> None:
    """Draw the categories of the fullest rank, or of the first kept one if its spans were not kept."""
    kept = int(timeline.representative[top.rank]) in timeline.columns
    held = memory.curve(timeline, top.rank if kept else every[0])
    most = f"{show(top.nbytes, 'size', 3)} at {show(top.time, 'time', 3)}"
    if full.reserved:
        most += f", and {show(full.reserved, 'size', 3)} reserved"
    not_kept = f"rank {every[0]}; the fullest, rank {top.rank}, whose spans were not kept, has {most}"
    text = f"rank {top.rank}, the fullest: {most}" if kept else not_kept
    axes.set_title(text + ("; each pixel shows its fullest moment" if len(held.times) > BINS else ""))
    _stacked(axes, held.highest(np.linspace(*window, BINS + 1)), window, full.reserved)


def _stacked(axes: Axes, held: memory.Curve, window: Window, reserved: float) -> None:
    """The categories of *held* one on top of the other, in the same order in every chart; below, *reserved* bytes."""
    below = np.full(len(held.times), reserved)
    edges = np.append(held.times, window[1])
    if reserved:
        axes.stairs(below, edges, fill=True, color=RESERVED_FILL, label="reserved")
    for category in categories_in_order(held.by_category):
        nbytes = held.by_category[category]
        if nbytes.any():
            axes.stairs(below + nbytes, edges, baseline=below, fill=True, color=category_fill(category), label=category)
        below = below + nbytes


def _lines(axes: Axes, timeline: Timeline, shown: Sequence[int], edges: Floats, of: str, reserved: Reserved) -> None:
    """The memory of each of *shown*, named by its rank or its stage."""
    for number, rank in enumerate(shown):
        held = memory.curve(timeline, rank).highest(edges)
        name = rank if of == "rank" else memory.stage_of(timeline.schedule, rank)
        shade = colormaps["viridis"](0.9 * number / max(1, len(shown) - 1))
        steps = np.append(held.times, edges[-1])
        width = 1.2 + (0.6 * (len(shown) - number - 1) if len(shown) <= FEW_CURVES else 0.0)
        total = held.total + reserved(rank)
        axes.stairs(total, steps, baseline=None, linewidth=width, color=shade, label=f"{of} {name}")


def _capacity(timeline: Timeline, rank: int) -> float:
    """Return the memory of the GPU of *rank*; infinite if it is not known."""
    if timeline.cluster is None or not timeline.devices:
        return float("inf")
    return timeline.cluster.accelerator(timeline.devices[rank]).memory_bytes


def _against_capacity(axes: Axes, full: _Full) -> None:
    """Draw the capacity as a line, or state it where it is `FAR` away; say where memory does not suffice."""
    if not isfinite(full.capacity):
        return
    text = axes.get_title()
    if full.capacity > FAR * (full.tensors + full.reserved):
        axes.set_title(f"{text}; capacity {show(full.capacity, 'size', 3)}, above the chart")
        return
    axes.axhline(full.capacity, color="#D55E00", linestyle="--", linewidth=1.2, label="capacity")
    if not full.fits:
        needs = show(full.tensors + full.reserved, "size", 3)
        told = f"DOES NOT FIT: needs {needs} of {show(full.capacity, 'size', 3)}"
        axes.set_title(told, fontsize=9, loc="right", color=RED, fontweight="bold")


class PeakMemory(NamedTuple):
    """The bytes of the fullest GPU at its peak *by_category*, and its *capacity*; infinite if not known."""

    by_category: Mapping[str, float]
    capacity: float = inf

    @property
    def nbytes(self) -> float:
        """The bytes of all categories."""
        return sum(self.by_category.values())


def states_chart(several: Mapping[str, PeakMemory], title: str | None) -> Figure:
    """Return a bar for each of *several*, by name, with its sum; red if it does not fit.

    The category ``reserved`` is what a process holds beyond tensors. Raises `SimulatorError` if nothing holds memory.
    """
    longest = max((held.nbytes for held in several.values()), default=0.0)
    if not longest:
        raise SimulatorError("nothing to draw: no op holds memory")
    named = dict.fromkeys(name for held in several.values() for name in held.by_category)
    least = 0.5 * longest / PIXELS
    seen = {n for n in named if any(held.by_category.get(n, 0.0) > least for held in several.values())}
    names = categories_in_order(seen - {"reserved"}) + (["reserved"] if "reserved" in seen else [])
    near = {name: held.capacity for name, held in several.items() if held.capacity <= FAR * longest}
    entries: list[Patch | Line2D] = [Patch(facecolor=_fill(name), label=name) for name in names]
    entries += [Line2D([], [], color=CAPACITY, linestyle="--", label="capacity of the GPU")] if near else []
    height = max(0.8, min(0.42, 12.0 / len(several)) * len(several))
    told = _told([held.capacity for held in several.values()])
    figure, (axes,) = stacked([height], columns_beside(several), title or STATES, told, entries, headed=False)
    left, places = np.zeros(len(several)), np.arange(len(several))
    for name in names:
        nbytes = np.array([held.by_category.get(name, 0.0) for held in several.values()])
        axes.barh(places, nbytes, left=left, height=0.72, color=_fill(name), edgecolor="white", linewidth=0.5)
        left += nbytes
    reach = max([longest, *near.values()])
    for place, (name, held) in enumerate(several.items()):
        if name in near:
            axes.vlines(held.capacity, place - 0.46, place + 0.46, color=CAPACITY, linestyle="--", linewidth=1.4)
        fits = held.nbytes <= held.capacity
        text = show(held.nbytes, "size", 3) + ("" if fits else "  DOES NOT FIT")
        look: dict[str, Any] = {"color": "black"} if fits else {"color": RED, "fontweight": "bold"}
        axes.text(held.nbytes + reach * 0.008, place, text, fontsize=8.5, va="center", **look)
    axes.set_yticks(places, list(several))
    axes.set_ylim(len(several) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, max(longest * ROOM, reach * 1.06))
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: show(nbytes, "size", 3)))
    axes.set_xlabel("memory at the peak of the fullest GPU")
    return figure


def _fill(name: str) -> str:
    return RESERVED_FILL if name == "reserved" else category_fill(name)


def _told(capacities: list[float]) -> str:
    known = sorted({capacity for capacity in capacities if isfinite(capacity)})
    return f"capacity {' and '.join(show(capacity, 'size', 3) for capacity in known)}" if known else ""
