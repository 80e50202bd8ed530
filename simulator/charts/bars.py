"""Bars of where the time goes: breakdowns of the ranks of a timeline or of several results, computing time by operator;
and of how a result varies: step times of repeats as a histogram, changes when a parameter is halved or doubled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from clustersim.simulator.analysis import metrics
from clustersim.simulator.analysis.metrics import percentiles
from clustersim.simulator.analysis.timeline import Integers, Timeline
from clustersim.simulator.charts.canvas import (
    PIXELS,
    SUFFIXES,
    TEXT,
    TITLE,
    WIDTH,
    Window,
    columns_beside,
    fitting,
    legend,
    patch,
    save,
    stacked,
    style,
    text_width,
    time_axis,
    time_unit,
)
from clustersim.simulator.charts.palette import (
    OTHER_COMPUTE,
    PHASE_PAINTS,
    SERIES_FILLS,
    Paint,
    part_paint,
    parts_in_order,
)
from clustersim.simulator.charts.rank_groups import RankGroup, same_values
from clustersim.simulator.charts.rows import shown
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.files import suffix_of
from clustersim.simulator.reading.units import show

BREAKDOWN_TITLE = "Step time by what it went to"

LEAST_PIXELS = 0.5
"""Least width of a part that is seen; less has no entry in the legend, and ranks that differ by less share a bar."""

MOST_BARS = 16
"""Bars of a panel at most; the rest share one."""

BAR = 0.22
"""Inches for a bar."""

PAINTS: Mapping[str, Paint] = {
    "forward": PHASE_PAINTS["F"],
    "backward": PHASE_PAINTS["B"],
    "recompute": PHASE_PAINTS["R"],
    "optimizer": PHASE_PAINTS["O"],
    "other": OTHER_COMPUTE,
}
"""By phase, in the order of the parts of a bar."""

LINES: dict[str, Any] = {"p5": ":", "p50": "-", "p95": "--", "p99": "-."}
"""The line of each percentile."""

MOST_BINS = 60
"""Bars of a histogram at most."""

MOST_CHANGES = 24
"""Parameters in one chart at most, those with the largest change."""

CHANGE_BAR = 0.36
"""Inches of a bar and its gap."""

LEAST_CHANGE = 5e-4
"""Relative change below which a parameter is left out."""


def breakdown_chart(
    timeline: Timeline, ranks: Sequence[int] | None, window: Window | None, title: str | None
) -> Figure:
    """Return bars of the mean over all GPU ranks, and of each class of them or of *ranks*; always of the whole step."""
    gpus = set(timeline.gpu_ranks)

    def joined(classes: Mapping[int, Integers]) -> list[RankGroup]:
        kept = {first: ranks for first, ranks in classes.items() if first in gpus}
        rows = {first: np.array(list(metrics.rank_breakdown(timeline, first).values())) for first in kept}
        return same_values(rows, kept, LEAST_PIXELS * timeline.step_time / PIXELS)

    seen, told = shown(timeline, ranks, join=joined)
    bars = {"mean of all": metrics.breakdown(timeline)}
    bars |= {name: metrics.rank_breakdown(timeline, rank) for rank, name in seen if rank in gpus}
    return breakdown_bars(bars, title or BREAKDOWN_TITLE, told)


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


class Bar(NamedTuple):
    """Seconds *by_phase* of what has this *name*; *told*: what else is written beside it."""

    name: str
    by_phase: Mapping[str, float]
    told: str = ""

    @property
    def seconds(self) -> float:
        """The length of the bar."""
        return sum(self.by_phase.values())


def operators_chart(panels: Mapping[str, Sequence[Bar]], title: str) -> Figure:
    """Return a panel of bars, the longest first, for each of *panels*. Raises `SimulatorError` if no time was spent."""
    whole = max((sum(bar.seconds for bar in bars) for bars in panels.values()), default=0.0)
    if not whole:
        raise SimulatorError("nothing to draw: nothing was computed")
    drawn = {name: _most(bars) for name, bars in panels.items()}
    every = [bar for bars in drawn.values() for bar in bars]
    phases = [phase for phase in PAINTS if any(bar.by_phase.get(phase) for bar in every)]
    columns = columns_beside(bar.name for bar in every)
    entries = [patch(Paint(phase, *PAINTS[phase][1:])) for phase in phases]
    told = f"{show(whole, 'time')} of computation in a step, the mean over the GPUs"
    heights = [max(0.6, BAR * len(bars)) for bars in drawn.values()]
    figure, axes = stacked(heights, columns, title, told, entries, headed=True)
    room = columns / PIXELS * WIDTH
    # the text right of a bar ends within the panel
    longest = max(bar.seconds / (1.0 - min(0.9, (text_width(_text(bar, whole)) + 0.1) / room)) for bar in every)
    for panel, (name, bars) in zip(axes, drawn.items(), strict=True):
        panel.set_title(name, fontsize=9, loc="left")
        _draw(panel, bars, phases, whole)
    time_axis(axes[-1], (0.0, longest), "computing time of a step")
    axes[-1].set_xlim(0.0, longest)
    return figure


def _most(bars: Sequence[Bar]) -> list[Bar]:
    """Return the longest of *bars*, and one for the rest."""
    rest = bars[MOST_BARS:]
    if len(rest) < 2:
        return list(bars)
    phases = dict.fromkeys(phase for bar in rest for phase in bar.by_phase)
    joined = {phase: sum(bar.by_phase.get(phase, 0.0) for bar in rest) for phase in phases}
    return [*bars[:MOST_BARS], Bar(f"{len(rest)} others", joined)]


def _draw(axes: Axes, bars: Sequence[Bar], phases: Sequence[str], whole: float) -> None:
    """Draw *bars*, divided into *phases*, with their share of the *whole* time."""
    for place, bar in enumerate(bars):
        left = 0.0
        for phase in phases:
            seconds = bar.by_phase.get(phase, 0.0)
            axes.barh(place, seconds, left=left, height=0.8, color=PAINTS[phase].fill)
            left += seconds
        axes.annotate(_text(bar, whole), (left, place), (4, 0), textcoords="offset points", fontsize=TEXT, va="center")
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def _text(bar: Bar, whole: float) -> str:
    """Return what stands beside *bar*."""
    return ", ".join(filter(None, (f"{bar.seconds / whole:.1%}", show(bar.seconds, "time", 3), bar.told)))


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


def draw_tornado(changes: Mapping[str, tuple[float, float]], path: Path | str, *, title: str, what: str) -> None:
    """Draw *changes* to *path*: by parameter the relative changes of *what* if it is halved and if it is doubled."""
    suffix_of(Path(path), SUFFIXES)
    with style():
        save(tornado_chart(changes, title, what), Path(path))


def tornado_chart(changes: Mapping[str, tuple[float, float]], title: str, what: str) -> Figure:
    """Return the chart, the largest change on top. Raises `SimulatorError` if no parameter changes anything."""
    sizes = {name: max(map(abs, pair)) for name, pair in changes.items()}
    changing = (name for name in sizes if sizes[name] >= LEAST_CHANGE)
    names = sorted(changing, key=lambda name: sizes[name])[-MOST_CHANGES:]
    if not names:
        raise SimulatorError(f"nothing to draw: no parameter changes the {what}")
    figure = Figure(figsize=(WIDTH, 1.6 + CHANGE_BAR * max(3, len(names))), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=fitting(title, TITLE))
    for side, (fill, height) in enumerate(((SERIES_FILLS[1], 0.8), (SERIES_FILLS[0], 0.5))):
        shares = [100 * changes[name][side] for name in names]
        bars = axes.barh(names, shares, height=height, color=fill)
        # where both changes go to one side, the label of the smaller would lie in the larger bar
        other = [100 * changes[name][1 - side] for name in names]
        told = [
            f"{share:+.2g} %"
            if abs(share) >= 100 * LEAST_CHANGE and (share * beside <= 0 or abs(share) >= abs(beside))
            else ""
            for share, beside in zip(shares, other, strict=True)
        ]
        axes.bar_label(bars, told, padding=3, fontsize=8)
    axes.axvline(0.0, color="#4D4D4D", linewidth=0.8)
    axes.margins(x=0.1, y=0.02)
    axes.set_xlabel(f"change of the {what} (%)")
    legend(figure, [Patch(color=SERIES_FILLS[1], label="halved"), Patch(color=SERIES_FILLS[0], label="doubled")])
    return figure
