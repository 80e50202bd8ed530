"""How a result varies: the step times of repeats as a histogram, and a tornado of the changes when each parameter is
lowered and raised, the largest on top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from clustersim.simulator.analysis.metrics import percentiles
from clustersim.simulator.charts.canvas import SUFFIXES, TITLE, WIDTH, fitting, legend, save, style, time_unit
from clustersim.simulator.charts.palette import SERIES_FILLS
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.files import suffix_of

LINES: dict[str, Any] = {"p5": ":", "p50": "-", "p95": "--", "p99": "-."}
MOST_BINS = 60


def repeats_chart(step_times: Sequence[float], title: str) -> Figure:
    """Return a histogram of *step_times* (s) with lines at the percentiles.

    Raises `SimulatorError` for fewer than two.
    """
    if len(step_times) < 2:
        raise SimulatorError("nothing to draw: there is one step time; set simulation.repeats above 1")
    scale, unit = time_unit(max(step_times))
    times = np.array(step_times) / scale
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    axes = figure.add_subplot(title=f"{title}: step times of {len(times)} repeats")
    bins = min(MOST_BINS, len(np.histogram_bin_edges(times, "auto")) - 1)
    axes.hist(times, bins, color=SERIES_FILLS[0], alpha=0.6, edgecolor="white")
    # a mark for each repeat, below the bars
    axes.plot(
        times, np.full(len(times), -0.02), "|", color="#4D4D4D", transform=axes.get_xaxis_transform(), clip_on=False
    )
    entries = []
    for name, value in percentiles(times.tolist()).items():
        axes.axvline(value, color="#4D4D4D", linestyle=LINES[name], linewidth=1.2)
        entries.append(Line2D([], [], color="#4D4D4D", linestyle=LINES[name], label=f"{name} {value:#.5g} {unit}"))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(axis="x", pad=8)
    axes.set(xlabel=f"step time ({unit})", ylabel="repeats")
    legend(figure, entries)
    return figure


MOST_BARS = 24
"""Parameters in one chart at most, those with the largest change."""
BAR = 0.36
"""Inches of a bar and its gap."""
LEAST = 5e-4
"""Relative change below which a parameter is left out."""


def draw_tornado(changes: Mapping[str, tuple[float, float]], path: Path | str, *, title: str, what: str) -> None:
    """Draw *changes* to *path*: by parameter the relative changes of *what* if it is halved and if it is doubled."""
    suffix_of(Path(path), SUFFIXES)
    with style():
        save(tornado_chart(changes, title, what), Path(path))


def tornado_chart(changes: Mapping[str, tuple[float, float]], title: str, what: str) -> Figure:
    """Return the chart. Raises `SimulatorError` if no parameter changes anything."""
    sizes = {name: max(map(abs, pair)) for name, pair in changes.items()}
    names = sorted((name for name in sizes if sizes[name] >= LEAST), key=lambda name: sizes[name])[-MOST_BARS:]
    if not names:
        raise SimulatorError(f"nothing to draw: no parameter changes the {what}")
    figure = Figure(figsize=(WIDTH, 1.6 + BAR * max(3, len(names))), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=fitting(title, TITLE))
    for side, (fill, height) in enumerate(((SERIES_FILLS[1], 0.8), (SERIES_FILLS[0], 0.5))):
        shares = [100 * changes[name][side] for name in names]
        bars = axes.barh(names, shares, height=height, color=fill)
        # where both changes go to one side, the label of the smaller would lie in the larger bar
        other = [100 * changes[name][1 - side] for name in names]
        told = [
            f"{share:+.2g} %"
            if abs(share) >= 100 * LEAST and (share * beside <= 0 or abs(share) >= abs(beside))
            else ""
            for share, beside in zip(shares, other, strict=True)
        ]
        axes.bar_label(bars, told, padding=3, fontsize=8)
    axes.axvline(0.0, color="#4D4D4D", linewidth=0.8)
    axes.margins(x=0.1, y=0.02)
    axes.set_xlabel(f"change of the {what} (%)")
    legend(figure, [Patch(color=SERIES_FILLS[1], label="halved"), Patch(color=SERIES_FILLS[0], label="doubled")])
    return figure
