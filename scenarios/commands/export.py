"""`clustersim export` writes a scenario as files of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.scenarios.commands.application import OneScenario, Settings, app
from clustersim.scenarios.commands.terminal import progress, say

if TYPE_CHECKING:
    from clustersim.scenarios.scenario import Scenario

LISTED = 16
"""Files that are listed one by one at most."""


def complete_targets(incomplete: str) -> list[str]:
    """Return the targets that begin with *incomplete*."""
    from clustersim.scenarios.exchange.export import targets

    return [name for name in targets() if name.startswith(incomplete)]


@app.command()
def export(
    scenario: OneScenario,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="megatron, deepspeed, torchtitan, accelerate, slurm, torch-csv, graphml, dot ...: a file of "
            "scenarios/exchange/exporting.",
            autocompletion=complete_targets,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", metavar="PATH", help="The file, or the folder if there are several files.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option(metavar="NAME", help="The variant of a scenario that has several.")
    ] = None,
    settings: Settings = None,
) -> None:
    """Write a scenario as launch files, a pipeline order, traces or a topology for other programs."""
    from clustersim.scenarios.exchange.export import exporter, write
    from clustersim.scenarios.scenario import Scenario

    make = exporter(to)
    chosen = _variant(Scenario.load(scenario, options=settings), variant)
    with progress(f"exporting {chosen.name}"):
        made = make(chosen)
        paths = write(made, output)
    if len(paths) > LISTED:
        say(f"wrote {len(paths)} files in {paths[0].parent}: {paths[0].name} ... {paths[-1].name}")
    for path in paths if len(paths) <= LISTED else ():
        say(f"wrote {path}")
    for note in made.notes:
        say(f"note: {note}")


def _variant(scenario: Scenario, name: str | None) -> Scenario:
    """Return the variant *name* of *scenario*; the scenario itself if it has none. Raises `ScenarioError`."""
    from clustersim.simulator.reading.errors import ScenarioError
    from clustersim.simulator.reading.validation import listed, near

    there = list(scenario.variants)
    if name is None:
        if there:
            raise ScenarioError(f"{scenario.name} has {len(there)} variants; give one of them: --variant {there[0]}")
        return scenario
    if not there:
        raise ScenarioError(f"--variant {name[:60]}: {scenario.name} has no variants")
    if name not in there:
        hint = near(name, there)
        raise ScenarioError(f"--variant {name[:60]}: must be {listed(there[:40])}" + (f"; {hint}" if hint else ""))
    return scenario.variants[name]
