"""Charts of predictions against measurements: all on one diagonal, or over the number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter, ScalarFormatter

from clustersim.simulator.charts.canvas import SUFFIXES, WIDTH, save, style
from clustersim.simulator.charts.palette import SERIES_FILLS
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.files import suffix_of

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
