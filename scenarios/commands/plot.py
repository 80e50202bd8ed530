"""`clustersim plot` draws a scenario, or the folder that a run wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clustersim.scenarios.commands.application import OneScenario, Settings, command, load, numbers
from clustersim.scenarios.commands.terminal import progress
from clustersim.scenarios.results.run_folder import CHARTS, WITHOUT_RUN
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import file_stems, suffix_of
from clustersim.simulator.reading.units import parse


@command()
def plot(
    scenario: OneScenario,
    chart: Annotated[str, typer.Argument(help=", ".join((*CHARTS, *WITHOUT_RUN)))] = "timeline",
    output: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="A .png, .svg or .pdf file.")] = None,
    ranks: Annotated[str | None, typer.Option(help="Ranks to draw, e.g. 0,8:16 (8 to 15).")] = None,
    window: Annotated[str | None, typer.Option(help="Time to draw, e.g. 1s:2s.")] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(help="Axes of the map of activations: batch,sequence, or with values batch=1,2,4 for each."),
    ] = None,
    settings: Settings = None,
) -> None:
    """Draw a scenario, or a directory that run wrote, which is simulated again, as a chart."""
    from clustersim.scenarios.commands.runner import CHART_SUFFIXES, print_warnings
    from clustersim.scenarios.results.charts import check, draw_result, files_of
    from clustersim.scenarios.scenario import Scenario
    from clustersim.simulator.reading.validation import listed

    if output is not None:
        suffix_of(output, CHART_SUFFIXES)
    if chart in WITHOUT_RUN:
        _draw_activations(scenario, settings, over, output)
        return
    if over:
        raise ScenarioError(f"--over belongs to {listed(WITHOUT_RUN)}; a {chart} has no axes to choose")
    chosen = numbers(ranks) if ranks else None
    between = _window(window) if window else None
    # other charts show the first run only
    first_only = [] if chart == "repeats" else ["simulation.repeats=1"]
    loaded = Scenario.load(scenario, options=[*(settings or []), *first_only])
    check(loaded, chart)
    with progress(f"simulating {loaded.name}", chosen) as watch:
        result = loaded.run(watch)
    if not settings and (chart == "repeats" or loaded.specification.simulation.repeats == 1):
        print_warnings(scenario, result)
    beside = Path(scenario) / f"{chart}.png"
    stem = file_stems([loaded.name])[loaded.name]
    path = output or (beside if beside.parent.is_dir() else Path(f"{stem}_{chart}.png"))
    with progress("drawing") as shown:
        shown.begin(f"drawing {path}", files_of(result, chart))
        drawn = []
        for file in draw_result(result, chart, path, chosen, between):
            drawn.append(file)
            shown.advance()
    for file in drawn:
        print(file)


def _draw_activations(scenario: str, settings: list[str] | None, over: list[str] | None, output: Path | None) -> None:
    """Draw the map of activations of *scenario*, or of each of its variants."""
    from clustersim.scenarios.results.activation_map import activations_chart, axes_of
    from clustersim.simulator.charts import figures as charts

    loaded = load(scenario, settings)
    several = loaded.runs
    stems = file_stems([one.name for one in several])
    for one in several:
        one.check_trains("activations")
        axes = axes_of(one, over or ())
        with progress(f"activations of {one.name}"):
            figure = activations_chart(one, axes)
        stem = stems[one.name]
        path = output or Path(f"{stem}_activations.png")
        if output and len(several) > 1:
            path = output.with_name(f"{output.stem}_{stem}{output.suffix}")
        charts.write(figure, path)
        print(path)


def _window(text: str) -> tuple[float, float]:

    begin, _, end = text.partition(":")
    try:
        window = parse(begin, "time"), parse(end, "time")
    except ValueError as error:
        raise ScenarioError(f"--window {text}: {error}; write e.g. 1s:2s") from None
    if not 0 <= window[0] < window[1]:
        raise ScenarioError(f"--window {text}: must begin before it ends; write e.g. 1s:2s")
    return window
