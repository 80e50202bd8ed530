"""Peak memory of several runs as stacked bars by category, with the capacity of a GPU as a line: the bars of ZeRO."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from simulator.analysis.palette import categories_in_order, category_fill
from simulator.analysis.plot.canvas import PIXELS, columns_beside, stacked
from simulator.analysis.plot.memory import FAR, RED, RESERVED_FILL
from simulator.errors import SimulatorError
from simulator.units import show

STATES = "Peak memory of the fullest GPU"
CAPACITY = "#D55E00"
ROOM = 1.28
"""Length of the axis against the longest bar: room for the sum, and for what does not fit."""


class Held(NamedTuple):
    """The bytes of the fullest GPU at its peak *by_category*, and its *capacity*; infinite if not known."""

    by_category: Mapping[str, float]
    capacity: float = inf

    @property
    def nbytes(self) -> float:
        """The bytes of all categories."""
        return sum(self.by_category.values())


def states_chart(several: Mapping[str, Held], title: str | None) -> Figure:
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
