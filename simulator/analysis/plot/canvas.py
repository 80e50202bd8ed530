"""What all charts share: their style, the way to a file, time axes and legends."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from simulator.analysis.files import suffix_of, written
from simulator.analysis.palette import WAIT, Paint

Window = tuple[float, float]
"""Begin and end in s."""

SUFFIXES = (".png", ".svg", ".pdf")
WIDTH, DPI = 12.0, 120
"""Of every chart: inches, and pixels to the inch."""
PIXELS = WIDTH * DPI
HATCH: dict[str, Any] = {"hatch": "////", "edgecolor": "#BBBBBB"}
"""Of waits."""
VIRTUAL_HATCHES = (None, "///", "xxx", "...", "|||", "---")
"""Of the first virtual stage of a pipeline rank, the second ...; those beyond look like the last."""
TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def style() -> AbstractContextManager[None]:
    """Matplotlib's settings, while a chart is made."""
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
    """Write *figure* to *path* in the form that its suffix says. Raises `SimulatorError` where that cannot be."""
    suffix = suffix_of(path, SUFFIXES)
    # without a date the same timeline gives the same bytes
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[suffix]
    with written(path):
        figure.savefig(path, dpi=DPI, metadata=undated, format=suffix[1:])


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit that *seconds* is best told in: its length in s, and its name."""
    return next(((scale, name) for scale, name in TIME_UNITS if seconds >= scale), TIME_UNITS[-1])


def time_axis(axes: Axes, window: Window, what: str = "time") -> None:
    """Give the x axis of *axes*, which shows *window* in s, ticks and a name with the unit that suits it."""
    scale, name = time_unit(window[1] - window[0])
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda moment, _: f"{moment / scale:.10g}"))
    axes.set_xlabel(f"{what} ({name})")


def patch(paint: Paint) -> Patch:
    """The entry of *paint* in a legend."""
    if paint == WAIT:
        return Patch(facecolor=paint.fill, label=paint.label, **HATCH)
    return Patch(facecolor=paint.fill, label=paint.label)


def virtual_patch(virtual: int) -> Patch:
    """The entry of the virtual stages that are number *virtual* of their ranks, from 0, in a legend."""
    beyond = virtual >= len(VIRTUAL_HATCHES) - 1
    label = f"virtual stage {virtual + 1}{' and up' if beyond else ''} of its rank"
    return Patch(facecolor="#999999", edgecolor="white", linewidth=0, hatch=virtual_hatch(virtual), label=label)


def virtual_hatch(virtual: int) -> str | None:
    """The hatch of the virtual stages that are number *virtual* of their ranks, from 0."""
    return VIRTUAL_HATCHES[min(virtual, len(VIRTUAL_HATCHES) - 1)]


def legend(figure: Figure, entries: Sequence[Artist]) -> None:
    """A legend below all of *figure*."""
    figure.legend(handles=list(entries), loc="outside lower center", ncols=min(6, len(entries)), frameon=False)
