"""`clustersim mfu` gives the utilisation of a step whose time was logged."""

from __future__ import annotations

from typing import Annotated

import typer

from clustersim.scenarios.commands.application import (
    ModelName,
    NumbersAsJson,
    OnMachine,
    Precision,
    SampleTokens,
    Settings,
    command,
    named_as_options,
)
from clustersim.scenarios.commands.runner import print_answer
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.units import parse


@command()
def mfu(
    model: ModelName,
    *,
    step: Annotated[str, typer.Option(metavar="TIME", help="The time of a step, e.g. 17.3s or 850ms.")],
    batch: Annotated[int, typer.Option(min=1, help="Samples of a step, on all GPUs together.")],
    on: OnMachine,
    sequence: SampleTokens = None,
    tokens: Annotated[str | None, typer.Option(help="Tokens of the whole training, e.g. 1T, for days.")] = None,
    precision: Precision = None,
    recompute: Annotated[str, typer.Option(help="none, selective or full: what the HFU counts.")] = "none",
    settings: Settings = None,
    as_json: NumbersAsJson = False,
) -> None:
    """Give MFU, HFU, TFLOP/s, tokens/s and days from a logged step time, by the formulas of `run`."""
    from clustersim.scenarios.estimates import logged_step

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
        found = logged_step(model, on.machine(), seconds, batch, tokens, [*given, *(settings or [])])
    print_answer(found, as_json)
