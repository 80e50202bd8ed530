"""A histogram of the step times of repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from simulator.analysis.palette import SERIES_FILLS
from simulator.analysis.percentiles import percentiles
from simulator.analysis.plot.canvas import WIDTH, legend, time_unit
from simulator.errors import SimulatorError

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
