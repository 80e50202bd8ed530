"""A training campaign: progress over days, where the time goes, and the cost of the interval between checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import FuncFormatter, LogLocator

from clustersim.simulator.charts.canvas import SUFFIXES, TITLE, WIDTH, fitting, save, style
from clustersim.simulator.charts.palette import SERIES_FILLS
from clustersim.simulator.reading.files import suffix_of
from clustersim.simulator.reading.units import show_long

GREY = "#4D4D4D"
LEAST_SHARE = 0.0005
"""Share of the time below which a cause is not drawn; it would be thinner than a line."""
DAY = 86_400.0
UNITS = ((DAY, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "s"))

Curve = Sequence[tuple[float, float]]
"""(seconds, amount trained) where the course changes."""


class IntervalCosts(NamedTuple):
    """The cost of intervals between checkpoints: seconds for each of work, over the interval in s.

    *curve*: by the formula. *rules*: by name of the rule (interval, cost). *tried*: (interval, mean, standard error) of
    simulations.
    """

    curve: Sequence[tuple[float, float]]
    rules: Mapping[str, tuple[float, float]]
    tried: Sequence[tuple[float, float, float]]


class Course(NamedTuple):
    """What is drawn: the *curves* of samples by name, the time without failures, shares of the time, intervals.

    *amount* and *unit*: what the campaign trains in all, such as tokens. *ideal*: the time without failures, s.
    *percentiles*: of the whole time, by the name of the curve of the sample nearest to it, s.
    """

    curves: Mapping[str, Curve]
    amount: float
    unit: str
    ideal: float
    shares: Mapping[str, float]
    intervals: IntervalCosts | None
    percentiles: Mapping[str, float]


def draw_campaign(course: Course, path: Path | str, *, title: str) -> None:
    """Draw *course* to *path*, whose suffix gives the format."""
    suffix_of(Path(path), SUFFIXES)
    with style():
        save(campaign_chart(course, title), Path(path))


def campaign_chart(course: Course, title: str) -> Figure:
    """Return the figure: progress above; below shares of the time, and intervals if there are any."""
    lost = {name: share for name, share in course.shares.items() if share >= LEAST_SHARE}
    below = bool(lost) + bool(course.intervals)
    figure = Figure(figsize=(WIDTH, 8.2 if below else 5.2), layout="constrained")
    figure.suptitle(title, fontsize=fitting(title, TITLE))
    grid = GridSpec(2 if below else 1, max(1, below), figure=figure, height_ratios=(1.5, 1.0) if below else None)
    _progress(figure.add_subplot(grid[0, :]), course)
    if lost:
        _shares(figure.add_subplot(grid[1, 0]), lost, sum(course.shares.values()))
    if course.intervals:
        _intervals(figure.add_subplot(grid[1, below - 1]), course.intervals)
    return figure


def _progress(axes: Axes, course: Course) -> None:
    longest = max(curve[-1][0] for curve in course.curves.values())
    scale, unit = (DAY, "days") if longest >= DAY else (3600.0, "hours")
    axes.plot(
        [0, course.ideal / scale], [0, course.amount], color=GREY, linestyle="--", linewidth=1.2, zorder=3,
        label=f"without failures, {course.ideal / scale:.4g} {unit}",
    )  # fmt: skip
    # the first are wider, so that equal curves are all seen
    widths = [1.2 + 1.6 * place for place in reversed(range(len(course.curves)))]
    for (name, curve), fill, width in zip(course.curves.items(), SERIES_FILLS, widths, strict=False):
        times, amounts = np.array(curve).T
        seconds = course.percentiles.get(name, times[-1])
        axes.plot(times / scale, amounts, color=fill, linewidth=width, label=f"{name}, {seconds / scale:.4g} {unit}")
    axes.set(xlabel=f"time ({unit})", ylabel=f"{course.unit} trained", title="Progress; a step down is work lost")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda amount, _: _counted(amount)))
    axes.set_xlim(0)
    axes.set_ylim(0)
    nearest = "curves: the samples nearest to the percentiles" if course.percentiles else None
    axes.legend(loc="lower right", frameon=False, title=nearest, title_fontsize=8)


def _shares(axes: Axes, lost: Mapping[str, float], total: float) -> None:
    """Draw the *lost* shares as bars, the largest on top; their *total* is told in the title."""
    names = sorted(lost, key=lambda name: lost[name])
    bars = axes.barh(names, [100 * lost[name] for name in names], color=SERIES_FILLS[1])
    axes.bar_label(bars, fmt="%.2f %%", padding=3)
    axes.margins(x=0.18)
    axes.set(xlabel="share of the time (%)", title=f"Lost time, {total:.1%} in all")


def _intervals(axes: Axes, intervals: IntervalCosts) -> None:
    longest = max(tau for tau, _ in intervals.curve)
    scale, unit = next((length, name) for length, name in UNITS if longest >= length or length == 1.0)
    taus, costs = np.array(intervals.curve).T
    axes.semilogx(taus / scale, costs, color=SERIES_FILLS[0], label="exponential failures, by formula")
    if intervals.tried:
        tried, means, errors = np.array(intervals.tried).T
        axes.errorbar(
            tried / scale,
            means,
            2 * errors,
            fmt="o",
            color=GREY,
            markersize=4,
            capsize=3,
            label="simulated, all causes, ± 2 s.e.",
        )
    for (rule, (tau, cost)), marker in zip(intervals.rules.items(), "v^*", strict=False):
        axes.plot(tau / scale, cost, marker, color=SERIES_FILLS[5], markersize=8, label=f"{rule}, {show_long(tau)}")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tau, _: f"{tau:g}"))
    axes.xaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda tau, _: f"{tau:g}"))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.set(
        xlabel=f"training between checkpoints ({unit})", ylabel="time for each of work", title="Interval of checkpoints"
    )
    axes.legend(frameon=False, fontsize=8)


def _counted(amount: float) -> str:
    """Return a number of tokens or samples as papers write it.

    >>> _counted(1.5e12), _counted(0.0)
    ('1.5T', '0')
    """
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if amount >= size:
            return f"{amount / size:.4g}{letter}"
    return f"{amount:.4g}"
