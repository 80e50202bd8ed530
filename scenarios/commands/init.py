"""`clustersim init` writes a commented scenario to begin with, from three questions or options."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from clustersim.scenarios.commands.application import command
from clustersim.scenarios.commands.terminal import say
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import write_text
from clustersim.simulator.reading.lookup import is_path

MODEL, CLUSTER, NODES = "llama3_8b", "dgx_h100", 4
"""What is offered."""

TEXT = """\
# Made by clustersim init. clustersim schema prints every key; an editor completes them with it.
version: 1
description: {name} on {gpus} GPUs, {cluster}

cluster:
  preset: {cluster}   # clustersim list clusters; keys beside it override it, such as node: {{nics: 4}}
  nodes: {nodes}

model:
  preset: {model}   # clustersim list models, or the path of a config.json of Hugging Face
  {sequence}

training:
  global_batch_size: {batch}   # samples of a step, on all GPUs together
  micro_batch_size: {micro_batch}   # samples of one forward pass
  precision: {precision}
  optimizer: adam
  recompute: {recompute}   # none, selective or full: less memory, more time
  # tokens: 1T   # of the whole training, for days, GPU-hours and cost

parallelism:
  {tensor}   # tensor parallel ranks, best within a node
  # pp: 2   # pipeline stages; schedule: one_f_one_b, interleaved and others (clustersim list schedules)
  data: {data}   # ddp, zero (with stage: 1, 2 or 3), fsdp, parameter_server

# software: auto   # the software stack, by parallelism and GPU (clustersim list software)
"""


@command()
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("scenario.yaml"),
    model: Annotated[str | None, typer.Option(help="A model, or the path of a config.json.")] = None,
    cluster: Annotated[str | None, typer.Option(help="A cluster.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Number of nodes.")] = None,
) -> None:
    """Write a commented scenario to begin with; what no option gives is asked."""

    if file.exists():
        raise ScenarioError(f"{file} exists already; give another name")
    text, told = _text(
        file.parent,
        model or str(_asked("Model (clustersim list models)", MODEL)),
        cluster or str(_asked("Cluster (clustersim list clusters)", CLUSTER)),
        nodes or int(_asked("Nodes", NODES)),
    )
    write_text(file, text)
    say(f"wrote {file}; {told}")
    say(f"next: clustersim check {file}   or   clustersim run {file}")


def _asked(question: str, offered: str | int) -> str | int:
    """Return the answer to *question*; what is *offered* if nobody can be asked."""
    return typer.prompt(question, default=offered) if sys.stdin.isatty() else offered


def _text(folder: Path, model: str, cluster: str, nodes: int) -> tuple[str, str]:
    """Return the scenario for a file in *folder*, and what it needs.

    Raises `ScenarioError` if there is no such model or cluster.
    """
    from clustersim.scenarios.alternatives.changes import remedy_line
    from clustersim.scenarios.defaults import defaults, model_on
    from clustersim.scenarios.scenario import Scenario

    data = model_on(model, cluster, nodes)
    scenario = Scenario.model_validate(data)
    found = defaults(data)
    training, parallelism = data["training"], data["parallelism"]
    tokens, tp = found.model.tokens_per_sample, parallelism.get("tp")
    told = str(found.need)
    if not found.need.fits:
        told += f", the least of the usual layouts; take more nodes, or: {remedy_line(scenario)}"
    text = TEXT.format(
        model=os.path.relpath(model, folder) if is_path(model) else model,
        name=found.model.name,
        cluster=cluster,
        nodes=nodes,
        gpus=found.gpus,
        batch=training["global_batch_size"],
        micro_batch=scenario.derived.micro_batch_size,
        sequence=f"seq_length: {tokens}   # tokens of a sample" if tokens else "# a sample is an image",
        precision=training["precision"],
        recompute=training["recompute"],
        tensor=f"tp: {tp}" if tp else "# tp: 8",
        data=", ".join(f"{key}: {value}" for key, value in parallelism["data"].items()).join("{}"),
    )
    return text.replace("  # pp: 2", "  sequence_parallel: true\n  # pp: 2") if tp else text, told
