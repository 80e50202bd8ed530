"""`clustersim campaign` simulates a whole training run on machines that fail."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.scenarios.commands.application import OneScenario, Settings, app
from clustersim.scenarios.commands.terminal import say

if TYPE_CHECKING:
    from clustersim.scenarios.campaign.campaign import Simulated


@app.command()
def campaign(
    scenario: OneScenario,
    settings: Settings = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Samples of the campaign, in place of campaign.repeats.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", metavar="FILE", help="The chart: a .png, .svg or .pdf file.")
    ] = None,
) -> None:
    """Simulate a training run over days: failures, checkpoints, spare nodes, cost; draw its progress."""
    import json

    from clustersim.scenarios.campaign.campaign import run
    from clustersim.scenarios.campaign.report import report, summary
    from clustersim.scenarios.commands.terminal import progress
    from clustersim.scenarios.results.result import check_finite
    from clustersim.scenarios.scenario import Scenario
    from clustersim.simulator.reading.files import file_stems, suffix_of

    if output is not None:
        suffix_of(output, (".png", ".svg", ".pdf"))
    loaded = Scenario.load(scenario, options=settings)
    runs = list(loaded.variants.values()) or [loaded]
    stems = file_stems([one.name for one in runs])
    found = []
    for number, one in enumerate(runs):
        section = one.specification.campaign
        with progress(f"simulating {one.name}", parts=repeats or (section.repeats if section else 0)) as shown:
            simulated = run(one, repeats, shown, lambda shown=shown: shown.advance())  # type: ignore[misc]
            numbers = summary(simulated)
            check_finite(numbers)
            found.append(numbers)
            if as_json:
                continue
            shown.begin(f"comparing alternatives of {one.name}")
            text = report(simulated)
        say(("\n" if number else "") + text)
        path = output or Path(f"{stems[one.name]}_campaign.png")
        _draw(simulated, path if len(runs) == 1 else path.with_name(f"{path.stem}_{stems[one.name]}{path.suffix}"))
    if as_json:
        several = {"name": loaded.name, "variants": {one["name"]: one for one in found}}
        print(json.dumps(several if loaded.variants else found[0], indent=2))


def _draw(simulated: Simulated, path: Path) -> None:
    from clustersim.scenarios.campaign.report import draw

    draw(simulated, path)
    print(f"wrote {path}")
