"""Charts of a timeline: ops of ranks over time, use of links, breakdown of the step time, memory.

This is the only part of the simulator that imports matplotlib. It uses figures, never the global state of pyplot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from simulator.analysis.files import suffix_of
from simulator.analysis.plot.bars import TITLE, breakdown_bars, breakdown_chart
from simulator.analysis.plot.beside import beside_chart, variants_chart
from simulator.analysis.plot.canvas import SUFFIXES, Window, save, style
from simulator.analysis.plot.critical import critical_chart
from simulator.analysis.plot.gantt import pipeline_chart, timeline_chart
from simulator.analysis.plot.heat_map import HeatMap, heat_map_chart
from simulator.analysis.plot.links import links_chart
from simulator.analysis.plot.memory import Reserved, memory_chart
from simulator.analysis.plot.pareto import Point, pareto_chart
from simulator.analysis.plot.repeats import repeats_chart
from simulator.analysis.plot.states import Held, states_chart
from simulator.analysis.plot.sweep import Sweep, sweep_chart
from simulator.analysis.plot.topology import topology_chart
from simulator.errors import SimulatorError
from simulator.timeline import Timeline

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


def draw(
    timeline: Timeline,
    chart: str,
    path: Path | str,
    *,
    ranks: Sequence[int] | None = None,
    window: Window | None = None,
    title: str | None = None,
    reserved: Reserved | None = None,
) -> None:
    """Draw *timeline* as *chart* (one of `CHARTS`) to *path*, whose suffix gives the format: PNG, SVG or PDF.

    *ranks* and *window* (s) select what is shown; by default all, thinned if it is too much. *reserved*: the bytes
    that a rank holds beyond tensors, for the chart of memory. Raises `SimulatorError` for an unknown chart or suffix,
    and if there is nothing to show.
    """
    if chart not in CHARTS:
        raise SimulatorError(f'there is no chart "{chart}"; there are: {", ".join(CHARTS)}')
    suffix_of(Path(path), SUFFIXES)
    with style():
        if chart == "memory" and reserved is not None:
            save(memory_chart(timeline, ranks, window, title, reserved), Path(path))
        else:
            save(CHARTS[chart](timeline, ranks, window, title), Path(path))


def draw_breakdowns(
    breakdowns: Mapping[str, Mapping[str, float]], path: Path | str, *, title: str | None = None
) -> None:
    """Draw several breakdowns (`metrics.breakdown`) as stacked bars, one below the other, to *path*."""
    if not breakdowns:
        raise SimulatorError("there are no results to compare")
    with style():
        save(breakdown_bars(breakdowns, title or TITLE), Path(path))


def draw_beside(
    timelines: Mapping[str, Timeline], path: Path | str, *, ranks: Sequence[int] | None = None, title: str
) -> None:
    """Draw *timelines* of one schedule, by name, one above the other, to *path*, whose suffix gives the format."""
    suffix_of(Path(path), SUFFIXES)
    with style():
        save(beside_chart(timelines, ranks, title), Path(path))


def draw_variants(
    timelines: Mapping[str, Timeline],
    chart: str,
    path: Path | str,
    *,
    ranks: Sequence[int] | None = None,
    window: Window | None = None,
    title: str,
) -> None:
    """Draw *timelines* of several schedules, by name, as *chart* (one of `PANELS`) on one time axis to *path*."""
    suffix_of(Path(path), SUFFIXES)
    with style():
        save(variants_chart(timelines, chart, ranks, window, title), Path(path))


def draw_states(several: Mapping[str, Held], path: Path | str, *, title: str) -> None:
    """Draw the peak memory of *several* runs, by name, as stacked bars with the capacity to *path*."""
    suffix_of(Path(path), SUFFIXES)
    with style():
        save(states_chart(several, title), Path(path))


def draw_sweep(points: Sweep, path: Path | str, *, title: str) -> None:
    """Draw the *points* of a sweep over x to *path*, whose suffix gives the format."""
    suffix_of(Path(path), SUFFIXES)
    with style():
        save(sweep_chart(points, title), Path(path))


def draw_heat_map(cells: HeatMap, path: Path | str, *, title: str) -> None:
    """Draw the *cells* of a sweep over two keys to *path*, whose suffix gives the format."""
    suffix_of(Path(path), SUFFIXES)
    with style():
        save(heat_map_chart(cells, title), Path(path))


def draw_pareto(points: Sequence[Point], capacity: float, path: Path | str, *, title: str) -> None:
    """Draw memory against time of *points*, with the *capacity* of a GPU (bytes), to *path*."""
    suffix_of(Path(path), SUFFIXES)
    with style():
        save(pareto_chart(points, capacity, title), Path(path))


def draw_repeats(step_times: Sequence[float], path: Path | str, *, title: str) -> None:
    """Draw the *step_times* (s) of repeats as a histogram to *path*, whose suffix gives the format."""
    suffix_of(Path(path), SUFFIXES)
    with style():
        save(repeats_chart(step_times, title), Path(path))
