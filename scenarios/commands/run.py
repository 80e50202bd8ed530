"""`clustersim run` simulates scenarios, prints reports and writes results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.scenarios.commands.application import Jobs, Scenarios, Settings, app, numbers
from clustersim.scenarios.commands.runner import (
    DOES_NOT_FIT,
    MISSED,
    interruptible,
    print_evaluations,
    print_one_or_list,
)
from clustersim.scenarios.commands.terminal import progress, say

if TYPE_CHECKING:
    from clustersim.scenarios.commands.terminal import Progress
    from clustersim.scenarios.results.result import Result
    from clustersim.scenarios.scenario import Scenario
    from clustersim.simulator.analysis.timeline import Timeline


@app.command()
def run(
    scenarios: Scenarios,
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            metavar="DIR",
            help="Where to write, in place of a former run. Else runs/NAME, or runs/NAME-2 ... if that exists.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the run, instead of the scenario's.")
    ] = None,
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
    cluster: Annotated[
        str | None,
        typer.Option(help="Run a model in place of a scenario (its name, or a config.json) on this cluster."),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Of a model: nodes of the cluster.")] = 1,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Of a model: samples of a step, 8 a GPU if not given.")
    ] = None,
    tokens: Annotated[str | None, typer.Option(help="Of a model: tokens of the whole run, e.g. 1T.")] = None,
) -> int:
    """Simulate scenarios, report, and write results under runs/NAME."""
    from clustersim.scenarios.scenario import Scenario
    from clustersim.simulator.reading.errors import ScenarioError
    from clustersim.simulator.reading.plain_text import name_fault

    if jobs > 1 and not check:
        raise ScenarioError("--jobs shares the runs of --check; give that too")
    if name is not None and len(scenarios) > 1:
        raise ScenarioError(f"--name {name}: names one run, not {len(scenarios)}")
    _check_suffixes(trace, spans)
    files = _Files(output, trace, spans, numbers(ranks) if ranks else None)
    if name is not None and (fault := name_fault(name)):
        raise ScenarioError(f"--name {name}: {fault}")
    renamed = {"name": name} if name is not None else None
    if cluster is None:
        _check_options(batch, tokens, nodes)
        loaded = [Scenario.load(scenario, renamed, settings) for scenario in scenarios]
    else:
        named = [*(settings or []), *([f"name={name}"] if name else [])]
        loaded = [Scenario.of_model(model, cluster, nodes, batch, tokens, named) for model in scenarios]
    several = len(loaded) > 1 or any(scenario.variants for scenario in loaded)
    if check and several and output is None and name is None and trace is None and spans is None:
        return print_evaluations(loaded, jobs, as_json, strict_memory)
    return _run_each(loaded, files, as_json, check, strict_memory)


def _check_options(batch: int | None, tokens: str | None, nodes: int) -> None:
    """Raise `ScenarioError` for options of a model without its cluster."""
    from clustersim.simulator.reading.errors import ScenarioError

    options = {"--batch": batch, "--tokens": tokens, "--nodes": nodes if nodes > 1 else None}
    if given := next((option for option, value in options.items() if value is not None), None):
        raise ScenarioError(f"{given} belongs to a model: give its --cluster too; --set changes a scenario")


def _check_suffixes(trace: Path | None, spans: Path | None) -> None:
    """Raise `SimulatorError` if the name of a file does not tell its format."""
    from clustersim.simulator.reading.files import suffix_of

    if trace is not None:
        suffix_of(trace, (".pftrace", ".json", ".json.gz"))
    if spans is not None:
        suffix_of(spans, (".csv", ".csv.gz", ".parquet"))


@dataclass(frozen=True)
class _Files:
    """The options that say what is written where; None: the default folder, no trace, no table of spans, all ranks."""

    output: Path | None
    trace: Path | None
    spans: Path | None
    ranks: list[int] | None


def _run_each(loaded: list[Scenario], files: _Files, as_json: bool, check: bool, strict_memory: bool) -> int:
    """Run, report and write each scenario; return the exit status."""
    from clustersim.scenarios.results.expectations import held, text
    from clustersim.scenarios.results.result import check_finite
    from clustersim.scenarios.run.running import simulations
    from clustersim.simulator.schedule.gc_paused import gc_paused

    status, summaries = 0, []
    folders = _RunFolders(files.output, len(loaded))
    for number, scenario in enumerate(loaded, 1):
        place = f" ({number} of {len(loaded)})" if len(loaded) > 1 else ""
        with (
            interruptible(f"{scenario.name} was not simulated to its end; nothing of it was written"),
            progress(f"simulating {scenario.name}{place}", files.ranks, simulations(scenario)) as shown,
            gc_paused(),
        ):
            result = scenario.run(shown)
            shown.begin(f"analysing {scenario.name}")
            summaries.append(result.summary())
            check_finite(summaries[-1])
            report = "" if as_json else _report(scenario, result, shown)
        if not as_json:
            say(report)
            _write(result, *folders.of(scenario.name), files)
        if files.trace is not None or files.spans is not None:
            _write_timelines(result, files, len(loaded))
        outcome = held(scenario, result.summary()) if check else []
        _print(text(outcome), as_json)
        status = max(status, MISSED if any(not one.met for one in outcome) else 0)
        status = max(status, DOES_NOT_FIT if strict_memory and not result.fits else 0)
    if as_json:
        print_one_or_list(summaries)
    return status


def _report(scenario: Scenario, result: Result, shown: Progress) -> str:
    """Return the report of *result*, with the next best change against the bubble of a pipeline."""
    from clustersim.scenarios.results.step_numbers import StepNumbers
    from clustersim.scenarios.search.simulated_changes import next_change

    report = result.report()
    if not isinstance(result, StepNumbers):
        return report
    shown.begin(f"trying a change of {scenario.name}")
    change = next_change(scenario, result)
    return f"{report}\n\n{change}" if change else report


class _RunFolders:
    """Where results go: below *output*, or below ``runs`` if it is None; *runs*: how many results there are."""

    def __init__(self, output: Path | None, runs: int) -> None:
        self.output, self.runs = output, runs
        self._taken: set[str] = set()

    def of(self, name: str) -> tuple[Path, bool]:
        """Return the folder of the run *name*, and whether it gets a number if it exists."""
        again = name in self._taken
        self._taken.add(name)
        if self.output is None:
            return Path("runs") / name, True
        return (self.output if self.runs == 1 else self.output / name), again


def _print(text: str, on_stderr: bool) -> None:
    import sys

    if text:
        print(text, file=sys.stderr if on_stderr else sys.stdout)


def _write(result: Result, target: Path, numbered: bool, files: _Files) -> None:
    """Write result, spans, scenario and charts of *result* into the folder *target*; print what can be done next.

    *numbered*: take another name if it exists.
    """
    from clustersim.scenarios.results.result_files import MOST_SPANS, count, leaves_out_spans, write
    from clustersim.scenarios.results.run_folder import written_into

    with interruptible(f"{target} was not written"), progress("writing") as shown:
        shown.begin(f"writing {target}", count(result))
        paths, removed = written_into(
            target, lambda folder: write(result, folder, files.ranks, shown.advance), numbered=numbered
        )
    for path in removed:
        print(f"removed {path}, of a former run")
    for path in paths:
        print(f"wrote {path}")
    folder = paths[0].parent
    if folder != target:
        print(f"{target} holds another run and stays as it is")
    if files.spans is None and leaves_out_spans(result):
        print(f"spans.csv left out, {MOST_SPANS:,} rows or more; to get it: --spans {folder / 'spans.csv'}")
    compared = f"clustersim compare {folder}" + ("" if len(result.timelines) > 1 else " OTHER")
    print(f"next: clustersim plot {folder} links   or   {compared}")


def _write_timelines(result: Result, files: _Files, runs: int) -> None:
    """Write traces and tables of spans of *result*, one of *runs* results, as far as they were asked for."""
    from clustersim.simulator.traces import perfetto_and_chrome, span_table

    with progress("writing") as shown:
        if files.trace is not None:
            for timeline, target in _targets(result, files.trace, runs):
                shown.begin(f"writing {target}")
                perfetto_and_chrome.write(timeline, target, files.ranks)
        if files.spans is not None:
            for timeline, target in _targets(result, files.spans, runs):
                shown.begin(f"writing {target}")
                span_table.write(timeline, target)


def _targets(result: Result, path: Path, runs: int) -> Iterator[tuple[Timeline, Path]]:
    """Yield each timeline of *result* and its file: *path*, with the timeline's name added if there are several."""
    from clustersim.simulator.reading.files import file_stems

    timelines, stems = result.timelines, file_stems(result.timelines)
    stem, dot, suffixes = path.name.partition(".")
    for name, timeline in timelines.items():
        alone = runs == 1 and len(timelines) == 1
        yield timeline, path if alone else path.with_name(f"{stem}_{stems[name]}{dot}{suffixes}")
