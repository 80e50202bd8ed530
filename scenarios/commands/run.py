"""`clustersim run` simulates scenarios, prints reports and writes results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.application import app
from scenarios.commands.arguments import Jobs, Scenarios, Settings, numbers

if TYPE_CHECKING:
    from scenarios.results.result import Result
    from scenarios.scenario import Scenario
    from simulator.timeline import Timeline


@app.command()
def run(
    scenarios: Scenarios,
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")] = False,
    output: Annotated[Path | None, typer.Option("-o", metavar="DIR", help="Where to write (runs/NAME).")] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a trace: .pftrace (Perfetto), .json or .json.gz (Chrome)."),
    ] = None,
    spans: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a row for each span: .csv, .csv.gz or .parquet."),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            help="Ranks of the trace and the chart, e.g. 0,8:16 (8 to 15); one of all equal ones if not given."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Fail (status 1) if an expectation is missed. Of several runs only the table of expectations is "
            "printed, and without -o nothing is written.",
        ),
    ] = False,
    jobs: Jobs = 1,
    strict_memory: Annotated[
        bool, typer.Option("--strict-memory", help="Fail (status 3) if a GPU's memory does not suffice.")
    ] = False,
) -> int:
    """Simulate scenarios, report, and write results under runs/NAME."""
    from scenarios.scenario import Scenario
    from simulator.analysis.files import suffix_of
    from simulator.errors import ScenarioError

    if trace is not None:
        suffix_of(trace, (".pftrace", ".json", ".json.gz"))
    if spans is not None:
        suffix_of(spans, (".csv", ".csv.gz", ".parquet"))
    if jobs > 1 and not check:
        raise ScenarioError("--jobs shares the runs of --check; give that too")
    files = _Files(output, trace, spans, numbers(ranks) if ranks else None)
    loaded = [Scenario.load(name, options=settings) for name in scenarios]
    several = len(loaded) > 1 or any(scenario.variants for scenario in loaded)
    if check and several and output is None and trace is None and spans is None:
        from scenarios.commands.evaluating import print_evaluations

        return print_evaluations(loaded, jobs, as_json, strict_memory)
    return _run_each(loaded, files, as_json, check, strict_memory)


@dataclass(frozen=True)
class _Files:
    """The options that say what is written where; None: the default folder, no trace, no table of spans, all ranks."""

    output: Path | None
    trace: Path | None
    spans: Path | None
    ranks: list[int] | None


def _run_each(loaded: list[Scenario], files: _Files, as_json: bool, check: bool, strict_memory: bool) -> int:
    """Run, report and write each scenario; return the exit status."""
    import json

    from scenarios.commands.evaluating import DOES_NOT_FIT, MISSED
    from scenarios.commands.progress import progress
    from scenarios.results.expectations import held, text
    from scenarios.results.finite import check_finite
    from simulator.gc_paused import gc_paused

    status, summaries = 0, []
    for scenario in loaded:
        with progress(f"simulating {scenario.name}", files.ranks) as watch, gc_paused():
            result = scenario.run(watch)
            summaries.append(result.summary())
            check_finite(summaries[-1])
        if not as_json:
            print(result.report())
            _write(result, _folder(files.output, scenario.name, len(loaded)), files)
        _write_timelines(result, files, len(loaded))
        outcome = held(scenario, result.summary()) if check else []
        _print(text(outcome), as_json)
        status = max(status, MISSED if any(not one.met for one in outcome) else 0)
        status = max(status, DOES_NOT_FIT if strict_memory and not result.fits else 0)
    if as_json:
        print(json.dumps(summaries[0] if len(summaries) == 1 else summaries, indent=2))
    return status


def _folder(output: Path | None, name: str, runs: int) -> Path:
    if output is None:
        return Path("runs") / name
    return output if runs == 1 else output / name


def _print(text: str, on_stderr: bool) -> None:
    import sys

    if text:
        print(text, file=sys.stderr if on_stderr else sys.stdout)


def _write(result: Result, folder: Path, files: _Files) -> None:
    """Write result, spans, scenario and timeline chart of *result* into *folder*; print what can be done next."""
    from scenarios.results.writing import MOST_SPANS, leaves_out_spans, write

    for path in write(result, folder, files.ranks):
        print(f"wrote {path}")
    if files.spans is None and leaves_out_spans(result):
        print(f"spans.csv left out, {MOST_SPANS:,} rows or more; to get it: --spans {folder / 'spans.csv'}")
    compared = f"clustersim compare {folder}" + ("" if len(result.timelines) > 1 else " OTHER")
    print(f"next: clustersim plot {folder} links   or   {compared}")


def _write_timelines(result: Result, files: _Files, runs: int) -> None:
    """Write traces and tables of spans of *result*, one of *runs* results, as far as they were asked for."""
    from simulator.analysis import spans, trace

    if files.trace is not None:
        for timeline, target in _targets(result, files.trace, runs):
            trace.write(timeline, target, files.ranks)
    if files.spans is not None:
        for timeline, target in _targets(result, files.spans, runs):
            spans.write(timeline, target)


def _targets(result: Result, path: Path, runs: int) -> Iterator[tuple[Timeline, Path]]:
    """Yield each timeline of *result* and its file: *path*, with the timeline's name added if there are several."""
    timelines = result.timelines
    stem, dot, suffixes = path.name.partition(".")
    for name, timeline in timelines.items():
        alone = runs == 1 and len(timelines) == 1
        yield timeline, path if alone else path.with_name(f"{stem}_{name}{dot}{suffixes}")
