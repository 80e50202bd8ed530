"""`clustersim sensitivity` shows how the step time changes with each parameter, and what would help most."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.scenarios.commands.application import AsJson, OneScenario, Settings, command, load
from clustersim.scenarios.commands.runner import CHART_SUFFIXES, Made, run_each
from clustersim.scenarios.commands.terminal import progress
from clustersim.simulator.reading.files import suffix_of
from clustersim.simulator.reading.units import show

if TYPE_CHECKING:
    from clustersim.scenarios.commands.terminal import Progress
    from clustersim.scenarios.scenario import Scenario
    from clustersim.scenarios.search.sensitivity import Found


@command()
def sensitivity(
    scenario: OneScenario,
    settings: Settings = None,
    samples: Annotated[
        int, typer.Option(min=0, max=10_000, help="Draws of the fitted parameters, for the uncertainty.")
    ] = 20,
    as_json: AsJson = False,
    output: Annotated[
        Path | None, typer.Option("-o", metavar="FILE", help="The tornado chart: a .png, .svg or .pdf file.")
    ] = None,
) -> None:
    """Simulate a step with each parameter changed: elasticities, a tornado chart, and what would help most."""
    from functools import partial

    from clustersim.scenarios.results.result import check_finite
    from clustersim.scenarios.search.sensitivity import report, summary

    def make(one: Scenario) -> Made:
        with progress(f"simulating {one.name} with each parameter changed") as shown:
            found = _found(one, samples, shown)
            numbers = summary(found)
        check_finite(numbers)
        return Made(numbers, "" if as_json else report(found), partial(_draw, found))

    if output is not None:
        suffix_of(output, CHART_SUFFIXES)
    loaded = load(scenario, settings)
    for one in loaded.runs:
        one.check_trains("sensitivity")
    run_each(loaded, make, "sensitivity", output, as_json)


def _found(scenario: Scenario, samples: int, shown: Progress) -> Found:
    from clustersim.scenarios.alternatives.changes import of_configuration
    from clustersim.scenarios.search.sensitivity import MOST_SLOW, Found, Sensitivities, tried
    from clustersim.scenarios.search.varied_machine import machine, sampled

    base = machine(scenario)
    simulation = base.simulation()
    shown(simulation)
    sensitivities = Sensitivities(base, simulation.run(), shown)
    # four for each parameter, up and down; a change that is tried is one more
    shown.simulations = 1 + 4 * len(sensitivities.parameters) + samples + MOST_SLOW
    seed = scenario.specification.simulation.seed
    return Found(
        sensitivities, list(tried(scenario, of_configuration(scenario), shown)), sampled(base, samples, seed, shown)
    )


def _draw(found: Found, path: Path) -> None:
    from clustersim.simulator.charts.bars import draw_tornado

    scenario = found.sensitivities.base.scenario
    gpus = len(found.sensitivities.timeline.gpu_ranks)
    title = (
        f"{scenario.name} on {gpus:,} GPUs of {scenario.cluster().name}, step {show(found.step_time, 'time')}: "
        "each parameter halved and doubled"
    )
    draw_tornado(found.relative, path, title=title, what="step time")
