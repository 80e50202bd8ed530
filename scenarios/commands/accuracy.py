"""`clustersim accuracy` compares published runs with their measurements and writes the accuracy page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.scenarios.commands.application import Jobs, Settings, command
from clustersim.scenarios.commands.terminal import progress
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import write_text

if TYPE_CHECKING:
    from clustersim.scenarios.accuracy.evaluation import Evaluation

ALL = Path("ACCURACY.md")
"""The page of all published runs."""

PROFILES = "published/layer_profiles_v100.csv"
"""PipeDream's layer profiles, beside the published scenarios that read them."""


@dataclass(frozen=True)
class Output:
    """The options that say what is written where, and which runs are left out."""

    page: Annotated[
        Path | None,
        typer.Option("-o", metavar="FILE.md", help="The page to write (ACCURACY.md if all runs are evaluated)."),
    ] = None
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw predictions against measurements into a folder.")
    ] = None
    left_out: Annotated[
        list[str] | None, typer.Option("--except", metavar="NAME", help="A published run to leave out; repeatable.")
    ] = None
    intervals: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write the intervals of step times by regime, which reports print."),
    ] = None
    rows: Annotated[
        Path | None,
        typer.Option(metavar="FILE.md", help="The page of all figures (accuracy_rows.md beside the page, or in docs)."),
    ] = None


@command()
def accuracy(
    scenarios: Annotated[
        list[str] | None, typer.Argument(metavar="SCENARIO", help="Scenarios to evaluate (all published runs).")
    ] = None,
    *,
    settings: Settings = None,
    output: Output,
    refit: Annotated[
        bool, typer.Option("--refit", help="First fit all parameters without each source in turn: up to an hour.")
    ] = False,
    jobs: Jobs = 1,
) -> int:
    """Evaluate published runs, each by constants that have not seen its source, and write the errors as a page.

    A second page has every figure. Some runs only, or runs with --set, are printed, and written where -o says;
    ACCURACY.md is the page of all runs as they are. Until all runs are done, the finished ones stand in
    FILE.partial.md. After a change of predictions, --intervals scenarios/results/intervals.json makes the intervals of
    all reports anew.
    """
    from clustersim.scenarios.accuracy import comparisons
    from clustersim.scenarios.commands.runner import print_failures

    command = " ".join(
        ["clustersim accuracy", *(scenarios or []), *(f"--except {name}" for name in output.left_out or ())]
    )
    whole = not (scenarios or settings or output.left_out)
    page = ALL if whole and output.page is None else output.page
    evaluations = _evaluated(scenarios, settings, output, page, command, jobs, refit)
    print(comparisons.groups_text(evaluations))
    if page is not None:
        _write_rows(evaluations, command, output.rows or _beside(page), page)
    else:
        print(f"some of the published runs: {ALL} is left as it is; -o FILE.md writes a page of these")
    if output.intervals is not None:
        _write_intervals(evaluations, command, output.intervals)
        print(f"wrote {output.intervals}")
    for path in _drawn(evaluations, output.figures) if output.figures is not None else ():
        print(f"wrote {path}")
    return print_failures(evaluations)


def _evaluated(
    scenarios: list[str] | None,
    settings: list[str] | None,
    output: Output,
    page: Path | None,
    command: str,
    jobs: int,
    refit: bool,
) -> list[Evaluation]:
    """Return the evaluations of *scenarios*, or of all published runs, and write *page*.

    The finished ones are kept in FILE.partial.md until all are done. With *refit* the parameters are fitted first.
    """
    from clustersim.scenarios.accuracy.accuracy import page as page_of
    from clustersim.scenarios.accuracy.layers_and_products import TABLE, products
    from clustersim.scenarios.accuracy.left_out import refit_of
    from clustersim.scenarios.commands.runner import evaluated
    from clustersim.scenarios.scenario import Scenario
    from clustersim.scenarios.specification import loading

    absent = {loading.located(name).stem: "left out with --except" for name in output.left_out or ()}
    names = [name for name in scenarios or loading.shipped("published") if name not in absent]
    if refit:
        _refit(jobs)
    refused: dict[str, dict[str, str]] = {name: {} for name in names}
    loaded = [Scenario.load(name, options=settings, refused=refused[name]) for name in names]
    without = {one.name: found for one in loaded if (found := refit_of(one.name)) is not None}
    priced = products(loading.SHIPPED / TABLE) if not scenarios else []
    partial = page.with_name(f"{page.stem}.partial{page.suffix}") if page else None
    evaluations: list[Evaluation] = []
    for name, evaluation in zip(names, evaluated(loaded, jobs, without), strict=True):
        evaluations.append(replace(evaluation, refused=refused[name]))
        if partial:
            # keeps the finished evaluations if the rest is interrupted
            waiting = {one.name: "not evaluated yet" for one in loaded[len(evaluations) :]}
            write_text(partial, page_of(evaluations, {**absent, **waiting}, priced, command, date.today()))
    if partial and page:
        write_text(page, page_of(evaluations, absent, priced, command, date.today()))
        partial.unlink(missing_ok=True)
    return evaluations


def _write_rows(evaluations: Sequence[Evaluation], command: str, path: Path, page: Path) -> None:
    """Write the page of all figures to *path*, beside *page*."""
    from clustersim.scenarios.accuracy.accuracy import rows_page
    from clustersim.scenarios.accuracy.layers_and_products import layer_classes
    from clustersim.scenarios.specification import loading

    classes = layer_classes(loading.SHIPPED / PROFILES)
    write_text(path, rows_page(evaluations, classes, command, date.today()))
    print(f"wrote {page}\nwrote {path}")


def _beside(page: Path) -> Path:
    """Return the page of all figures that belongs to *page*: in the folder docs beside it, if there is one."""
    folder = page.parent / "docs"
    return (folder if folder.is_dir() else page.parent) / f"{page.stem.lower()}_rows.md"


def _refit(jobs: int) -> None:
    """Fit all parameters without each source in turn, and print the files."""
    from clustersim.scenarios.accuracy.left_out import fits_without, refit

    with progress("fitting without each source", parts=len(fits_without())) as shown:
        paths = refit(jobs, shown.advance)
    for path in paths:
        print(f"wrote {path}")


def _write_intervals(evaluations: Sequence[Evaluation], command: str, output: Path) -> None:
    """Write the intervals by the errors of *evaluations*. Raises `ScenarioError` if there are too few."""
    from clustersim.scenarios.accuracy.comparisons import FEWEST_SOURCES, step_calibration
    from clustersim.scenarios.accuracy.prediction_intervals import contents

    found = step_calibration(evaluations)
    if not found.judging:
        raise ScenarioError(f"{output}: intervals need steps of {FEWEST_SOURCES} sources that inform no constant")
    write_text(output, json.dumps(contents(found, command, date.today()), indent=1, ensure_ascii=False) + "\n")


def _drawn(evaluations: Sequence[Evaluation], folder: Path) -> Iterator[Path]:
    """Draw all times on one diagonal, and TFLOP/s over GPUs for scenarios that scale; yield the files."""
    from clustersim.scenarios.accuracy import comparisons
    from clustersim.simulator.charts.scatter import draw_agreement, draw_scaling

    draw_agreement(comparisons.times(evaluations), folder / "accuracy.png")
    yield folder / "accuracy.png"
    for one in evaluations:
        series = comparisons.scaling(one)
        if len(series) > 1:
            path = folder / f"{one.scenario.name}.png"
            title = one.scenario.specification.description.partition(",")[0]
            draw_scaling(series, path, quantity="TFLOP/s a GPU, recomputation counted", title=title)
            yield path
