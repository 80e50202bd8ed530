"""Common parts of all charts: style, files, time axes and legends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch
from matplotlib.textpath import TextToPath
from matplotlib.ticker import FuncFormatter, MaxNLocator

from clustersim.simulator.charts.palette import WAIT, Paint
from clustersim.simulator.reading.files import suffix_of, written

Window = tuple[float, float]
"""Begin and end in s."""

SUFFIXES = (".png", ".svg", ".pdf")

WIDTH, DPI = 12.0, 120
"""Width of every chart in inches, and pixels per inch."""

PIXELS = WIDTH * DPI

HATCH: dict[str, Any] = {"hatch": "////", "edgecolor": "#BBBBBB"}
"""The hatch of waits."""

VIRTUAL_HATCHES = (None, "///", "xxx", "...", "|||", "---")
"""Hatches of the first, second, ... virtual stage of a pipeline rank; further ones have the last."""

TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))

TEXT, TITLE = 9.0, 11.0
"""Font sizes in points."""

AXIS, LINE = 0.52, 0.19
"""Height in inches of a time axis with its numbers and name, and of a line of a legend."""

RIGHT = 0.22
"""Inches at the right of a chart, room for half of the last number of its axis."""


def style() -> AbstractContextManager[None]:
    """Return the context with matplotlib's settings for a chart."""
    return rc_context(
        {
            "font.size": 9.0,
            "axes.titlesize": 11.0,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "hatch.linewidth": 0.5,
            "svg.hashsalt": "clustersim",
            "svg.fonttype": "none",
        }
    )


def save(figure: Figure, path: Path) -> None:
    """Write *figure* to *path* in the format of its suffix. Raises `SimulatorError` if the file cannot be written."""
    suffix = suffix_of(path, SUFFIXES)
    # without a date the same timeline gives the same bytes
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {"Title": _title(figure)}}[suffix]
    # level 3 of PNG's compression takes two thirds of the time of the default, for 5 % more bytes
    quickly: dict[str, Any] = {"pil_kwargs": {"compress_level": 3}} if suffix == ".png" else {}
    with written(path) as beside:
        figure.savefig(beside, dpi=DPI, metadata=undated, format=suffix[1:], **quickly)


def _title(figure: Figure) -> str:
    """Return the title of *figure*, which a PNG file holds as text too; empty if it has none."""
    above = figure.get_suptitle() or next((text.get_text() for text in figure.texts), "")
    return above or next((axes.get_title() for axes in figure.axes), "")


def png(figure: Figure) -> bytes:
    """Return *figure* as a PNG file."""
    held = BytesIO()
    with style():
        figure.savefig(held, dpi=DPI, format="png")
    return held.getvalue()


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit that suits *seconds*: its length in s, and its name."""
    return next(((scale, name) for scale, name in TIME_UNITS if seconds >= scale), TIME_UNITS[-1])


def time_axis(axes: Axes, window: Window, what: str = "time") -> None:
    """Give the x axis of *axes*, which shows *window* (s), ticks and a name in a suitable unit."""
    scale, name = time_unit(window[1] - window[0])
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda moment, _: f"{moment / scale:.10g}"))
    axes.set_xlabel(f"{what} ({name})")


def patch(paint: Paint) -> Patch:
    """Return the entry of *paint* in a legend."""
    if paint == WAIT:
        return Patch(facecolor=paint.fill, label=paint.label, **HATCH)
    return Patch(facecolor=paint.fill, label=paint.label)


def virtual_patch(virtual: int) -> Patch:
    """Return the entry of virtual stage number *virtual*, from 0, in a legend."""
    beyond = virtual >= len(VIRTUAL_HATCHES) - 1
    label = f"virtual stage {virtual + 1}{' and up' if beyond else ''} of its rank"
    return Patch(facecolor="#999999", edgecolor="white", linewidth=0, hatch=virtual_hatch(virtual), label=label)


def virtual_hatch(virtual: int) -> str | None:
    """Return the hatch of virtual stage number *virtual*, from 0."""
    return VIRTUAL_HATCHES[min(virtual, len(VIRTUAL_HATCHES) - 1)]


def text_width(text: str, size: float = TEXT) -> float:
    """Return the width of *text* in inches, at a font size of *size* points."""
    width: float = TextToPath().get_text_width_height_descent(text, FontProperties(size=size), False)[0]
    return width / 72


def fitting(text: str, size: float) -> float:
    """Return the font size in points, at most *size*, at which *text* fits into the width of a chart."""
    width = text_width(text, size)
    return min(size, size * (WIDTH - 0.3) / width) if width else size


def columns_beside(names: Iterable[str]) -> int:
    """Return the width in pixels of a chart of `stacked` with room for *names* at its left."""
    longest = max((text_width(name) for name in names), default=0.0)
    return round(DPI * (WIDTH - RIGHT)) - round(DPI * (longest + 0.16))


def upright(labels: Iterable[str], width: float) -> float:
    """Return the inches that *labels* of ticks need below an axis more than numbers do: 0 if *width* inches suffice.

    Otherwise they stand upright.
    """
    longest = max((text_width(label) for label in labels), default=0.0)
    return longest if longest > width - 0.08 else 0.0


def stacked(
    heights: Sequence[float],
    columns: int,
    title: str,
    told: str = "",
    entries: Sequence[Artist] = (),
    *,
    headed: bool,
    labels: float = 0.0,
    one_axis: bool = True,
) -> tuple[Figure, list[Axes]]:
    """A figure with panels of these *heights* (inches) one below the other, so many *columns* of pixels wide.

    The sides of panels lie on whole pixels. Above stand the *title* and, smaller, what is *told*, below a legend of
    *entries*. A panel has room for a title of its own if *headed*. *labels*: inches for labels that stand
    upright below the last panel. *one_axis*: the panels share the axis of x, which the last one names.
    """
    beside, rows = _legend_shape(entries)
    top = round(DPI * (0.34 + 0.2 * bool(told)))
    below = round(DPI * (AXIS + labels + (0.12 + LINE * rows if rows else 0.0)))
    pixels, gap = [round(DPI * height) for height in heights], round(DPI * 0.3) * headed
    between = 0 if one_axis else round(DPI * AXIS)
    whole = top + sum(pixels) + gap * len(pixels) + between * (len(pixels) - 1) + below
    figure = Figure(figsize=(WIDTH, whole / DPI), dpi=DPI)
    figure.text(0.5, 1 - 0.07 * DPI / whole, title, ha="center", va="top", fontsize=fitting(title, TITLE))
    figure.text(0.5, 1 - 0.3 * DPI / whole, told, ha="center", va="top", fontsize=fitting(told, TEXT), color="#4D4D4D")
    panels: list[Axes] = []
    left, bottom = round(DPI * (WIDTH - RIGHT)) - columns, whole - top
    for height in pixels:
        bottom -= gap + height
        place = (left / PIXELS, bottom / whole, columns / PIXELS, height / whole)
        panels.append(figure.add_axes(place, sharex=panels[0] if panels and one_axis else None))
        panels[-1].tick_params(axis="x", labelbottom=not one_axis or len(panels) == len(pixels))
        bottom -= between
    if entries:
        figure.legend(handles=list(entries), loc="lower center", bbox_to_anchor=(0.5, 0.0), ncols=beside, frameon=False)
    return figure, panels


def _legend_shape(entries: Sequence[Artist]) -> tuple[int, int]:
    """Return the number of columns and rows of a legend of *entries*."""
    if not entries:
        return 0, 0
    # a patch is 2 letters wide, 0.8 from its name and 2 from the next: matplotlib's legend.handlelength and others
    widest = max(text_width(str(entry.get_label())) for entry in entries) + 4.8 * TEXT / 72
    rows = -(-len(entries) // max(1, int((WIDTH - 0.3) / widest)))
    return -(-len(entries) // rows), rows


def legend(figure: Figure, entries: Sequence[Artist]) -> None:
    """Add a legend below *figure*."""
    figure.legend(handles=list(entries), loc="outside lower center", ncols=min(6, len(entries)), frameon=False)
