"""`clustersim memory` says what a model needs on each GPU, without a scenario file."""

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
from clustersim.scenarios.commands.runner import print_json
from clustersim.scenarios.commands.terminal import say
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError


@dataclass(frozen=True)
class LayoutOptions:
    """The options that say how the model lies on the GPUs."""

    tp: Annotated[int | None, typer.Option(min=1, help="Tensor-parallel ranks.")] = None
    pp: Annotated[int | None, typer.Option(min=1, help="Pipeline stages.")] = None
    cp: Annotated[int | None, typer.Option(min=1, help="Context-parallel ranks.")] = None
    ep: Annotated[int | None, typer.Option(min=1, help="Expert-parallel ranks.")] = None
    sequence_parallel: Annotated[
        bool | None, typer.Option("--sequence-parallel/--no-sequence-parallel", help="Beside tensor parallelism.")
    ] = None
    zero: Annotated[int | None, typer.Option(min=0, max=3, help="Stage of ZeRO.")] = None
    fsdp: Annotated[bool, typer.Option("--fsdp", help="Fully sharded, in place of --zero.")] = False

    def options(self) -> dict[str, tuple[str, object]]:
        """Return (option, value) by key of the section parallelism. Raises `ScenarioError` for two methods."""
        if self.fsdp and self.zero is not None:
            raise ScenarioError(
                f"--fsdp and --zero {self.zero} are two methods; give one (fsdp shards as stage 3 does)"
            )
        zero = None if self.zero is None else f"{{method: zero, stage: {self.zero}}}"
        sequences = None if self.sequence_parallel is None else str(self.sequence_parallel).lower()
        return {
            **{f"parallelism.{one}": (f"--{one}", getattr(self, one)) for one in ("tp", "pp", "cp", "ep")},
            "parallelism.sequence_parallel": ("--sequence-parallel", sequences),
            "parallelism.data": ("--fsdp", "{method: fsdp}") if self.fsdp else ("--zero", zero),
        }


@command()
def memory(
    model: ModelName,
    *,
    on: OnMachine,
    layout: LayoutOptions,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples of a step; 8 a GPU if not given.")] = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, help="Samples of a micro-batch; 1 if not given.")] = None,
    sequence: SampleTokens = None,
    precision: Precision = None,
    recompute: Annotated[
        str | None, typer.Option(help="none, selective or full; the least with which it fits if not given.")
    ] = None,
    settings: Settings = None,
    as_json: NumbersAsJson = False,
) -> None:
    """Say what a model needs on each GPU by category: with the layout given, or with several usual ones."""
    from clustersim.scenarios.estimates import memory as estimated
    from clustersim.scenarios.estimates import memory_text

    options = {
        **layout.options(),
        "training.micro_batch_size": ("--micro-batch", micro_batch),
        "training.precision": ("--precision", precision),
        "training.recompute": ("--recompute", recompute),
        "model.seq_length": ("--seq", sequence),
    }
    with named_as_options(options) as given:
        machine = on.machine()
        found = estimated(model, machine, batch, [*given, *(settings or [])])
    if as_json:
        print_json({"model": model, "gpus": machine.gpus, "layouts": [one.summary() for one in found]})
    else:
        say(memory_text(found, machine))
