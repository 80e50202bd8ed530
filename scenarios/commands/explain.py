"""`clustersim explain` says where the time of a real run goes, and why it differs from the simulation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.scenarios.commands.application import AsJson, Settings, command, complete_scenarios, load
from clustersim.scenarios.commands.runner import print_json
from clustersim.scenarios.commands.terminal import say
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import check_writable

if TYPE_CHECKING:
    from clustersim.scenarios.real_traces.run import RealRun
    from clustersim.scenarios.scenario import Scenario


@command()
def explain(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE",
            help="Traces of torch.profiler (.json, .json.gz) or Nsight Systems (.sqlite), one a rank, or folders.",
        ),
    ],
    scenario: Annotated[
        str | None,
        typer.Option(
            "--scenario", "-s", metavar="SCENARIO", help="What the run is compared with.",
            autocompletion=complete_scenarios,
        ),
    ] = None,
    settings: Settings = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            "--calibrate", metavar="FILE", help="Write a calibration: kernel times by shape, collectives by size."
        ),
    ] = None,
    fastest: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Explain the N fastest steps alone: other work only lengthens a step."),
    ] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Explain traces of real ranks: step, busy, exposed communication, idle; with a scenario the gap and its causes."""
    from clustersim.scenarios.explain.report import summary
    from clustersim.scenarios.real_traces.run import run_of

    if settings and scenario is None:
        raise ScenarioError("--set sets values of a scenario; give that too: --scenario SCENARIO")
    if calibration is not None:
        check_writable(calibration)
    loaded = load(scenario, settings) if scenario is not None else None
    run = run_of(traces, fastest)
    if as_json:
        print_json(summary(run, loaded))
    else:
        _report(run, loaded)
    if calibration is not None:
        from clustersim.scenarios.explain.calibration import write

        text = write(run, loaded, calibration)
        if not as_json:
            say(f"\n{text}")


def _report(run: RealRun, scenario: Scenario | None) -> None:
    """Print the report on *run*, and on its gap to *scenario* if there is one."""
    from clustersim.scenarios.explain.changes import suggestions
    from clustersim.scenarios.explain.gap import compared
    from clustersim.scenarios.explain.report import gap_report, run_report, suggestions_report

    if scenario is None:
        say(run_report(run))
        return
    timeline, found = compared(run, scenario)
    gpu = scenario.cluster().accelerator(scenario.derived.devices[0])
    say(run_report(run, gpu, found.calls))
    say("\n" + gap_report(found, scenario.name))
    say("\n" + suggestions_report(suggestions(scenario, timeline, found)))
