"""Stacked bars of breakdowns: of the ranks of one timeline, or of several results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from simulator.analysis import metrics
from simulator.analysis.alike import Group, same_values
from simulator.analysis.palette import part_paint, parts_in_order
from simulator.analysis.plot.canvas import PIXELS, Window, columns_beside, patch, stacked, time_axis, time_unit
from simulator.analysis.rows import shown
from simulator.errors import SimulatorError
from simulator.timeline import Integers, Timeline

TITLE = "Step time by what it went to"
LEAST_PIXELS = 0.5
"""Least width of a part that is seen; less has no entry in the legend, and ranks that differ by less share a bar."""


def breakdown_chart(
    timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None
) -> Figure:
    """Return bars of the mean over all GPU ranks, and of each class of them or of *ranks*; always of the whole step."""
    gpus = set(timeline.gpu_ranks)

    def joined(classes: Mapping[int, Integers]) -> list[Group]:
        kept = {first: ranks for first, ranks in classes.items() if first in gpus}
        rows = {first: np.array(list(metrics.rank_breakdown(timeline, first).values())) for first in kept}
        return same_values(rows, kept, LEAST_PIXELS * timeline.step_time / PIXELS)

    seen, told = shown(timeline, ranks, join=joined)
    bars = {"mean of all": metrics.breakdown(timeline)}
    bars |= {name: metrics.rank_breakdown(timeline, rank) for rank, name in seen if rank in gpus}
    return breakdown_bars(bars, title or TITLE, told)


def breakdown_bars(breakdowns: Mapping[str, Mapping[str, float]], title: str, told: str = "") -> Figure:
    """Return a bar for each of *breakdowns*, with its name, the sum, and values where there is room."""
    named = dict.fromkeys(p for one in breakdowns.values() for p in one)
    longest = max((sum(one.values()) for one in breakdowns.values()), default=0.0)
    if not longest:
        raise SimulatorError("nothing to draw: no time was spent")
    least = LEAST_PIXELS * longest / PIXELS
    parts = [p for p in parts_in_order(named) if any(one.get(p, 0.0) > least for one in breakdowns.values())]
    entries = [patch(part_paint(part)) for part in parts]
    height = max(0.8, min(0.42, 12.0 / len(breakdowns)) * len(breakdowns))
    figure, (axes,) = stacked([height], columns_beside(breakdowns), title, told, entries, headed=False)
    unit, unit_name = time_unit(longest)
    places, left = np.arange(len(breakdowns)), np.zeros(len(breakdowns))
    for part in parts:
        seconds, paint = np.array([one.get(part, 0.0) for one in breakdowns.values()]), part_paint(part)
        axes.barh(places, seconds, left=left, height=0.72, color=paint.fill, edgecolor="white", linewidth=0.5)
        for place, value, begin in zip(places.tolist(), seconds.tolist(), left.tolist(), strict=True):
            text = f"{value / unit:.3g}"
            if value > longest * 0.0095 * (len(text) + 0.8):
                axes.text(begin + value / 2, place, text, color=paint.ink, fontsize=8, ha="center", va="center")
        left += seconds
    for place, whole in enumerate(sum(one.values()) for one in breakdowns.values()):
        axes.text(whole + longest * 0.006, place, f"{whole / unit:.4g} {unit_name}", fontsize=8.5, va="center")
    axes.set_yticks(places, list(breakdowns))
    axes.set_ylim(len(breakdowns) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, longest * 1.09)
    time_axis(axes, (0.0, longest), "step time")
    return figure
