"""A sweep: results over the number in which runs differ, a line for each series and a panel for each quantity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from simulator.analysis.palette import SERIES_FILLS
from simulator.analysis.plot.canvas import DPI, columns_beside, stacked, upright
from simulator.errors import SimulatorError
from simulator.units import UNITS, show

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MOST_SERIES = len(SERIES_FILLS) * len(MARKERS)
WHOLE = 0.8
"""Width of the bars of one name, of the distance between names."""
HEIGHT = 2.6
"""Inches of a panel."""
LOG_FROM = 8.0
"""Greatest value over the least from which an axis is logarithmic."""
MOST_TICKS = 12
MOST_LABELS = 70
"""Labels that stand upright beside one another in the width of a chart."""
UNFIT: dict[str, Any] = {"linestyle": "", "marker": "x", "markersize": 9, "markeredgewidth": 2, "color": "#B00020"}
"""The mark of a run that does not fit in memory."""
BEST: dict[str, Any] = {
    "linestyle": "", "marker": "o", "markersize": 14, "markeredgewidth": 2, "color": "black", "fillstyle": "none"
}  # fmt: skip
"""The mark of the best run."""
DIMENSIONS = {"step time": "time", "time": "time", "busbw": "bandwidth", "MFU": "share"}


class Point(NamedTuple):
    """The *quantities* of a run by name, at *x*. *fits*: it fits in memory. *best*: it is the best of all runs."""

    x: float
    quantities: Mapping[str, float]
    fits: bool = True
    best: bool = False


class Sweep(NamedTuple):
    """The points of each series by name. *x* names x, *dimension* its unit, or *labels* its places 0, 1, 2 ...

    *dimensions* of the quantities: keys of `simulator.units.UNITS`, share, or empty for a plain number.
    """

    x: str
    dimension: str
    series: Mapping[str, Sequence[Point]]
    labels: Sequence[str] = ()
    dimensions: Mapping[str, str] = DIMENSIONS


def sweep_chart(points: Sweep, title: str) -> Figure:
    """Return a panel for each quantity of *points*, over x. Raises `SimulatorError` for fewer than two values of x."""
    every = sorted({point.x for several in points.series.values() for point in several})
    if len(every) < 2:
        raise SimulatorError(f"nothing to draw: {points.x} has one value")
    if len(points.series) > MOST_SERIES:
        raise SimulatorError(f"{len(points.series)} series do not fit into one chart; at most {MOST_SERIES} do")
    all_points = [point for several in points.series.values() for point in several]
    quantities = list(dict.fromkeys(name for point in all_points for name in point.quantities))
    looks = {name: _look(number) for number, name in enumerate(points.series)}
    if points.labels:
        looks = {name: {"color": look["color"]} for name, look in looks.items()}
    bar = WHOLE / len(points.series)
    shape = Patch if points.labels else partial(Line2D, [], [])
    entries: list[Artist] = [shape(label=name, **look) for name, look in looks.items() if name]
    entries += [Line2D([], [], label="does not fit in memory", **UNFIT)] * any(not point.fits for point in all_points)
    entries += [Line2D([], [], label="best", **BEST)] * any(point.best for point in all_points)
    columns = columns_beside(["0" * 12])
    labels = upright(points.labels, columns / DPI / max(1, len(points.labels)))
    figure, panels = stacked([HEIGHT] * len(quantities), columns, title, "", entries, headed=True, labels=labels)
    for axes, quantity in zip(panels, quantities, strict=True):
        heights = []
        for number, (name, several) in enumerate(points.series.items()):
            own = sorted((point for point in several if quantity in point.quantities), key=lambda point: point.x)
            if points.labels:
                # names have no order that a line could follow
                own = [point._replace(x=point.x + (number + 0.5) * bar - WHOLE / 2) for point in own]
                axes.bar(
                    [one.x for one in own], [one.quantities[quantity] for one in own], bar, color=looks[name]["color"]
                )
            else:
                axes.plot([point.x for point in own], [point.quantities[quantity] for point in own], **looks[name])
            _mark(axes, own, quantity)
            heights += [point.quantities[quantity] for point in own]
        _y_axis(axes, quantity, points.dimensions.get(quantity, ""), heights, bars=bool(points.labels))
    _x_axis(panels[-1], points, every)
    panels[-1].tick_params(axis="x", labelrotation=90 if labels else 0)
    return figure


def _mark(axes: Axes, points: Sequence[Point], quantity: str) -> None:
    """Draw over *points* that do not fit, and around the best."""
    for point in points:
        for look in [UNFIT] * (not point.fits) + [BEST] * point.best:
            axes.plot([point.x], [point.quantities[quantity]], zorder=3, clip_on=False, **look)


def _look(number: int) -> dict[str, Any]:
    color = SERIES_FILLS[number % len(SERIES_FILLS)]
    return {"color": color, "marker": MARKERS[(number // len(SERIES_FILLS) + number) % len(MARKERS)]}


def _y_axis(axes: Axes, quantity: str, dimension: str, heights: Sequence[float], *, bars: bool) -> None:
    """Give the y axis its name, grid, scale and ticks; *bars* begin at 0, so their axis is never logarithmic."""
    axes.set_title(quantity, loc="left", fontsize=9.5)
    axes.grid(color="#E4E4E4", linewidth=0.6, axis="y" if bars else "both")
    axes.set_axisbelow(True)
    if not bars and _logarithmic(heights):
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    else:
        axes.set_ylim(0, 1.08 * max(heights) or 1.0)
    if dimension == "share":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    elif dimension:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: show(value, dimension, 3)))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))


def _x_axis(axes: Axes, points: Sweep, every: Sequence[float]) -> None:
    """Give the shared x axis ticks at the values, or at some of many."""
    if not points.labels and _logarithmic(every):
        axes.set_xscale("log")
    shown = every[:: -(-len(every) // (MOST_LABELS if points.labels else MOST_TICKS))]
    axes.set_xticks(shown, [_x_text(x, points) for x in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(points.x)


def _x_text(x: float, points: Sweep) -> str:
    if points.labels:
        return points.labels[int(x)]
    return show(x, points.dimension, 3) if points.dimension in UNITS else f"{x:,.6g}"


def _logarithmic(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) >= LOG_FROM * min(values)
