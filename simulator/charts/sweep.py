"""A sweep: results over the number in which runs differ, a line for each series and a panel for each quantity; or over
two keys as a heat map, the best cell outlined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator, PercentFormatter

from clustersim.simulator.charts.canvas import (
    AXIS,
    DPI,
    LINE,
    TEXT,
    TITLE,
    WIDTH,
    columns_beside,
    fitting,
    stacked,
    text_width,
    upright,
)
from clustersim.simulator.charts.palette import SERIES_FILLS
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.units import UNITS, show

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

COLOURS = "viridis"
"""Perceptually uniform, also for colour-blind eyes (Smith and van der Walt, 2015)."""

LOG_COLOURS_FROM = 8.0
"""Greatest value over the least from which colours are logarithmic."""

CELL = 0.42
"""Height in inches of a cell."""

MOST_CELLS = 60
"""Cells beside or below one another at most: smaller ones could not be told apart."""

FRAME = "#D55E00"
"""Colour of the frame of the best cell."""

BAR = 1.5
"""Inches for the bar of colours and its numbers."""


class SweepPoint(NamedTuple):
    """The *quantities* of a run by name, at *x*. *fits*: it fits in memory. *best*: it is the best of all runs."""

    x: float
    quantities: Mapping[str, float]
    fits: bool = True
    best: bool = False


class SweepSeries(NamedTuple):
    """The points of each series by name. *x* names x, *dimension* its unit, or *labels* its places 0, 1, 2 ...

    *dimensions* of the quantities: keys of `simulator.reading.units.UNITS`, share, or empty for a plain number.
    """

    x: str
    dimension: str
    series: Mapping[str, Sequence[SweepPoint]]
    labels: Sequence[str] = ()
    dimensions: Mapping[str, str] = DIMENSIONS


def sweep_chart(points: SweepSeries, title: str) -> Figure:
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


def _mark(axes: Axes, points: Sequence[SweepPoint], quantity: str) -> None:
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


def _x_axis(axes: Axes, points: SweepSeries, every: Sequence[float]) -> None:
    """Give the shared x axis ticks at the values, or at some of many."""
    if not points.labels and _logarithmic(every):
        axes.set_xscale("log")
    shown = every[:: -(-len(every) // (MOST_LABELS if points.labels else MOST_TICKS))]
    axes.set_xticks(shown, [_x_text(x, points) for x in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(points.x)


def _x_text(x: float, points: SweepSeries) -> str:
    if points.labels:
        return points.labels[int(x)]
    return show(x, points.dimension, 3) if points.dimension in UNITS else f"{x:,.6g}"


def _logarithmic(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) >= LOG_FROM * min(values)


class HeatMapCell(NamedTuple):
    """The *value* of a run, None if it failed. *fits*: it fits in memory. *best*: it is the best of all runs."""

    value: float | None
    fits: bool = True
    best: bool = False


class HeatMap(NamedTuple):
    """The *cells* by (row, column): *rows* are values of *y*, *columns* of *x*. *told*: a line below the title.

    *dimension* of the *quantity*: a key of `simulator.reading.units.UNITS`, share, or empty for a plain number.
    *unfit*: the colour of cells that do not fit; by default they have that of their value. The scale is then that of
    the others.
    """

    x: str
    columns: Sequence[str]
    y: str
    rows: Sequence[str]
    cells: Mapping[tuple[int, int], HeatMapCell]
    quantity: str
    dimension: str
    told: str = ""
    unfit: str = ""


def heat_map_chart(cells: HeatMap, title: str) -> Figure:
    """Return the heat map of *cells*. Raises `SimulatorError` for too many cells."""
    for key, several in ((cells.x, cells.columns), (cells.y, cells.rows)):
        if len(several) > MOST_CELLS:
            raise SimulatorError(f"{len(several)} values of {key} do not fit into a heat map; at most {MOST_CELLS} do")
    left = 0.5 + max(text_width(name) for name in cells.rows)
    width = WIDTH - left - BAR
    labels = upright(cells.columns, width / len(cells.columns))
    below, above = AXIS + labels + LINE + 0.1, 0.42 + 0.2 * bool(cells.told)
    inner = max(CELL * len(cells.rows), 1.0)
    height = above + inner + below
    figure = Figure(figsize=(WIDTH, height), dpi=DPI)
    figure.text(0.5, 1 - 0.07 / height, title, ha="center", va="top", fontsize=fitting(title, TITLE))
    figure.text(0.5, 1 - 0.3 / height, cells.told, ha="center", va="top", fontsize=TEXT, color="#4D4D4D")
    axes = figure.add_axes((left / WIDTH, below / height, width / WIDTH, inner / height))
    norm = _draw_cells(axes, cells, width / len(cells.columns))
    axes.set_xticks(range(len(cells.columns)), cells.columns, rotation=90 if labels else 0)
    axes.set_yticks(range(len(cells.rows)), cells.rows)
    axes.set_xlabel(cells.x)
    axes.set_ylabel(cells.y)
    bar = figure.add_axes(((WIDTH - BAR + 0.15) / WIDTH, below / height, 0.2 / WIDTH, inner / height))
    _draw_bar(figure, bar, cells, norm)
    figure.legend(handles=_entries(cells), loc="lower center", bbox_to_anchor=(0.5, 0.0), ncols=3, frameon=False)
    return figure


def _draw_cells(axes: Axes, cells: HeatMap, width: float) -> Normalize:
    """Draw the cells, *width* inches wide, and return the scale of their colours."""
    grid = np.full((len(cells.rows), len(cells.columns)), np.nan)
    coloured = {place: cell for place, cell in cells.cells.items() if cell.fits or not cells.unfit} or cells.cells
    for place, cell in coloured.items():
        grid[place] = np.nan if cell.value is None else cell.value
    low, high = float(np.nanmin(grid)), float(np.nanmax(grid))
    norm = LogNorm(low, high) if low > 0 and high >= LOG_COLOURS_FROM * low else Normalize(low, high)
    image = axes.imshow(grid, cmap=COLOURS, norm=norm, aspect="auto")
    for (row, column), cell in cells.cells.items():
        fill = "white" if cell.value is None else image.cmap(norm(cell.value))
        if cells.unfit and not cell.fits:
            fill = cells.unfit
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=fill, linewidth=0))
        text = "failed" if cell.value is None else _text(cell.value, cells.dimension)
        _draw_cell(axes, (column, row), cell, fill, text if text_width(text) < width - 0.06 else "")
    return norm


def _draw_cell(axes: Axes, place: tuple[int, int], cell: HeatMapCell, fill: Any, text: str) -> None:
    """Draw the *text* of a cell of colour *fill*, with a hatch if it does not fit, and a frame if it is the best."""
    # luminance of sRGB (Rec. 709)
    luminance = float(np.dot(to_rgb(fill), (0.2126, 0.7152, 0.0722)))
    ink = "white" if luminance < 0.45 else "black"
    corner = (place[0] - 0.5, place[1] - 0.5)
    if not cell.fits:
        axes.add_patch(Rectangle(corner, 1, 1, facecolor="none", edgecolor=ink, hatch="///", linewidth=0))
    box = {"facecolor": fill, "edgecolor": "none", "pad": 1.5}
    axes.text(*place, text, ha="center", va="center", color=ink, bbox=None if cell.fits else box)
    if cell.best:
        axes.add_patch(Rectangle(corner, 1, 1, facecolor="none", edgecolor=FRAME, linewidth=3, zorder=3))


def _draw_bar(figure: Figure, axes: Axes, cells: HeatMap, norm: Normalize) -> None:
    """Draw the scale of colours."""
    from matplotlib.cm import ScalarMappable

    bar = figure.colorbar(ScalarMappable(norm, COLOURS), cax=axes)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _text(value, cells.dimension)))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    bar.set_label(cells.quantity)


def _entries(cells: HeatMap) -> list[Patch]:
    """Return the entries of the legend: the best cell, and cells that do not fit, if there are any."""
    best = Patch(facecolor="none", edgecolor=FRAME, linewidth=3, label="best")
    unfit = Patch(
        facecolor=cells.unfit or "white", edgecolor="black", hatch="///", linewidth=0, label="does not fit in memory"
    )
    several = cells.cells.values()
    return [best] * any(cell.best for cell in several) + [unfit] * any(not cell.fits for cell in several)


def _text(value: float, dimension: str) -> str:
    if dimension == "share":
        return f"{value:.1%}"
    return show(value, dimension, 3) if dimension else f"{value:,.4g}"
