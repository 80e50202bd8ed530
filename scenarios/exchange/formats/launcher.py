"""The launcher of a script, and the headers of sbatch: how many nodes and GPUs a run has.

torchrun (torch 2.8, torch/distributed/run.py), deepspeed (0.16, deepspeed/launcher/runner.py), accelerate launch, and
Slurm's srun and sbatch.
"""

from __future__ import annotations

import re

from clustersim.scenarios.exchange.facts import Facts
from clustersim.scenarios.exchange.formats import deepspeed, megatron, training_arguments
from clustersim.scenarios.exchange.program_keys import preset_of
from clustersim.scenarios.exchange.source_file import SourceFile


def recognises(source: SourceFile) -> bool:
    """Return whether *source* is a launch script."""
    return source.script and bool({"launch", "sbatch"} & source.data.keys())


def read(source: SourceFile, facts: Facts) -> None:
    """Read nodes and GPUs."""
    source.taken |= {("launcher",), ("program",)}
    if re.search(r"^\s*(if|case)\b", source.text, re.M):
        why = "conditions on values that it does not give are not evaluated; of their branches the last one holds"
        facts.remarks.append(f"{source.name}: {why}")
    if not (training_arguments.recognises(source) or megatron.recognises(source)):
        # the flags of a program of one's own; those that these know they read themselves
        _configured(source, facts)
    if source.take("environment", "CUDA_LAUNCH_BLOCKING") == "1":
        facts.give("software.launch_blocking", True, source, "environment", "CUDA_LAUNCH_BLOCKING")
    source.ignore("launcher_options", "launch")
    source.ignore("launcher_sbatch", "sbatch")
    for key in ("nnodes", "num_nodes", "num_machines"):
        _number(source, facts, "run.nodes", ("launch", key))
    for key in ("nproc_per_node", "num_gpus", "nproc-per-node"):
        _number(source, facts, "run.gpus_per_node", ("launch", key))
    _number(source, facts, "run.gpus", ("launch", "num_processes"))
    _included(source, facts)
    _number(source, facts, "run.nodes", ("sbatch", "nodes"))
    for key in ("gpus_per_node", "gres", "ntasks_per_node", "gpus_per_task"):
        if "run.gpus_per_node" not in facts.found or key in ("gpus_per_node", "gres"):
            _number(source, facts, "run.gpus_per_node", ("sbatch", key), at_least=2 if key == "ntasks_per_node" else 1)
        source.taken.add(("sbatch", key))
    _number(source, facts, "run.gpus", ("sbatch", "gpus"))
    tasks = source.take("sbatch", "ntasks")
    if tasks is not None and "run.gpus" not in facts.found and str(tasks).isdigit() and int(tasks) > 1:
        facts.give("run.gpus", int(tasks), source, "sbatch", "ntasks", how="a task for each GPU", given=False)


def _configured(source: SourceFile, facts: Facts) -> None:
    """Read the configuration of DeepSpeed that a flag names (deepspeed.add_config_arguments, or the Trainer's name)."""
    for key in ("deepspeed", "deepspeed_config"):
        if isinstance(source.document.get(("arguments", key)), str):
            deepspeed.read_at(source, facts, ("arguments", key))
            # --deepspeed alone only says that --deepspeed_config counts (deepspeed.add_config_arguments)
            source.without_effect.add(("arguments", "deepspeed"))
    facts.give("model.preset", _preset(source), source, "arguments", "model_name_or_path")


def _preset(source: SourceFile) -> str | None:
    """The preset of the checkpoint that a flag names, if there is one."""
    named = source.document.get(("arguments", "model_name_or_path"))
    preset = preset_of(named) if isinstance(named, str) else None
    if preset is not None:
        source.taken.add(("arguments", "model_name_or_path"))
    return preset


def _number(source: SourceFile, facts: Facts, key: str, path: tuple[str, str], at_least: int = 1) -> None:
    """Read a count such as ``4``, ``4:8`` (from, to), ``gpu:a100:8`` or ``h100:8``."""
    value = source.take(*path)
    if value is None or str(value) in ("auto", "gpu"):
        return
    text = str(value)
    if "$" in text:
        facts.remarks.append(f"{source.name}: {source.described(path)} is {text}, which the script does not set")
        return
    parts = [part for part in re.split(r"[:(,]", text) if part.isdigit() and len(part) < 10]
    if not parts or int(parts[-1]) < 1:
        raise source.error(path, f"must be a whole number, 1 or above, not {text[:60]}")
    if int(parts[-1]) >= at_least:
        facts.give(key, int(parts[-1]), source, *path)


def _included(source: SourceFile, facts: Facts) -> None:
    """Read deepspeed's ``--include worker-0:0,1,2,3@worker-1:0,1,2,3``: GPUs by node."""
    text = source.word("launch", "include")
    if text is None:
        return
    groups = [part.partition(":")[2] for part in text.split("@")]
    counts = {len(group.split(",")) for group in groups if group}
    facts.give("run.nodes", len(groups), source, "launch", "include")
    if len(counts) == 1 and all(groups):
        facts.give("run.gpus_per_node", counts.pop(), source, "launch", "include")
