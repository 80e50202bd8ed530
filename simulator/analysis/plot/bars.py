"""Stacked bars of breakdowns: of the ranks of one timeline, or of several results beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from simulator.analysis import metrics
from simulator.analysis.palette import in_claiming_order, part_paint
from simulator.analysis.plot.canvas import WIDTH, Window, legend, patch, time_axis, time_unit
from simulator.analysis.rows import chosen
from simulator.errors import SimulatorError
from simulator.timeline import Timeline

TITLE = "Step time by what it went to"


def breakdown_chart(
    timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None
) -> Figure:
    """A bar for the mean over all GPU ranks and one for each of *ranks*, or of some of them; always the whole step."""
    gpus = [rank for rank in chosen(timeline, ranks, 12) if rank in timeline.gpu_ranks]
    bars = {"mean of all": metrics.breakdown(timeline)}
    bars |= {f"rank {rank}": metrics.rank_breakdown(timeline, rank) for rank in gpus}
    return breakdown_bars(bars, title or TITLE)


def breakdown_bars(breakdowns: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """A bar for each of *breakdowns*, with its name, the values that fit and the sum."""
    named = dict.fromkeys(p for one in breakdowns.values() for p in one)
    parts = [p for p in in_claiming_order(named) if any(one.get(p, 0.0) > 0 for one in breakdowns.values())]
    longest = max((sum(one.values()) for one in breakdowns.values()), default=0.0)
    if not longest:
        raise SimulatorError("nothing to draw: no time was spent")
    figure = Figure(figsize=(WIDTH, 1.6 + 0.42 * len(breakdowns)), layout="constrained")
    axes = figure.add_subplot(title=title)
    unit, unit_name = time_unit(longest)
    for place, one in enumerate(breakdowns.values()):
        left = 0.0
        for part in parts:
            seconds, paint = one.get(part, 0.0), part_paint(part)
            axes.barh(place, seconds, left=left, height=0.72, color=paint.fill, edgecolor="white", linewidth=0.5)
            text = f"{seconds / unit:.3g}"
            if seconds > longest * 0.0095 * (len(text) + 0.8):
                axes.text(left + seconds / 2, place, text, color=paint.ink, fontsize=8, ha="center", va="center")
            left += seconds
        axes.text(left + longest * 0.006, place, f"{left / unit:.4g} {unit_name}", fontsize=8.5, va="center")
    axes.set_yticks(range(len(breakdowns)), list(breakdowns))
    axes.set_ylim(len(breakdowns) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0)
    axes.set_xlim(0, longest * 1.09)
    time_axis(axes, (0.0, longest * 1.09), "step time")
    legend(figure, [patch(part_paint(part)) for part in parts])
    return figure
