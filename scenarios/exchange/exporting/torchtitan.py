"""A TOML configuration for torchtitan, and the line that starts it.

Settings and rules are those of torchtitan 0.2.2 (torchtitan/config/job_config.py, train.py, distributed/).
"""

from __future__ import annotations

import json
from math import ceil
from typing import Any

from clustersim.scenarios.exchange import torchtitan_keys as keys
from clustersim.scenarios.exchange.export import (
    PLAIN_RANK_ORDERS,
    Export,
    Launch,
    command,
    launch,
    script,
    torchrun,
    transformer,
)
from clustersim.scenarios.exchange.program_keys import setting
from clustersim.scenarios.exchange.torchtitan_keys import FLOAT8, MODELS, MX
from clustersim.scenarios.scenario import Scenario
from clustersim.workloads.architectures.model_keys import Named
from clustersim.workloads.architectures.specification import specification
from clustersim.workloads.architectures.transformer_keys import TransformerSpecification
from clustersim.workloads.parallelism.pipeline import ALIASES

PROGRAM = "torchtitan"

FREE = {"seq_length", "position_rows", "attention", "router_load", *Named.model_fields}
"""Keys in which a model and its flavour may differ: the length is a setting, and the data decide the loads."""

SIZES = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "vocab_size", "num_experts")
"""Keys that tell flavours from one another."""

SAID = {
    *("tp", "pp", "dp", "cp", "cp_method", "cp_layout", "ep", "expert_tp", "data", "rank_order", "placement"),
    *("sequence_parallel", "tp_overlap", "schedule", "virtual_stages", "layout"),
}
"""Keys of the parallelism that settings tell, or that are refused."""

NAMES = {ALIASES.get(order, order): name for name, order in keys.SCHEDULE.words.items()}
"""torch's names of the orders."""


def torchtitan(scenario: Scenario) -> Export:
    """Return configuration and launch script. Raises `ScenarioError` for what torchtitan does not have."""
    run = launch(scenario, PROGRAM, ("tp", "pp", "dp", "cp", "ep"))
    model = transformer(run, PROGRAM)
    file = f"{scenario.name}.toml"
    started = command(f"{torchrun(run)} -m torchtitan.train", [f"--job.config_file {file}"])
    sections = {
        "job": {"description": f"made by clustersim export from {scenario.name}"},
        "model": {**_model(run, model), **_converters(run)},
        **_eight_bits(run),
        "optimizer": {"name": "AdamW", "lr": 3e-4},
        "training": _training(run, model),
        "parallelism": _parallelism(run, model),
        "activation_checkpoint": _recompute(run),
        "compile": {"enable": scenario.stack.endswith("_compile")},
    }
    files = {file: _toml(sections), "launch.sh": script(scenario.name, "torchtitan 0.2.2", [started])}
    notes = run.unsaid(SAID, ("hybrid", "reshard"), ("offload",))
    if not run.steps:
        notes.insert(0, "the scenario gives no tokens or samples: torchtitan runs 10000 steps")
    return Export(files, tuple(notes))


def _toml(sections: dict[str, dict[str, Any]]) -> str:
    lines = []
    for name, section in sections.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items()), ""]
    return "\n".join(lines)


def _model(run: Launch, model: TransformerSpecification) -> dict[str, Any]:
    """Return name and flavour. Raises `ScenarioError` if no flavour has these sizes, or if another key differs."""
    for name, flavors in MODELS.items():
        for flavor, preset in flavors.items():
            known = specification(preset)
            if any(getattr(model, key) != getattr(known, key, None) for key in SIZES):
                continue
            compared = type(model).model_fields.keys() - FREE
            differs = next((key for key in sorted(compared) if getattr(model, key) != getattr(known, key)), None)
            if differs is not None:
                raise run.refuse(f"model.{differs}", f"torchtitan's {name} {flavor}", str(getattr(known, differs)))
            return {"name": name, "flavor": flavor}
    known_names = ", ".join(f"{name} {flavor}" for name, flavors in MODELS.items() for flavor in flavors)
    message = f"torchtitan has no flavor with these sizes; it has {known_names}"
    raise run.scenario.document.error(("model",), message, at_key=True)


def _recipe(run: Launch) -> tuple[str, str]:
    """Return the converter and the recipe of products in 8 bits; empty texts for none."""
    precision = run.training.precision
    if isinstance(precision, str):
        return "", ""
    recipe = precision.scaling
    if precision.matmul != "fp8" or recipe not in ("tensorwise", "mxfp8") or precision.rest != "bf16":
        raise run.refuse("training.precision", PROGRAM, "bf16, fp32, fp8 by the recipes tensorwise and mxfp8")
    return (MX, "mxfp8_cublas") if recipe == "mxfp8" else (FLOAT8, "")


def _converters(run: Launch) -> dict[str, Any]:
    converter, _ = _recipe(run)
    return {"converters": [converter]} if converter else {}


def _eight_bits(run: Launch) -> dict[str, dict[str, Any]]:
    """Return the section of the converter for products in 8 bits."""
    converter, recipe = _recipe(run)
    if not converter:
        return {}
    parameters = getattr(run.training.precision, "parameters", None) == "fp8"
    if parameters and converter != FLOAT8:
        raise run.refuse("training.precision", PROGRAM, "parameters in fp8 with the recipe tensorwise only")
    gathered = {"enable_fsdp_float8_all_gather": True} if parameters else {}
    return {converter: {**({"recipe_name": recipe} if recipe else {}), **gathered}}


def _training(run: Launch, model: TransformerSpecification) -> dict[str, Any]:
    training = run.training
    if run.precision == "fp16":
        raise run.refuse("training.precision", PROGRAM, "bf16, fp32")
    if run.gradient_dtype != "fp32":
        raise run.error("training.gradient_dtype", f"torchtitan reduces gradients in fp32, not {run.gradient_dtype}")
    if training.optimizer != "adam":
        raise run.refuse("training.optimizer", PROGRAM, "adam")
    made = {
        **setting(keys.LOCAL_BATCH, run.micro_batch * (run.accumulation if run.pp > 1 else 1)),
        **setting(keys.BATCH, run.batch),
        **setting(keys.LENGTH, model.seq_length),
        "mixed_precision_param": "bfloat16" if run.precision == "bf16" else "float32",
        "mixed_precision_reduce": "float32",
    }
    return made | setting(keys.STEPS, run.steps or None)


def _recompute(run: Launch) -> dict[str, Any]:
    how = run.training.recompute
    if not isinstance(how, str) or how not in keys.RECOMPUTE.words:
        raise run.refuse("training.recompute", PROGRAM, ", ".join(keys.RECOMPUTE.words))
    return setting(keys.RECOMPUTE, how) | ({"selective_ac_option": "op"} if how == "selective" else {})


def _parallelism(run: Launch, model: TransformerSpecification) -> dict[str, Any]:
    parallelism = run.scenario.specification.parallelism
    if run.rank_order not in PLAIN_RANK_ORDERS:
        raise run.refuse("parallelism.rank_order", PROGRAM, "[tp, dp, pp]")
    if run.tp > 1 and not parallelism.sequence_parallel:
        raise run.error("parallelism.tp", "torchtitan's is sequence parallel too: give sequence_parallel: true")
    made = {**_replicas(run), **setting(keys.TENSOR, run.tp), **setting(keys.PIPELINE, run.pp)}
    made |= _context(run) | _experts(run) | setting(keys.TENSOR_OVERLAP, bool(parallelism.tp_overlap))
    return made | (_pipeline(run, model) if run.pp > 1 else {})


def _context(run: Launch) -> dict[str, Any]:
    """Return the settings of context parallelism, which divides sequences in zigzag (headtail)."""
    parallelism = run.scenario.specification.parallelism
    if (degree := run.degree("cp")) == 1:
        return {}
    if parallelism.cp_layout == "contiguous":
        raise run.refuse("parallelism.cp_layout", PROGRAM, "zigzag")
    if parallelism.cp_method == "ulysses":
        raise run.refuse("parallelism.cp_method", PROGRAM, "ring, all_gather")
    rotated = "all_gather" if parallelism.cp_method == "all_gather" else "ring"
    return {**setting(keys.CONTEXT, degree), **setting(keys.CONTEXT_METHOD, rotated)}


def _experts(run: Launch) -> dict[str, Any]:
    """Return the degrees of experts, by the rules of torchtitan/distributed/parallel_dims.py."""
    parallelism = run.scenario.specification.parallelism
    ep, shared = parallelism.ep, parallelism.expert_tp or run.tp
    if ep == 1:
        return {}
    if shared not in (1, run.tp):
        raise run.refuse("parallelism.expert_tp", PROGRAM, f"1, or tp = {run.tp}")
    shards = getattr(run.data, "hybrid", None) or run.dp
    inner = run.degree("cp") * (1 if shared == run.tp else run.tp)
    if ep % inner or shards * inner % ep:
        message = f"torchtitan wants a multiple of {inner} that divides the {shards * inner} ranks of a shard group"
        raise run.error("parallelism.ep", f"{message}, not {ep}")
    return {**setting(keys.EXPERT, ep), **setting(keys.EXPERT_TENSOR, shared)}


def _replicas(run: Launch) -> dict[str, Any]:
    data = run.data
    if data.method == "ddp":
        return {**setting(keys.REPLICATED, run.dp), **setting(keys.SHARDED, 1)}
    if data.method != "fsdp":
        raise run.refuse("parallelism.data.method", PROGRAM, "ddp, fsdp")
    shards = getattr(data, "hybrid", None) or run.dp
    return {
        **setting(keys.REPLICATED, run.dp // shards),
        **setting(keys.SHARDED, shards),
        **setting(keys.RESHARD, bool(getattr(data, "reshard", True))),
    }


def _pipeline(run: Launch, model: TransformerSpecification) -> dict[str, Any]:
    """Return the pipeline's settings; torchtitan counts embedding and logits as so many layers each."""
    parallelism = run.scenario.specification.parallelism
    if parallelism.order_name not in NAMES:
        raise run.refuse("parallelism.schedule", PROGRAM, ", ".join(keys.SCHEDULE.words.values()))
    if isinstance(parallelism.layout, list):
        raise run.refuse("parallelism.layout", PROGRAM, "balanced, embedding_as_layer")
    weight = int(parallelism.layout == "embedding_as_layer")
    virtual, layers = parallelism.stages_per_rank, model.num_layers + 2 * weight
    order = keys.SCHEDULE.words[NAMES[parallelism.order_name]]
    made = {
        **setting(keys.SCHEDULE, order),
        **setting(keys.MICRO_BATCH, run.micro_batch),
        "pipeline_parallel_first_stage_less_layers": weight,
        "pipeline_parallel_last_stage_less_layers": weight,
    }
    if order not in keys.SINGLE and virtual != 2:
        each = ceil(layers / (run.pp * virtual))
        if ceil(layers / each) != run.pp * virtual:
            message = f"torchtitan cannot cut {layers} layers into {run.pp * virtual} equal stages"
            raise run.error("parallelism.virtual_stages", message)
        made |= setting(keys.LAYERS_PER_STAGE, each)
    return made
