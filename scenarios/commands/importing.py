"""`clustersim import` makes a scenario from the configuration files of training programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clustersim.scenarios.commands.application import Settings, command
from clustersim.scenarios.commands.terminal import say
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import write_text

if TYPE_CHECKING:
    from clustersim.scenarios.exchange.importer import Imported

SHOWN = 30
"""Keys that were not read and are listed for each file on the terminal; the scenario lists all."""


@command("import")
def import_(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="config.json, ds_config.json, TrainingArguments, a launch script or command line, TOML or YAML of a "
            "training program, nvidia-smi topo -m, NCCL's XML, nccl-tests; several describe one run. - is stdin.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", metavar="FILE", help="The scenario to write; else it is printed.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="The cluster, if no file describes it.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Number of nodes, whatever the files say.")] = None,
    dataset_samples: Annotated[
        int | None, typer.Option(min=1, help="Samples of the data set, for a run of epochs.")
    ] = None,
    accelerator: Annotated[str | None, typer.Option(help="The GPU that a topology does not name.")] = None,
    nic: Annotated[str | None, typer.Option(help="The kind of the NICs that a topology does not name.")] = None,
    settings: Settings = None,
) -> None:
    """Make a scenario from configuration files of training programs; comments say where each value is from."""
    from clustersim.scenarios.exchange.importer import Options, imported

    options = Options(cluster, nodes, accelerator, nic, dataset_samples)
    folder = output.parent if output else Path()
    name = output.stem if output else "imported"
    made = imported(files, options, name, settings or [], folder)
    if made.sweeps and output is None:
        raise ScenarioError("measured collectives are fitted to a file beside the scenario; give -o FILE")
    if output is None:
        print(made.text, end="")
        return
    write_text(output, made.text)
    _tell(made)
    say(f"wrote {output}")
    if made.sweeps:
        _fit(made, output)
    say(f"next: clustersim check {output}   or   clustersim run {output}")


def _fit(made: Imported, output: Path) -> None:
    """Fit the measured collectives on the cluster of the scenario, and name the result in it."""
    from clustersim.scenarios.accuracy.imported_measurements import Overrides, read

    fitted = output.with_name(f"{output.stem}-network.yaml")
    say(read(made.sweeps, fitted, made.scenario, Overrides()))
    files = ", ".join(str(path) for path in made.sweeps)
    line = f"  transport: {fitted.name}   # fitted to {files}\n"
    begin = "\nnetwork:\n"
    text = made.text.replace(begin, begin + line) if begin in made.text else f"{made.text}{begin}{line}"
    write_text(output, text)


def _tell(made: Imported) -> None:
    """Print what was read, assumed and not read."""
    for file, formats in made.formats.items():
        say(f"read {file} as {' and '.join(formats)}")
    if made.scenario.model is not None:
        say(f"model: {made.scenario.model.parameters:,} parameters")
    say(f"GPUs: {made.scenario.derived.gpus}, {made.scenario.derived.described}")
    for one in made.assumed:
        say(f"assumed: {one}")
    for one in made.remarks:
        say(f"remark: {one}")
    for file, keys in made.unread.items():
        more = f" and {len(keys) - SHOWN} more, listed in the scenario" if len(keys) > SHOWN else ""
        say(f"not read: {file}: {', '.join(keys[:SHOWN])}{more}")
