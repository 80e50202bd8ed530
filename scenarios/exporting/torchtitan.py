"""A TOML configuration for torchtitan, and the line that starts it.

Settings and rules are those of torchtitan 0.2.2 (torchtitan/config/job_config.py, train.py, distributed/).
"""

from __future__ import annotations

import json
from math import ceil
from typing import Any

from scenarios.exporting import Export
from scenarios.exporting._launch import PLAIN_RANK_ORDERS, Launch, command, launch, script, torchrun, transformer
from scenarios.importing.formats.torchtitan import SCHEDULES, SINGLE
from scenarios.scenario import Scenario
from simulator.document import read
from simulator.lookup import data_file
from workloads.specification import TransformerSpecification

PROGRAM = "torchtitan"

MODELS = {
    "llama3": {"8B": "llama3_8b", "70B": "llama3_70b", "405B": "llama3_405b"},
    "qwen3": {
        "0.6B": "qwen3_0_6b",
        "1.7B": "qwen3_1_7b",
        "4B": "qwen3_4b",
        "8B": "qwen3_8b",
        "14B": "qwen3_14b",
        "32B": "qwen3_32b",
    },
}
"""Presets by model and flavour (torchtitan/models/*/__init__.py)."""

SAME = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "ffn_hidden_size",
    "vocab_size",
    "tie_embeddings",
)
"""Keys in which a model and a flavour agree."""

NAMES = {
    "one_f_one_b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "looped_bfs": "LoopedBFS",
    "interleaved_zero_bubble": "InterleavedZeroBubble",
    "zero_bubble_v": "ZBVZeroBubble",
    "dual_pipe_v": "DualPipeV",
}
"""torch's names of the orders."""


def torchtitan(scenario: Scenario) -> Export:
    """Return configuration and launch script. Raises `ScenarioError` for what torchtitan does not have."""
    run = launch(scenario, PROGRAM, ("tp", "pp", "dp", "cp"))
    model = transformer(run, PROGRAM)
    file = f"{scenario.name}.toml"
    started = command(f"{torchrun(run)} -m torchtitan.train", [f"--job.config_file {file}"])
    sections = {
        "job": {"description": f"made by clustersim export from {scenario.name}"},
        "model": _model(run, model),
        "optimizer": {"name": "AdamW", "lr": 3e-4},
        "training": _training(run, model),
        "parallelism": _parallelism(run, model),
        "activation_checkpoint": _recompute(run),
        "compile": {"enable": scenario.stack.endswith("_compile")},
    }
    files = {file: _toml(sections), "launch.sh": script(scenario.name, "torchtitan 0.2.2", [started])}
    return Export(files, () if run.steps else ("the scenario gives no tokens or samples: torchtitan runs 10000 steps",))


def _toml(sections: dict[str, dict[str, Any]]) -> str:
    lines = []
    for name, section in sections.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items()), ""]
    return "\n".join(lines)


def _model(run: Launch, model: TransformerSpecification) -> dict[str, Any]:
    if run.eight_bits:
        raise run.refuse("training.precision", PROGRAM, "bf16, fp32")
    for name, flavors in MODELS.items():
        for flavor, preset in flavors.items():
            known = read(data_file("workloads.models", preset)).data
            if all(getattr(model, key) == known.get(key) for key in SAME):
                return {"name": name, "flavor": flavor}
    known_names = ", ".join(f"{name} {flavor}" for name, flavors in MODELS.items() for flavor in flavors)
    message = f"torchtitan has no flavor with these sizes; it has {known_names}"
    raise run.scenario.document.error(("model",), message, at_key=True)


def _training(run: Launch, model: TransformerSpecification) -> dict[str, Any]:
    training = run.training
    if run.precision == "fp16":
        raise run.refuse("training.precision", PROGRAM, "bf16, fp32")
    if run.gradient_dtype != "fp32":
        raise run.error("training.gradient_dtype", f"torchtitan reduces gradients in fp32, not {run.gradient_dtype}")
    if training.optimizer != "adam":
        raise run.refuse("training.optimizer", PROGRAM, "adam")
    made = {
        "local_batch_size": run.micro_batch * (run.accumulation if run.pp > 1 else 1),
        "global_batch_size": run.batch,
        "seq_len": model.seq_length,
        "mixed_precision_param": "bfloat16" if run.precision == "bf16" else "float32",
        "mixed_precision_reduce": "float32",
    }
    return made | ({"steps": run.steps} if run.steps else {})


def _recompute(run: Launch) -> dict[str, Any]:
    how = run.training.recompute
    if how not in ("none", "selective", "full"):
        raise run.refuse("training.recompute", PROGRAM, "none, selective, full")
    return {"mode": how} | ({"selective_ac_option": "op"} if how == "selective" else {})


def _parallelism(run: Launch, model: TransformerSpecification) -> dict[str, Any]:
    parallelism = run.scenario.specification.parallelism
    if run.rank_order not in PLAIN_RANK_ORDERS:
        raise run.refuse("parallelism.rank_order", PROGRAM, "[tp, dp, pp]")
    if run.tp > 1 and not parallelism.sequence_parallel:
        raise run.error("parallelism.tp", "torchtitan's is sequence parallel too: give sequence_parallel: true")
    made: dict[str, Any] = {**_replicas(run), "tensor_parallel_degree": run.tp, "pipeline_parallel_degree": run.pp}
    if (degree := run.degree("cp")) > 1:
        gathered = getattr(parallelism, "cp_method", None) == "all_gather"
        made["context_parallel_degree"] = degree
        made["context_parallel_rotate_method"] = "allgather" if gathered else "alltoall"
    if parallelism.tp_overlap:
        made["enable_async_tensor_parallel"] = True
    return made | (_pipeline(run, model) if run.pp > 1 else {})


def _replicas(run: Launch) -> dict[str, Any]:
    data = run.data
    if data.method == "ddp":
        return {"data_parallel_replicate_degree": run.dp, "data_parallel_shard_degree": 1}
    if data.method != "fsdp":
        raise run.refuse("parallelism.data.method", PROGRAM, "ddp, fsdp")
    shards = getattr(data, "hybrid", None) or run.dp
    reshard = "always" if getattr(data, "reshard", True) else "never"
    return {
        "data_parallel_replicate_degree": run.dp // shards,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": reshard,
    }


def _pipeline(run: Launch, model: TransformerSpecification) -> dict[str, Any]:
    """Return the pipeline's settings; torchtitan counts embedding and logits as so many layers each."""
    parallelism = run.scenario.specification.parallelism
    if parallelism.order_name not in NAMES:
        raise run.refuse("parallelism.schedule", PROGRAM, ", ".join(SCHEDULES.values()))
    if isinstance(parallelism.layout, list):
        raise run.refuse("parallelism.layout", PROGRAM, "balanced, embedding_as_layer")
    weight = int(parallelism.layout == "embedding_as_layer")
    virtual, layers = parallelism.stages_per_rank, model.num_layers + 2 * weight
    made = {
        "pipeline_parallel_schedule": NAMES[parallelism.order_name],
        "pipeline_parallel_microbatch_size": run.micro_batch,
        "pipeline_parallel_first_stage_less_layers": weight,
        "pipeline_parallel_last_stage_less_layers": weight,
    }
    if SCHEDULES[NAMES[parallelism.order_name].lower()] not in SINGLE and virtual != 2:
        each = ceil(layers / (run.pp * virtual))
        if ceil(layers / each) != run.pp * virtual:
            message = f"torchtitan cannot cut {layers} layers into {run.pp * virtual} equal stages"
            raise run.error("parallelism.virtual_stages", message)
        made["pipeline_parallel_layers_per_stage"] = each
    return made
