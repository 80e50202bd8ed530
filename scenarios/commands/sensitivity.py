"""`clustersim sensitivity` shows how the step time changes with each parameter, and what would help most."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.scenarios.commands.application import OneScenario, Settings, app
from clustersim.scenarios.commands.terminal import say

if TYPE_CHECKING:
    from clustersim.scenarios.commands.terminal import Progress
    from clustersim.scenarios.scenario import Scenario
    from clustersim.scenarios.search.sensitivity import Found


@app.command()
def sensitivity(
    scenario: OneScenario,
    settings: Settings = None,
    samples: Annotated[
        int, typer.Option(min=0, max=10_000, help="Draws of the fitted parameters, for the uncertainty.")
    ] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", metavar="FILE", help="The tornado chart: a .png, .svg or .pdf file.")
    ] = None,
) -> None:
    """Simulate a step with each parameter changed: elasticities, a tornado chart, and what would help most."""
    import json

    from clustersim.scenarios.commands.terminal import progress
    from clustersim.scenarios.results.result import check_finite
    from clustersim.scenarios.scenario import Scenario
    from clustersim.scenarios.search.sensitivity import report, summary
    from clustersim.simulator.reading.files import file_stems, suffix_of

    if output is not None:
        suffix_of(output, (".png", ".svg", ".pdf"))
    loaded = Scenario.load(scenario, options=settings)
    runs = list(loaded.variants.values()) or [loaded]
    for one in runs:
        one.check_trains("sensitivity")
    stems, numbers = file_stems([one.name for one in runs]), []
    for place, one in enumerate(runs):
        with progress(f"simulating {one.name} with each parameter changed") as shown:
            found = _found(one, samples, shown)
            numbers.append(summary(found))
        check_finite(numbers[-1])
        if not as_json:
            say(("\n" if place else "") + report(found))
            path = output or Path(f"{stems[one.name]}_sensitivity.png")
            _draw(found, path if len(runs) == 1 else path.with_name(f"{path.stem}_{stems[one.name]}{path.suffix}"))
    if as_json:
        several = {"name": loaded.name, "variants": {one["name"]: one for one in numbers}}
        print(json.dumps(several if loaded.variants else numbers[0], indent=2))


def _found(scenario: Scenario, samples: int, shown: Progress) -> Found:
    from clustersim.scenarios.alternatives.changes import of_configuration
    from clustersim.scenarios.search.sensitivity import MOST_SLOW, Found, Sensitivities
    from clustersim.scenarios.search.simulated_changes import tried
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
    from clustersim.simulator.charts.variation import draw_tornado
    from clustersim.simulator.reading.units import show

    scenario = found.sensitivities.base.scenario
    gpus = len(found.sensitivities.timeline.gpu_ranks)
    title = (
        f"{scenario.name} on {gpus:,} GPUs of {scenario.cluster().name}, step {show(found.step_time, 'time')}: "
        "each parameter halved and doubled"
    )
    draw_tornado(found.relative, path, title=title, what="step time")
    print(f"wrote {path}")
