"""The charts of a result, as `clustersim plot` draws them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from scenarios.files.titles import chart_title, place_title
from scenarios.results.reserved_memory import reserved_memory
from scenarios.results.result import Result
from scenarios.results.step_numbers import StepNumbers
from scenarios.results.sweep import sweep
from simulator.analysis import plot
from simulator.analysis.files import file_stems
from simulator.analysis.plot.beside import MOST_PANELS, PANELS
from simulator.analysis.plot.states import Held
from simulator.errors import ScenarioError

Window = tuple[float, float]
"""Begin and end in s."""


def draw_result(
    result: Result, chart: str, path: Path, ranks: Sequence[int] | None, window: Window | None
) -> Iterator[Path]:
    """Draw *chart* of *result* to *path* and yield the files.

    Several timelines share one figure if the chart can hold them; else each has a file, with its name added.
    """
    several = len(result.runs) > 1
    if chart == "sweep":
        plot.draw_sweep(sweep(result), path, title=chart_title(result))
    elif chart == "states":
        plot.draw_states(_held(result), path, title=chart_title(result))
    elif chart == "breakdown" and several and result.breakdowns:
        plot.draw_breakdowns(result.breakdowns, path, title=chart_title(result))
    elif chart in PANELS and 1 < len(result.runs) <= MOST_PANELS:
        title = chart_title(result)
        plot.draw_variants(result.timelines, chart, path, ranks=ranks, window=window, title=title)
    else:
        yield from _each(result, chart, path, ranks, window)
        return
    yield path


def files_of(result: Result, chart: str) -> int:
    """Return how many files `draw_result` draws at most; 0 for one, whose progress is not known."""
    several = len(result.runs)
    joined = chart in ("sweep", "states", "breakdown") or (chart in PANELS and several <= MOST_PANELS)
    return 0 if several == 1 or joined else several


def _each(result: Result, chart: str, path: Path, ranks: Sequence[int] | None, window: Window | None) -> Iterator[Path]:
    """Draw *chart* of each run of *result* into a file of its own."""
    runs = {name: one for name, one in result.runs.items() if chart != "repeats" or one.repeats}
    if not runs:
        raise ScenarioError(
            "there are no repeats to draw; give e.g. --set simulation.repeats=20 --set simulation.jitter=0.02"
        )
    stems = file_stems(runs)
    for name, one in runs.items():
        target = path if len(runs) == 1 else path.with_name(f"{path.stem}_{stems[name]}{path.suffix}")
        if chart == "repeats":
            plot.draw_repeats(one.repeats[name], target, title=place_title(one, result.scenario.name))
        else:
            draw_run(one, chart, target, ranks, window, of=result.scenario.name)
        yield target


def draw_run(
    result: Result,
    chart: str,
    path: Path,
    ranks: Sequence[int] | None = None,
    window: Window | None = None,
    of: str = "",
) -> None:
    """Draw *chart* of *result*, a single run of the file *of*, to *path*."""
    timeline = result.timeline

    def reserved(rank: int) -> float:
        """All ranks are drawn with the fragmentation of the fullest one."""
        return sum(reserved_memory(result.scenario, timeline.schedule, rank, activations=activations).values())

    activations = 0.0
    if isinstance(result, StepNumbers):
        activations = result.memory.peak.by_category.get("activations", 0.0)
    held = reserved if isinstance(result, StepNumbers) else None
    title = chart_title(result, of)
    plot.draw(timeline, chart, path, ranks=ranks, window=window, title=title, reserved=held)


def _held(result: Result) -> dict[str, Held]:
    """Return the peak memory of each run of *result*, with the reserved memory of its fullest GPU."""
    steps = {name: one for name, one in result.runs.items() if isinstance(one, StepNumbers)}
    if not steps:
        raise ScenarioError(f"{result.scenario.name} measures a collective; it has no memory to draw")
    return {
        name: Held({**one.memory.peak.by_category, "reserved": sum(one.reserved.values())}, one.capacity)
        for name, one in steps.items()
    }
