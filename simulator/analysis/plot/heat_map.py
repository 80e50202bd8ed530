"""A heat map of a sweep: a quantity over two keys, with the number in each cell and the best cell outlined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter

from simulator.analysis.plot.canvas import AXIS, DPI, LINE, TEXT, TITLE, WIDTH, fitting, text_width, upright
from simulator.errors import SimulatorError
from simulator.units import show

COLOURS = "viridis"
"""Perceptually uniform, also for colour-blind eyes (Smith and van der Walt, 2015)."""
LOG_FROM = 8.0
"""Greatest value over the least from which colours are logarithmic."""
CELL = 0.42
"""Height in inches of a cell."""
MOST_CELLS = 60
"""Cells beside or below one another at most: smaller ones could not be told apart."""
FRAME = "#D55E00"
"""Colour of the frame of the best cell."""
BAR = 1.5
"""Inches for the bar of colours and its numbers."""


class Cell(NamedTuple):
    """The *value* of a run, None if it failed. *fits*: it fits in memory. *best*: it is the best of all runs."""

    value: float | None
    fits: bool = True
    best: bool = False


class HeatMap(NamedTuple):
    """The *cells* by (row, column): *rows* are values of *y*, *columns* of *x*. *told*: a line below the title.

    *dimension* of the *quantity*: a key of `simulator.units.UNITS`, share, or empty for a plain number. *unfit*: the
    colour of cells that do not fit; by default they have that of their value. The scale is then that of the others.
    """

    x: str
    columns: Sequence[str]
    y: str
    rows: Sequence[str]
    cells: Mapping[tuple[int, int], Cell]
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
    norm = LogNorm(low, high) if low > 0 and high >= LOG_FROM * low else Normalize(low, high)
    image = axes.imshow(grid, cmap=COLOURS, norm=norm, aspect="auto")
    for (row, column), cell in cells.cells.items():
        fill = "white" if cell.value is None else image.cmap(norm(cell.value))
        if cells.unfit and not cell.fits:
            fill = cells.unfit
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=fill, linewidth=0))
        text = "failed" if cell.value is None else _text(cell.value, cells.dimension)
        _draw_cell(axes, (column, row), cell, fill, text if text_width(text) < width - 0.06 else "")
    return norm


def _draw_cell(axes: Axes, place: tuple[int, int], cell: Cell, fill: Any, text: str) -> None:
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
