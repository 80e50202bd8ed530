"""`clustersim report` writes one HTML page of runs, which works offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clustersim.scenarios.commands.application import Jobs, Settings, command
from clustersim.scenarios.commands.terminal import progress
from clustersim.simulator.reading.files import check_writable, suffix_of
from clustersim.simulator.schedule.gc_paused import gc_paused


@command()
def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN", help="Scenarios, directories that `run` or `plan -o` wrote, or tables of `sweep -o` (.csv)."
        ),
    ],
    output: Annotated[Path, typer.Option("-o", metavar="FILE", help="The page, an .html file.")] = Path("report.html"),
    settings: Settings = None,
    jobs: Jobs = 1,
) -> None:
    """Write one HTML page of runs that works offline. Directories that run wrote are simulated again."""
    from clustersim.scenarios.commands.runner import simulated_by_name
    from clustersim.scenarios.report import page
    from clustersim.scenarios.report.found import sorted_out

    suffix_of(output, (".html", ".htm"))
    check_writable(output)
    page.check()
    given = sorted_out(runs)
    results = simulated_by_name(list(given.runs), settings, jobs)
    with progress("writing") as shown, gc_paused():
        shown.begin(f"writing {output}")
        page.write(results, given, output)
    print(f"wrote {output}, {output.stat().st_size / 1e6:.1f} MB")
