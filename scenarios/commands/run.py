"""`clustersim run` simulates scenarios, prints reports and writes results."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.scenarios.commands.application import AsJson, Jobs, Scenarios, Settings, command, numbers
from clustersim.scenarios.commands.runner import (
    DOES_NOT_FIT,
    MISSED,
    interruptible,
    print_evaluations,
    print_one_or_list,
)
from clustersim.scenarios.commands.terminal import progress, say
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import file_stems, suffix_of
from clustersim.simulator.reading.plain_text import name_fault
from clustersim.simulator.schedule.gc_paused import gc_paused

if TYPE_CHECKING:
    from clustersim.scenarios.commands.terminal import Progress
    from clustersim.scenarios.results.result import Result
    from clustersim.scenarios.scenario import Scenario
    from clustersim.simulator.analysis.timeline import Timeline


@dataclass(frozen=True)
class Files:
    """The options that say what is written where; by default no trace, no table of spans, all ranks."""

    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            metavar="DIR",
            help="Where to write, in place of a former run. Else runs/NAME, or runs/NAME-2 ... if that exists.",
        ),
    ] = None
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the run, instead of the scenario's.")] = None
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a trace: .pftrace (Perfetto), .json or .json.gz (Chrome)."),
    ] = None
    spans: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a row for each span: .csv, .csv.gz or .parquet.")
    ] = None
    ranks: Annotated[
        str | None,
        typer.Option(
            help="Ranks of the trace and the chart, e.g. 0,8:16 (8 to 15); one of all equal ones if not given."
        ),
    ] = None

    def check(self, scenarios: int) -> None:
        """Raise `SimulatorError` for a file without a format, wrong ranks, or a name that cannot be that of one run."""
        if self.name is not None and scenarios > 1:
            raise ScenarioError(f"--name {self.name}: names one run, not {scenarios}")
        if self.trace is not None:
            suffix_of(self.trace, (".pftrace", ".json", ".json.gz"))
        if self.spans is not None:
            suffix_of(self.spans, (".csv", ".csv.gz", ".parquet"))
        _ = self.chosen
        if self.name is not None and (fault := name_fault(self.name)):
            raise ScenarioError(f"--name {self.name}: {fault}")

    @cached_property
    def chosen(self) -> list[int] | None:
        """The ranks of the trace and the chart; None: all."""
        return numbers(self.ranks) if self.ranks else None

    @property
    def asked(self) -> bool:
        """True if the options say where something is written."""
        return any(one is not None for one in (self.output, self.name, self.trace, self.spans))


@dataclass(frozen=True)
class OfModel:
    """The options of a model that is run in place of a scenario."""

    cluster: Annotated[
        str | None,
        typer.Option(help="Run a model (its name, or a config.json), or traces of real ranks, on this cluster."),
    ] = None
    nodes: Annotated[int, typer.Option(min=1, help="Of a model or of traces: nodes of the cluster.")] = 1
    batch: Annotated[int | None, typer.Option(min=1, help="Of a model: samples of a step, 8 a GPU if not given.")] = (
        None
    )
    tokens: Annotated[str | None, typer.Option(help="Of a model: tokens of the whole run, e.g. 1T.")] = None

    def loaded(self, names: list[str], run: str | None, settings: list[str] | None) -> list[Scenario]:
        """Return the scenarios, or those of the models, *names*; *run*: the name of theirs, if it is given."""
        from clustersim.scenarios.scenario import Scenario

        if self.are_traces(names):
            return [self._of_traces(names, run, settings)]
        if self.cluster is not None:
            own = [*(settings or []), *([f"name={run}"] if run else [])]
            return [Scenario.of_model(one, self.cluster, self.nodes, self.batch, self.tokens, own) for one in names]
        nodes = self.nodes if self.nodes > 1 else None
        for option, value in (("--batch", self.batch), ("--tokens", self.tokens), ("--nodes", nodes)):
            if value is not None:
                raise ScenarioError(f"{option} belongs to a model: give its --cluster too; --set changes a scenario")
        return [Scenario.load(one, {"name": run} if run is not None else None, settings) for one in names]

    @staticmethod
    def are_traces(names: list[str]) -> bool:
        """True if *names* are traces of real ranks, of which the first has a name that a scenario does not have."""
        if not (Path(names[0]).is_dir() or names[0].endswith((".json", ".gz", ".trace", ".et"))):
            return False
        from clustersim.scenarios.real_traces.traced_step import is_trace

        return all(map(is_trace, names))

    def _of_traces(self, names: list[str], run: str | None, settings: list[str] | None) -> Scenario:
        from clustersim.scenarios.real_traces.traced_step import data_of
        from clustersim.scenarios.scenario import Scenario

        if self.cluster is None:
            raise ScenarioError(
                f"{names[0]} is a trace, which is replayed on a cluster: "
                f"clustersim run {names[0]} --cluster dgx_h100 --nodes 1"
            )
        for option, value in (("--batch", self.batch), ("--tokens", self.tokens)):
            if value is not None:
                raise ScenarioError(f"{option} belongs to a model; a trace has the batch with which it was recorded")
        return Scenario.model_validate(
            {**data_of(names, self.cluster, self.nodes), **({"name": run} if run else {})}, settings
        )


@command()
def run(
    scenarios: Scenarios,
    *,
    settings: Settings = None,
    as_json: AsJson = False,
    files: Files,
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
    of_model: OfModel,
) -> int:
    """Simulate scenarios, report, and write results under runs/NAME."""
    if jobs > 1 and not check:
        raise ScenarioError("--jobs shares the runs of --check; give that too")
    files.check(1 if of_model.are_traces(scenarios) else len(scenarios))
    loaded = of_model.loaded(scenarios, files.name, settings)
    several = len(loaded) > 1 or any(scenario.variants for scenario in loaded)
    if check and several and not files.asked:
        return print_evaluations(loaded, jobs, as_json, strict_memory)
    return _run_each(loaded, files, as_json, check, strict_memory)


def _run_each(loaded: list[Scenario], files: Files, as_json: bool, check: bool, strict_memory: bool) -> int:
    """Run, report and write each scenario; return the exit status."""
    from clustersim.scenarios.results.expectations import held, text
    from clustersim.scenarios.results.result import check_finite
    from clustersim.scenarios.run.running import simulations

    status, summaries = 0, []
    folders = _RunFolders(files.output, len(loaded))
    for number, scenario in enumerate(loaded, 1):
        place = f" ({number} of {len(loaded)})" if len(loaded) > 1 else ""
        with (
            interruptible(f"{scenario.name} was not simulated to its end; nothing of it was written"),
            progress(f"simulating {scenario.name}{place}", files.chosen, simulations(scenario)) as shown,
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
        if (files.trace is not None or files.spans is not None) and not result.timelines:
            raise ScenarioError(
                f"{scenario.name} is a queue: it has no trace and no spans of ops; jobs.csv has its jobs"
            )
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
    from clustersim.scenarios.search.sensitivity import next_change

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


def _write(result: Result, target: Path, numbered: bool, files: Files) -> None:
    """Write result, spans, scenario and charts of *result* into the folder *target*; print what can be done next.

    *numbered*: take another name if it exists.
    """
    from clustersim.scenarios.results.result_files import MOST_SPANS, count, leaves_out_spans, write
    from clustersim.scenarios.results.run_folder import written_into

    with interruptible(f"{target} was not written"), progress("writing") as shown:
        shown.begin(f"writing {target}", count(result))
        paths, removed = written_into(
            target, lambda folder: write(result, folder, files.chosen, shown.advance), numbered=numbered
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
    compared = f"clustersim compare {folder}" + ("" if len(result.runs) > 1 else " OTHER")
    chart = "queue" if not result.timelines else "links"
    print(f"next: clustersim plot {folder} {chart}   or   {compared}")


def _write_timelines(result: Result, files: Files, runs: int) -> None:
    """Write traces and tables of spans of *result*, one of *runs* results, as far as they were asked for."""
    from clustersim.simulator.traces import perfetto_and_chrome, span_table

    with progress("writing") as shown:
        if files.trace is not None:
            for timeline, target in _targets(result, files.trace, runs):
                shown.begin(f"writing {target}")
                perfetto_and_chrome.write(timeline, target, files.chosen)
        if files.spans is not None:
            for timeline, target in _targets(result, files.spans, runs):
                shown.begin(f"writing {target}")
                span_table.write(timeline, target)


def _targets(result: Result, path: Path, runs: int) -> Iterator[tuple[Timeline, Path]]:
    """Yield each timeline of *result* and its file: *path*, with the timeline's name added if there are several."""

    timelines, stems = result.timelines, file_stems(result.timelines)
    stem, dot, suffixes = path.name.partition(".")
    for name, timeline in timelines.items():
        alone = runs == 1 and len(timelines) == 1
        yield timeline, path if alone else path.with_name(f"{stem}_{stems[name]}{dot}{suffixes}")
