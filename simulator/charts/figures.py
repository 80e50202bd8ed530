"""Charts of a timeline: ops of ranks over time, use of links, breakdown of the step time, memory.

This is the only part of the simulator that imports matplotlib. It uses figures, never the global state of pyplot.
`figure` returns one, and `write` writes it to a file; the `draw` functions do both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure as Figure  # noqa: PLC0414 - the type of what this file returns

from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.charts.bars import BREAKDOWN_TITLE, breakdown_bars, breakdown_chart, repeats_chart
from clustersim.simulator.charts.canvas import SUFFIXES, Window, save, style
from clustersim.simulator.charts.critical_path import critical_chart
from clustersim.simulator.charts.gantt import beside_chart, pipeline_chart, timeline_chart
from clustersim.simulator.charts.memory import Reserved, memory_chart
from clustersim.simulator.charts.network import links_chart, topology_chart
from clustersim.simulator.charts.pareto import ParetoPoint, pareto_chart
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.files import suffix_of

Chart = Callable[[Timeline, Sequence[int] | None, Window | None, str | None], Figure]

CHARTS: dict[str, Chart] = {
    "timeline": timeline_chart,
    "pipeline": pipeline_chart,
    "memory": memory_chart,
    "breakdown": breakdown_chart,
    "links": links_chart,
    "critical": critical_chart,
    "topology": topology_chart,
}
"""The charts by name."""


def figure(
    timeline: Timeline,
    chart: str,
    *,
    ranks: Sequence[int] | None = None,
    window: Window | None = None,
    title: str | None = None,
    reserved: Reserved | None = None,
) -> Figure:
    """Return *timeline* as *chart*, one of `CHARTS`.

    *ranks* and *window* (s) select what is shown; by default all, thinned if it is too much. *reserved*: the bytes
    that a rank holds beyond tensors, for the chart of memory. Raises `SimulatorError` for an unknown chart, and if
    there is nothing to show.
    """
    if chart not in CHARTS:
        raise SimulatorError(f'there is no chart "{chart}"; there are: {", ".join(CHARTS)}')
    with style():
        if chart == "memory" and reserved is not None:
            return memory_chart(timeline, ranks, window, title, reserved)
        return CHARTS[chart](timeline, ranks, window, title)


def write(drawn: Figure, path: Path) -> None:
    """Write the figure *drawn* to *path*. Its suffix gives the format: PNG, SVG or PDF. Raises `SimulatorError`."""
    with style():
        save(drawn, path)


def draw(
    timeline: Timeline,
    chart: str,
    path: Path | str,
    *,
    ranks: Sequence[int] | None = None,
    window: Window | None = None,
    title: str | None = None,
) -> None:
    """Draw *timeline* as *chart* to *path*; see `figure` and `write`."""
    suffix_of(Path(path), SUFFIXES)
    write(figure(timeline, chart, ranks=ranks, window=window, title=title), Path(path))


def draw_breakdowns(
    breakdowns: Mapping[str, Mapping[str, float]], path: Path | str, *, title: str | None = None
) -> None:
    """Draw several breakdowns (`metrics.breakdown`) as stacked bars, one below the other, to *path*."""
    if not breakdowns:
        raise SimulatorError("there are no results to compare")
    with style():
        save(breakdown_bars(breakdowns, title or BREAKDOWN_TITLE), Path(path))


def draw_beside(
    timelines: Mapping[str, Timeline], path: Path | str, *, ranks: Sequence[int] | None = None, title: str
) -> None:
    """Draw *timelines* of one schedule, by name, one above the other, to *path*, whose suffix gives the format."""
    suffix_of(Path(path), SUFFIXES)
    with style():
        save(beside_chart(timelines, ranks, title), Path(path))


def draw_pareto(points: Sequence[ParetoPoint], capacity: float, path: Path | str, *, title: str) -> None:
    """Draw memory against time of *points*, with the *capacity* of a GPU (bytes), to *path*."""
    suffix_of(Path(path), SUFFIXES)
    with style():
        save(pareto_chart(points, capacity, title), Path(path))


def draw_repeats(step_times: Sequence[float], path: Path | str, *, title: str) -> None:
    """Draw the *step_times* (s) of repeats as a histogram to *path*, whose suffix gives the format."""
    suffix_of(Path(path), SUFFIXES)
    with style():
        save(repeats_chart(step_times, title), Path(path))
