"""`clustersim plot` draws a scenario, or the folder that a run wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.application import app
from scenarios.commands.arguments import OneScenario, Settings, numbers

if TYPE_CHECKING:
    from scenarios.results.result import Result

CHARTS = ("timeline", "pipeline", "memory", "breakdown", "links", "repeats", "critical")


@app.command()
def plot(
    scenario: OneScenario,
    chart: Annotated[str, typer.Argument(help=", ".join(CHARTS))] = "timeline",
    output: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="A .png, .svg or .pdf file.")] = None,
    ranks: Annotated[str | None, typer.Option(help="Ranks to draw, e.g. 0,8:16 (8 to 15).")] = None,
    window: Annotated[str | None, typer.Option(help="Time to draw, e.g. 1s:2s.")] = None,
    settings: Settings = None,
) -> None:
    """Draw a scenario, or a directory that run wrote, which is simulated again, as a chart."""
    from scenarios.build.explanation import check_trains
    from scenarios.commands.evaluating import print_warnings
    from scenarios.commands.progress import progress
    from scenarios.scenario import Scenario
    from simulator.analysis.files import suffix_of
    from simulator.document.validation import listed, near
    from simulator.errors import ScenarioError

    if chart not in CHARTS:
        hint = near(chart, CHARTS)
        raise ScenarioError(f'there is no chart "{chart}"; draw {listed(CHARTS)}' + (f"; {hint}" if hint else ""))
    if output is not None:
        suffix_of(output, (".png", ".svg", ".pdf"))
    chosen = numbers(ranks) if ranks else None
    between = _window(window) if window else None
    # other charts show the first run only
    first_only = [] if chart == "repeats" else ["simulation.repeats=1"]
    loaded = Scenario.load(scenario, options=[*(settings or []), *first_only])
    if chart == "critical":
        for one in loaded.variants.values() or [loaded]:
            check_trains(one, "critical path")
    with progress(f"simulating {loaded.name}", chosen) as watch:
        result = loaded.run(watch)
    if not settings and (chart == "repeats" or loaded.specification.simulation.repeats == 1):
        print_warnings(scenario, result)
    beside = Path(scenario) / f"{chart}.png"
    path = output or (beside if beside.parent.is_dir() else Path(f"{loaded.name}_{chart}.png"))
    if chart == "breakdown" and len(result.breakdowns) > 1:
        from simulator.analysis.plot import draw_breakdowns

        draw_breakdowns(result.breakdowns, path, title=loaded.name)
        print(path)
    elif chart == "repeats":
        _draw_repeats(result, path)
    else:
        _draw_timelines(result, chart, path, chosen, between)


def _draw_timelines(
    result: Result, chart: str, path: Path, ranks: list[int] | None, window: tuple[float, float] | None
) -> None:
    """Draw *chart* for each timeline of *result*; several files have the names of the timelines."""
    from simulator.analysis.plot import draw

    timelines = result.timelines
    for name, timeline in timelines.items():
        several = len(timelines) > 1
        target = path.with_name(f"{path.stem}_{name}{path.suffix}") if several else path
        title = f"{result.scenario.name}: {name}" if several else name
        draw(timeline, chart, target, ranks=ranks, window=window, title=title)
        print(target)


def _draw_repeats(result: Result, path: Path) -> None:
    from simulator.analysis.plot import draw_repeats
    from simulator.errors import ScenarioError

    several = result.repeats
    if not several:
        raise ScenarioError(
            "there are no repeats to draw; give e.g. --set simulation.repeats=20 --set simulation.jitter=0.02"
        )
    for name, times in several.items():
        target = path if len(several) == 1 else path.with_name(f"{path.stem}_{name}{path.suffix}")
        draw_repeats(times, target, title=name)
        print(target)


def _window(text: str) -> tuple[float, float]:
    from simulator.errors import ScenarioError
    from simulator.units import parse

    begin, _, end = text.partition(":")
    try:
        window = parse(begin, "time"), parse(end, "time")
    except ValueError as error:
        raise ScenarioError(f"--window {text}: {error}; write e.g. 1s:2s") from None
    if not 0 <= window[0] < window[1]:
        raise ScenarioError(f"--window {text}: must begin before it ends; write e.g. 1s:2s")
    return window
