"""`clustersim export` writes a scenario as files of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clustersim.scenarios.commands.application import OneScenario, Settings, command, load
from clustersim.scenarios.commands.runner import variant_of
from clustersim.scenarios.commands.terminal import progress, say
from clustersim.simulator.reading.errors import ScenarioError

LISTED = 16
"""Files that are listed one by one at most."""


def complete_targets(incomplete: str) -> list[str]:
    """Return the targets that begin with *incomplete*."""
    from clustersim.scenarios.exchange.export import targets

    return [name for name in targets() if name.startswith(incomplete)]


@command()
def export(
    scenario: OneScenario,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="megatron, deepspeed, torchtitan, accelerate, slurm, torch-csv, msccl, graphml, dot ...: a "
            "file of scenarios/exchange/exporting.",
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

    make = exporter(to)
    loaded = load(scenario, settings)
    if variant is None and loaded.variants:
        first, *_ = there = list(loaded.variants)
        raise ScenarioError(f"{loaded.name} has {len(there)} variants; give one of them: --variant {first}")
    chosen = loaded if variant is None else variant_of(loaded, variant)
    with progress(f"exporting {chosen.name}"):
        made = make(chosen)
        paths = write(made, output)
    if len(paths) > LISTED:
        say(f"wrote {len(paths)} files in {paths[0].parent}: {paths[0].name} ... {paths[-1].name}")
    for path in paths if len(paths) <= LISTED else ():
        say(f"wrote {path}")
    for note in made.notes:
        say(f"note: {note}")
