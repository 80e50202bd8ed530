"""`clustersim sweep` runs a scenario over values of some of its keys, and writes a row for each run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.scenarios.commands.application import (
    BAD_INPUT,
    InterruptedRunError,
    Jobs,
    On,
    OneScenario,
    Settings,
    command,
    load,
)
from clustersim.scenarios.commands.runner import print_answer
from clustersim.scenarios.commands.terminal import progress
from clustersim.simulator.reading.errors import ExecutionError
from clustersim.simulator.reading.files import check_writable, file_stems, suffix_of

if TYPE_CHECKING:
    from clustersim.scenarios.run.sweep import Sweep
    from clustersim.scenarios.run.sweep_table import SweepAxis, SweepRow
    from clustersim.scenarios.scenario import Scenario


@command()
def sweep(
    scenario: OneScenario,
    over: Annotated[
        list[str], typer.Option("--over", metavar="KEY.PATH=VALUE,...", help="A key and its values; repeatable.")
    ],
    zipped: Annotated[
        bool, typer.Option("--zip", help="Take the first values together, then the second; else all combinations.")
    ] = False,
    settings: Settings = None,
    jobs: Jobs = 1,
    on: On = "",
    output: Annotated[
        Path | None, typer.Option("-o", metavar="FILE", help="Write the table: .csv, .csv.gz or .parquet.")
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="X:Y[:HUE]",
            help="Draw column Y over column X as a line for each HUE, or HUE over the keys X and Y as a heat map; "
            "beside the table, or to NAME_sweep.png.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON, and nothing else.")] = False,
) -> int:
    """Run a scenario over values of its keys: all combinations, a row of numbers for each."""
    from clustersim.scenarios.run import sweep_report, sweep_table
    from clustersim.scenarios.run.sweep_report import Plot

    chosen = sweep_table.of_options(over)
    drawn = Plot.of_text(plot) if plot is not None else None
    if drawn is not None:
        sweep_report.check(drawn, chosen)
    if output is not None:
        sweep_table.check(output)
    loaded = load(scenario, settings)
    picture = _picture(output, loaded.name)
    if drawn is not None:
        check_writable(picture)
    result = _swept(loaded, chosen, zipped, jobs, on, output)
    if output is not None:
        result.write(output)
    print_answer(result, as_json)
    if drawn is not None:
        result.plot(picture, drawn.x, drawn.y, drawn.hue)
    for path in filter(None, (output, drawn and picture)):
        print(f"wrote {path}", file=sys.stderr if as_json else sys.stdout)
    return BAD_INPUT if result.failed else 0


def _picture(output: Path | None, name: str) -> Path:
    """Return the file of the chart: beside the table *output*, or named after the scenario."""
    from clustersim.scenarios.run.sweep_table import SUFFIXES

    if output is None:
        return Path(f"{file_stems([name])[name]}_sweep.png")
    return output.with_name(f"{output.name[: -len(suffix_of(output, SUFFIXES))]}.png")


def _swept(
    scenario: Scenario, axes: tuple[SweepAxis, ...], zipped: bool, jobs: int, on: str, output: Path | None
) -> Sweep:
    """Return the sweep of *scenario*. Cut off, it writes the rows that are done beside *output*."""
    from contextlib import closing

    from clustersim.scenarios.run.sweep import Sweep, executed, runs

    several = list(runs(scenario, axes, zipped, remote=bool(on)))
    rows: dict[int, SweepRow] = {}
    try:
        with (
            progress(f"simulating {len(several)} runs", parts=len(several)) as shown,
            closing(executed(several, jobs, on)) as ended,
        ):
            for index, row in ended:
                rows[index] = row
                shown.advance()
    except (KeyboardInterrupt, ExecutionError) as error:
        kept = Sweep(scenario.name, axes, tuple(rows[index] for index in sorted(rows)))
        done = _keep(kept, len(several), output)
        if isinstance(error, KeyboardInterrupt):
            raise InterruptedRunError(done) from None
        raise ExecutionError(f"{error}; {done}" if rows else str(error)) from None
    return Sweep(scenario.name, axes, tuple(rows[index] for index in range(len(several))))


def _keep(rows: Sweep, count: int, output: Path | None) -> str:
    """Write the *rows* of a sweep that was cut off beside *output*; return what is missing."""
    done = f"{len(rows.rows)} of {count} runs were done"
    if output is None or not rows.rows:
        return done
    partial = output.with_name(f"{output.name.partition('.')[0]}.partial{''.join(output.suffixes)}")
    rows.write(partial)
    return f"{done}; their rows are in {partial}"
