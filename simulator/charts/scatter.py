"""Charts of points: predictions against measurements, all on one diagonal or over the number of GPUs; and memory
against time of candidates, where a line joins those that no other one beats in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from math import ceil, floor, isfinite, log, log10
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter, ScalarFormatter

from clustersim.simulator.charts.canvas import DPI, SUFFIXES, WIDTH, fitting, save, style
from clustersim.simulator.charts.palette import SERIES_FILLS
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.files import suffix_of
from clustersim.simulator.reading.units import show

Pairs = Sequence[tuple[float, float]]
"""(measured, predicted)."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
NEAR = 0.1
"""Half the width of the band about the diagonal, relative to the measured value."""


def draw_agreement(groups: Mapping[str, Pairs], path: Path | str, *, title: str = "Predicted against measured") -> None:
    """Draw the seconds of *groups*, by name, on a diagonal and their errors beside, to *path*.

    Raises `SimulatorError` if there are none.
    """
    suffix_of(Path(path), SUFFIXES)
    if not any(groups.values()):
        raise SimulatorError("there is nothing to compare")
    with style():
        save(agreement_chart(groups, title), Path(path))


def agreement_chart(groups: Mapping[str, Pairs], title: str) -> Figure:
    """Return a chart: left all pairs on logarithmic axes with the diagonal, right the errors of each group."""
    figure = Figure(figsize=(WIDTH, 1.8 + max(4.2, 0.26 * len(groups))), layout="constrained")
    diagonal, errors = figure.subplots(1, 2, width_ratios=(1.2, 1))
    # more groups than looks share some
    looks = dict(zip(groups, cycle(_looks()), strict=False))
    for name, pairs in groups.items():
        color, marker = looks[name]
        diagonal.scatter(*zip(*pairs, strict=True), s=18, color=color, marker=marker, alpha=0.8, linewidths=0, zorder=2)
    _diagonal(diagonal, [value for pairs in groups.values() for pair in pairs for value in pair])
    _errors(errors, groups, looks)
    figure.suptitle(title)
    return figure


def _looks() -> Sequence[tuple[str, str]]:
    """Return all pairs of colour and marker."""
    colors = [color for _, color in zip(range(len(SERIES_FILLS) * len(MARKERS)), cycle(SERIES_FILLS), strict=False)]
    return [(color, MARKERS[(n + n // len(SERIES_FILLS)) % len(MARKERS)]) for n, color in enumerate(colors)]


def _diagonal(axes: Axes, values: Sequence[float]) -> None:
    ends = [min(values) / 1.5, max(values) * 1.5]
    low, high = ([factor * end for end in ends] for factor in (1 - NEAR, 1 + NEAR))
    axes.fill_between(ends, low, high, color="#E4E4E4", zorder=0, linewidth=0)
    axes.plot(ends, ends, color="#4D4D4D", linewidth=1, zorder=1)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured (s)", ylabel="predicted (s)")
    axes.set_title("time; the band is 10 % to either side of the diagonal", fontsize=9.5)
    axes.set_aspect("equal")


def _errors(axes: Axes, groups: Mapping[str, Pairs], looks: Mapping[str, tuple[str, str]]) -> None:
    for place, (name, pairs) in enumerate(groups.items()):
        color, marker = looks[name]
        errors = [predicted / measured - 1 for measured, predicted in pairs]
        axes.scatter(errors, [place] * len(errors), s=20, color=color, marker=marker, alpha=0.6, linewidths=0)
    axes.axvline(0, color="#4D4D4D", linewidth=1)
    axes.axvspan(-NEAR, NEAR, color="#E4E4E4", zorder=0)
    axes.set_yticks(range(len(groups)), list(groups))
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("error of the time, left of 0: too fast")
    axes.set_title("by scenario", fontsize=9.5)
    axes.tick_params(axis="y", length=0)


def draw_scaling(
    series: Mapping[str, Sequence[tuple[int, float, float]]], path: Path | str, *, quantity: str, title: str
) -> None:
    """Draw (GPUs, measured, predicted) of *series*, by name, over the number of GPUs to *path*; *quantity* names y."""
    suffix_of(Path(path), SUFFIXES)
    with style():
        save(scaling_chart(series, quantity, title), Path(path))


def scaling_chart(series: Mapping[str, Sequence[tuple[int, float, float]]], quantity: str, title: str) -> Figure:
    """Return a chart with a solid line of measured and a dashed line of predicted values for each series."""
    figure = Figure(figsize=(WIDTH * 0.62, 4.6), layout="constrained")
    axes = figure.add_subplot(title=title)
    for (name, points), (color, marker) in zip(series.items(), _looks(), strict=False):
        gpus, measured, predicted = zip(*sorted(points), strict=True)
        axes.plot(gpus, measured, color=color, marker=marker, label=name)
        axes.plot(gpus, predicted, color=color, marker=marker, linestyle="--", markerfacecolor="white")
    ticks = sorted({point[0] for points in series.values() for point in points})
    axes.set(xscale="log", xlabel="GPUs", ylabel=quantity)
    axes.set_xticks(ticks, [str(tick) for tick in ticks], rotation=30)
    axes.xaxis.set_minor_formatter(ScalarFormatter())
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    named = axes.get_legend_handles_labels()[0]
    ways = [Line2D([], [], color="#4D4D4D", label="measured"), Line2D([], [], color="#4D4D4D", linestyle="--")]
    ways[1].set_label("predicted")
    figure.legend(handles=[*named, *ways], loc="outside lower center", ncols=3, frameon=False)
    return figure


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
