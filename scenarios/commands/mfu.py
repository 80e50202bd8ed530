"""`clustersim mfu` gives the utilisation of a step whose time was logged."""

from __future__ import annotations

from typing import Annotated

import typer

from clustersim.scenarios.commands.application import Settings, app, named_as_options
from clustersim.scenarios.commands.runner import print_answer


@app.command()
def mfu(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model, or the path of a config.json.")],
    step: Annotated[str, typer.Option(metavar="TIME", help="The time of a step, e.g. 17.3s or 850ms.")],
    batch: Annotated[int, typer.Option(min=1, help="Samples of a step, on all GPUs together.")],
    cluster: Annotated[str | None, typer.Option(help="The cluster; dgx_h100 if not given.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes of the cluster.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs, in place of --nodes.")] = None,
    sequence: Annotated[int | None, typer.Option("--seq", min=1, help="Tokens of a sample.")] = None,
    tokens: Annotated[str | None, typer.Option(help="Tokens of the whole training, e.g. 1T, for days.")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16, fp16 or fp32; by the GPU if not given.")] = None,
    recompute: Annotated[str, typer.Option(help="none, selective or full: what the HFU counts.")] = "none",
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON, and nothing else.")] = False,
) -> None:
    """Give MFU, HFU, TFLOP/s, tokens/s and days from a logged step time, by the formulas of `run`."""
    from clustersim.scenarios.estimates import logged_step, machine
    from clustersim.simulator.reading.errors import ScenarioError
    from clustersim.simulator.reading.units import parse

    try:
        seconds = parse(step, "time")
    except ValueError as error:
        raise ScenarioError(f"--step {step[:40]}: {error}") from None
    if seconds <= 0:
        raise ScenarioError(f"--step {step[:40]}: must be above 0")
    options = {
        "training.precision": ("--precision", precision),
        "training.recompute": ("--recompute", recompute),
        "model.seq_length": ("--seq", sequence),
    }
    with named_as_options(options) as given:
        found = logged_step(model, machine(cluster, nodes, gpus), seconds, batch, tokens, [*given, *(settings or [])])
    print_answer(found, as_json)
