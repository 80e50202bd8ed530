"""Shares of computing time by operator, by elementary operation and by class, as bars divided by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator.analysis.palette import OTHER_COMPUTE, PHASE_PAINTS, Paint
from simulator.analysis.plot.canvas import PIXELS, TEXT, WIDTH, columns_beside, patch, stacked, text_width, time_axis
from simulator.errors import SimulatorError
from simulator.units import show

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
