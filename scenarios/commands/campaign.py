"""`clustersim campaign` simulates a whole training run on machines that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clustersim.scenarios.commands.application import AsJson, OneScenario, Settings, command, load
from clustersim.scenarios.commands.runner import CHART_SUFFIXES, Made, run_each
from clustersim.scenarios.commands.terminal import progress
from clustersim.simulator.reading.files import suffix_of


@command()
def campaign(
    scenario: OneScenario,
    settings: Settings = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Samples of the campaign, in place of campaign.repeats.")
    ] = None,
    as_json: AsJson = False,
    output: Annotated[
        Path | None, typer.Option("-o", metavar="FILE", help="The chart: a .png, .svg or .pdf file.")
    ] = None,
) -> None:
    """Simulate a training run over days: failures, checkpoints, spare nodes, cost; draw its progress."""
    from functools import partial

    from clustersim.scenarios.campaign.campaign import run
    from clustersim.scenarios.campaign.report import draw, report, summary
    from clustersim.scenarios.results.result import check_finite
    from clustersim.scenarios.scenario import Scenario

    def make(one: Scenario) -> Made:
        section = one.specification.campaign
        with progress(f"simulating {one.name}", parts=repeats or (section.repeats if section else 0)) as shown:
            simulated = run(one, repeats, shown, shown.advance)
            numbers = summary(simulated)
            check_finite(numbers)
            if not as_json:
                shown.begin(f"comparing alternatives of {one.name}")
            return Made(numbers, "" if as_json else report(simulated), partial(draw, simulated))

    if output is not None:
        suffix_of(output, CHART_SUFFIXES)
    run_each(load(scenario, settings), make, "campaign", output, as_json)
