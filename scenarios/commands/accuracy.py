"""`clustersim accuracy` compares published runs with their measurements and writes the accuracy page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.application import app
from scenarios.commands.arguments import Jobs, Settings

if TYPE_CHECKING:
    from scenarios.evaluate.evaluation import Evaluation

PROFILES = "published/layer_profiles_v100.csv"
"""PipeDream's layer profiles, beside the published scenarios that read them."""


@app.command()
def accuracy(
    scenarios: Annotated[
        list[str] | None, typer.Argument(metavar="SCENARIO", help="Scenarios to evaluate (all published runs).")
    ] = None,
    settings: Settings = None,
    output: Annotated[Path, typer.Option("-o", metavar="FILE.md", help="The page to write.")] = Path("ACCURACY.md"),
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw predictions against measurements into a folder.")
    ] = None,
    left_out: Annotated[
        list[str] | None, typer.Option("--except", metavar="NAME", help="A published run to leave out; repeatable.")
    ] = None,
    intervals: Annotated[
        Path | None,
        typer.Option(metavar="FILE.yaml", help="Write the intervals of step times by regime, which reports print."),
    ] = None,
    jobs: Jobs = 1,
) -> int:
    """Evaluate published runs, and write every figure and the errors by category as a page.

    Until all runs are done, the finished ones stand in FILE.partial.md. After a fit, --intervals
    scenarios/results/intervals.yaml makes the intervals of all reports anew.
    """
    from datetime import date

    from scenarios.commands.evaluating import evaluated, print_failures
    from scenarios.evaluate import comparisons
    from scenarios.evaluate.accuracy import page
    from scenarios.evaluate.layer_classes import layer_classes
    from scenarios.scenario import Scenario
    from scenarios.specification import loading
    from simulator.files import write_text

    absent = {loading.located(name).stem: "left out with --except" for name in left_out or ()}
    names = [name for name in scenarios or loading.shipped("published") if name not in absent]
    loaded = [Scenario.load(name, options=settings) for name in names]
    classes = layer_classes(loading.SHIPPED / PROFILES)
    command = " ".join(["clustersim accuracy", *(scenarios or []), *(f"--except {name}" for name in left_out or ())])
    evaluations: list[Evaluation] = []

    def write(path: Path) -> None:
        waiting = {one.name: "not evaluated yet" for one in loaded[len(evaluations) :]}
        write_text(path, page(evaluations, {**absent, **waiting}, classes, command, date.today()))

    partial = output.with_name(f"{output.stem}.partial{output.suffix}")
    for evaluation in evaluated(loaded, jobs):
        evaluations.append(evaluation)
        write(partial)  # keeps the finished evaluations if the rest is interrupted
    write(output)
    partial.unlink(missing_ok=True)
    print(comparisons.groups_text(evaluations))
    print(f"wrote {output}")
    if intervals is not None:
        _write_intervals(evaluations, command, intervals)
        print(f"wrote {intervals}")
    for path in _drawn(evaluations, figures) if figures is not None else ():
        print(f"wrote {path}")
    return print_failures(evaluations)


def _write_intervals(evaluations: Sequence[Evaluation], command: str, output: Path) -> None:
    """Write the intervals by the residuals of *evaluations*. Raises `ScenarioError` if there are too few."""
    from datetime import date

    from scenarios.evaluate.intervals import contents, residuals
    from scenarios.results.interval import FEWEST
    from simulator.document.yaml_text import yaml_text
    from simulator.errors import ScenarioError
    from simulator.files import write_text

    rows = list(residuals(comparison for one in evaluations for comparison in one.comparisons))
    if len(rows) < FEWEST:
        raise ScenarioError(f"{output}: intervals need {FEWEST} step times that nothing was fitted to, not {len(rows)}")
    write_text(output, yaml_text(contents(rows, command, date.today())))


def _drawn(evaluations: Sequence[Evaluation], folder: Path) -> Iterator[Path]:
    """Draw all times on one diagonal, and TFLOP/s over GPUs for scenarios that scale; yield the files."""
    from scenarios.evaluate import comparisons
    from simulator.analysis.plot.agreement import draw_agreement, draw_scaling

    draw_agreement(comparisons.times(evaluations), folder / "accuracy.png")
    yield folder / "accuracy.png"
    for one in evaluations:
        series = comparisons.scaling(one)
        if len(series) > 1:
            path = folder / f"{one.scenario.name}.png"
            title = one.scenario.specification.description.partition(",")[0]
            draw_scaling(series, path, quantity="TFLOP/s a GPU, recomputation counted", title=title)
            yield path
