"""`clustersim memory` says what a model needs on each GPU, without a scenario file."""

from __future__ import annotations

from typing import Annotated

import typer

from clustersim.scenarios.commands.application import Settings, app, named_as_options
from clustersim.scenarios.commands.terminal import say


@app.command()
def memory(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model, or the path of a config.json.")],
    cluster: Annotated[str | None, typer.Option(help="The cluster; dgx_h100 if not given.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes of the cluster.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs, in place of --nodes.")] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Tensor-parallel ranks.")] = None,
    pp: Annotated[int | None, typer.Option(min=1, help="Pipeline stages.")] = None,
    cp: Annotated[int | None, typer.Option(min=1, help="Context-parallel ranks.")] = None,
    ep: Annotated[int | None, typer.Option(min=1, help="Expert-parallel ranks.")] = None,
    sequence_parallel: Annotated[
        bool | None, typer.Option("--sequence-parallel/--no-sequence-parallel", help="Beside tensor parallelism.")
    ] = None,
    zero: Annotated[int | None, typer.Option(min=0, max=3, help="Stage of ZeRO.")] = None,
    fsdp: Annotated[bool, typer.Option("--fsdp", help="Fully sharded, in place of --zero.")] = False,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples of a step; 8 a GPU if not given.")] = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, help="Samples of a micro-batch; 1 if not given.")] = None,
    sequence: Annotated[int | None, typer.Option("--seq", min=1, help="Tokens of a sample.")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16, fp16 or fp32; by the GPU if not given.")] = None,
    recompute: Annotated[
        str | None, typer.Option(help="none, selective or full; the least with which it fits if not given.")
    ] = None,
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON, and nothing else.")] = False,
) -> None:
    """Say what a model needs on each GPU by category: with the layout given, or with several usual ones."""
    import json

    from clustersim.scenarios.estimates import machine, memory_text
    from clustersim.scenarios.estimates import memory as estimated
    from clustersim.simulator.reading.errors import ScenarioError

    if fsdp and zero is not None:
        raise ScenarioError(f"--fsdp and --zero {zero} are two methods; give one (fsdp shards as stage 3 does)")
    data = "{method: fsdp}" if fsdp else None if zero is None else f"{{method: zero, stage: {zero}}}"
    sequences = None if sequence_parallel is None else str(sequence_parallel).lower()
    options = {
        "parallelism.tp": ("--tp", tp),
        "parallelism.pp": ("--pp", pp),
        "parallelism.cp": ("--cp", cp),
        "parallelism.ep": ("--ep", ep),
        "parallelism.sequence_parallel": ("--sequence-parallel", sequences),
        "parallelism.data": ("--fsdp" if fsdp else "--zero", data),
        "training.micro_batch_size": ("--micro-batch", micro_batch),
        "training.precision": ("--precision", precision),
        "training.recompute": ("--recompute", recompute),
        "model.seq_length": ("--seq", sequence),
    }
    with named_as_options(options) as given:
        on = machine(cluster, nodes, gpus)
        found = estimated(model, on, batch, [*given, *(settings or [])])
    if as_json:
        print(json.dumps({"model": model, "gpus": on.gpus, "layouts": [one.summary() for one in found]}, indent=2))
    else:
        say(memory_text(found, on))
