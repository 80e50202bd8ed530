"""Memory against time: candidates as points, and those that no other one beats in both as a line."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, isfinite, log, log10
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from clustersim.simulator.charts.canvas import DPI, WIDTH, fitting
from clustersim.simulator.charts.palette import SERIES_FILLS
from clustersim.simulator.reading.units import show

HEIGHT = 5.6
"""Inches."""

NAMED = 8
"""Points of the line that have a number and a name at most; the rest are points only."""

LONG = 3.0
"""The greatest time over the least from which the time axis is logarithmic."""


STEPS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
"""Ticks of a decade of a logarithmic time axis."""

APART = 0.02
"""Share of the width from which two points have a number each."""


class ParetoPoint(NamedTuple):
    """A candidate: its *name*, *seconds* of a step, *nbytes* of a GPU, and whether these are *simulated*."""

    name: str
    seconds: float
    nbytes: float
    simulated: bool


def frontier(points: Sequence[ParetoPoint]) -> list[ParetoPoint]:
    """Return the points that no other one beats in time and memory, in order of time.

    >>> points = [ParetoPoint("a", 1, 3, True), ParetoPoint("b", 2, 2, True), ParetoPoint("c", 3, 2, True)]
    >>> [one.name for one in frontier(points)]
    ['a', 'b']
    """
    found: list[ParetoPoint] = []
    for one in sorted(points, key=lambda point: (point.seconds, point.nbytes)):
        if not found or one.nbytes < found[-1].nbytes:
            found.append(one)
    return found


def pareto_chart(points: Sequence[ParetoPoint], capacity: float, title: str) -> Figure:
    """Return the picture of *points*; *capacity*: bytes that a GPU may hold, a line unless it is infinite."""
    best = [one for one in frontier(points) if one.nbytes <= capacity]
    shown = _spread(_apart(best, points))
    figure = Figure(figsize=(WIDTH, HEIGHT + 0.22 * len(shown)), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    figure.suptitle(title, fontsize=fitting(title, 11.0))
    for simulated, marker, color, label in (
        (False, "o", "#B8B8B8", "estimated"),
        (True, "D", SERIES_FILLS[0], "simulated"),
    ):
        own = [one for one in points if one.simulated == simulated]
        if own:
            xs, ys = [one.seconds for one in own], [one.nbytes for one in own]
            axes.scatter(xs, ys, s=22, marker=marker, color=color, label=label, zorder=2 + simulated, linewidths=0)
    if best:
        xs, ys = [one.seconds for one in best], [one.nbytes for one in best]
        axes.step(xs, ys, where="post", color="#333333", linewidth=1.0, label="no other is better in both", zorder=2.5)
    if isfinite(capacity):
        limit = f"limit {show(capacity, 'size', 3)}"
        axes.axhline(capacity, color="#B03030", linewidth=1.0, linestyle="--", label=limit)
    for number, one in enumerate(shown, 1):
        axes.annotate(
            str(number), (one.seconds, one.nbytes), (-10, -12), textcoords="offset points", fontsize=9, zorder=5
        )
    _scale(axes, points, capacity)
    legend = "\n".join(f"{number}  {one.name}" for number, one in enumerate(shown, 1))
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles, labels, loc="best", frameon=True, framealpha=0.9)
    axes.set_xlabel(f"step time\n\n{legend}" if legend else "step time", fontsize=9, loc="left", multialignment="left")
    return figure


def _apart(best: Sequence[ParetoPoint], points: Sequence[ParetoPoint]) -> list[ParetoPoint]:
    """Return those of *best* that are far enough from the one before for a number of their own."""
    wide = log(max(one.seconds for one in points) / min(one.seconds for one in points)) or 1.0
    high = max(one.nbytes for one in points)
    kept: list[ParetoPoint] = []
    for one in best:
        before = kept[-1] if kept else None
        if before is None or (
            log(one.seconds / before.seconds) > APART * wide or before.nbytes - one.nbytes > 2 * APART * high
        ):
            kept.append(one)
    return kept


def _spread(best: Sequence[ParetoPoint]) -> list[ParetoPoint]:
    """Return at most `NAMED` of *best*, the ends among them."""
    if len(best) <= NAMED:
        return list(best)
    places = {round(n * (len(best) - 1) / (NAMED - 1)) for n in range(NAMED)}
    return [best[place] for place in sorted(places)]


def _scale(axes: Axes, points: Sequence[ParetoPoint], capacity: float) -> None:
    times = [one.seconds for one in points]
    if times and max(times) > LONG * min(times):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        decades = range(floor(log10(min(times))), ceil(log10(max(times))) + 1)
        ticks = [step * 10.0**decade for decade in decades for step in STEPS]
        axes.set_xticks([tick for tick in ticks if min(times) / 1.1 <= tick <= 1.1 * max(times)])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: show(value, "time", 3)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: show(value, "size", 3)))
    highest = max([one.nbytes for one in points] + ([capacity] if isfinite(capacity) else []))
    axes.set_ylim(0, 1.08 * highest or 1.0)
    axes.set_ylabel("memory of the tightest GPU")
    axes.grid(color="#E4E4E4", linewidth=0.6)
