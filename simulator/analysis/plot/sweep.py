"""A sweep: results over the number in which runs differ, a line for each series and a panel for each quantity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from simulator.analysis.palette import SERIES_FILLS
from simulator.analysis.plot.canvas import columns_beside, stacked
from simulator.errors import SimulatorError
from simulator.units import show

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MOST_SERIES = len(SERIES_FILLS) * len(MARKERS)
HEIGHT = 2.6
"""Inches of a panel."""
LOG_FROM = 8.0
"""Greatest value over the least from which an axis is logarithmic."""
MOST_TICKS = 12
DIMENSIONS = {"step time": "time", "time": "time", "busbw": "bandwidth", "MFU": "share"}


class Sweep(NamedTuple):
    """For each series by name its points: x, and the quantities there by name. *x* names x, *dimension* its unit."""

    x: str
    dimension: str
    series: Mapping[str, Sequence[tuple[float, Mapping[str, float]]]]


def sweep_chart(points: Sweep, title: str) -> Figure:
    """Return a panel for each quantity of *points*, over x. Raises `SimulatorError` for fewer than two values of x."""
    every = sorted({x for several in points.series.values() for x, _ in several})
    if len(every) < 2:
        raise SimulatorError(f"nothing to draw: {points.x} has one value")
    if len(points.series) > MOST_SERIES:
        raise SimulatorError(f"{len(points.series)} series do not fit into one chart; at most {MOST_SERIES} do")
    quantities = list(dict.fromkeys(name for several in points.series.values() for _, ys in several for name in ys))
    looks = {name: _look(number) for number, name in enumerate(points.series)}
    entries = [Line2D([], [], label=name, **look) for name, look in looks.items() if name]
    columns = columns_beside(["0" * 12])
    figure, panels = stacked([HEIGHT] * len(quantities), columns, title, "", entries, headed=True)
    for axes, quantity in zip(panels, quantities, strict=True):
        heights = []
        for name, several in points.series.items():
            own = sorted((x, ys[quantity]) for x, ys in several if quantity in ys)
            axes.plot(*zip(*own, strict=True), **looks[name])
            heights += [y for _, y in own]
        _y_axis(axes, quantity, heights)
    _x_axis(panels[-1], points, every)
    return figure


def _look(number: int) -> dict[str, Any]:
    color = SERIES_FILLS[number % len(SERIES_FILLS)]
    return {"color": color, "marker": MARKERS[(number // len(SERIES_FILLS) + number) % len(MARKERS)]}


def _y_axis(axes: Axes, quantity: str, heights: Sequence[float]) -> None:
    dimension = DIMENSIONS.get(quantity, "")
    axes.set_title(quantity, loc="left", fontsize=9.5)
    axes.grid(color="#E4E4E4", linewidth=0.6)
    if _logarithmic(heights):
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    else:
        axes.set_ylim(0, 1.08 * max(heights) or 1.0)
    if dimension == "share":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: show(value, dimension, 3)))


def _x_axis(axes: Axes, points: Sweep, every: Sequence[float]) -> None:
    """Give the shared x axis ticks at the values, or at some of many."""
    if _logarithmic(every):
        axes.set_xscale("log")
    shown = every[:: -(-len(every) // MOST_TICKS)]
    axes.set_xticks(shown, [show(x, points.dimension, 3) if points.dimension else f"{x:,.6g}" for x in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(points.x)


def _logarithmic(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) >= LOG_FROM * min(values)
