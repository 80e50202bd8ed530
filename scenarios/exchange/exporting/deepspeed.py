"""``ds_config.json`` for DeepSpeed, and the line that starts a program with it.

Keys and rules are those of DeepSpeed 0.16.4 (deepspeed/runtime/config.py, runtime/zero/config.py).
"""

from __future__ import annotations

import json
from typing import Any

from clustersim.scenarios.exchange.export import Export, Launch, command, launch, script
from clustersim.scenarios.scenario import Scenario

OPTIMIZERS = {"adam": "AdamW", "momentum": "SGD"}
"""DeepSpeed's and torch's optimizers by that of the scenario."""

DEVICES = {"host": "cpu", "nvme": "nvme"}
"""Where states live, by the name of the scenario."""


def deepspeed(scenario: Scenario) -> Export:
    """Return configuration and launch script. Raises `ScenarioError` for what DeepSpeed does not have."""
    run = launch(scenario, "DeepSpeed")
    config = json.dumps(_config(run), indent=2) + "\n"
    begin = f"deepspeed --num_nodes {run.nodes} --num_gpus {run.gpus_per_node} train.py"
    line = command(begin, ["--deepspeed_config ds_config.json"])
    notes = ["the model is that of your train.py, which gives ds_config.json to deepspeed.initialize"]
    if run.pp > 1:
        notes.append(f"the {run.pp} pipeline stages are those of its PipelineModule(num_stages={run.pp})")
    if scenario.specification.training and scenario.specification.training.recompute_method != "none":
        notes.append("recomputation is that of train.py: torch.utils.checkpoint, or deepspeed.checkpointing")
    notes += run.unsaid({"tp", "pp", "dp"}, ("stage", "overlap", "bucket"))
    files = {"ds_config.json": config, "launch.sh": script(scenario.name, "DeepSpeed 0.16.4", [line])}
    return Export(files, tuple(notes))


def _config(run: Launch) -> dict[str, Any]:
    data, training = run.data, run.training
    if data.method not in ("ddp", "zero"):
        raise run.refuse("parallelism.data.method", "DeepSpeed", "ddp, zero")
    if training.optimizer not in OPTIMIZERS:
        raise run.refuse("training.optimizer", "DeepSpeed", ", ".join(OPTIMIZERS))
    run.check_precision("DeepSpeed")
    stage = getattr(data, "stage", 0)
    if getattr(data, "hybrid", None):
        raise run.refuse("parallelism.data.hybrid", "DeepSpeed", "shards over all replicas")
    overlap = bool(getattr(data, "overlaps", getattr(data, "overlap", False)))
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": overlap}
    if run.bucket_elements:
        zero["reduce_bucket_size"] = run.bucket_elements
    zero |= _offload(run)
    config: dict[str, Any] = {
        "train_batch_size": run.batch,
        "train_micro_batch_size_per_gpu": run.micro_batch,
        "gradient_accumulation_steps": run.accumulation,
        "zero_optimization": zero,
        "optimizer": {"type": OPTIMIZERS[training.optimizer], "params": {"lr": 1e-4}},
    }
    if run.precision != "fp32":
        config["bf16" if run.precision == "bf16" else "fp16"] = {"enabled": True}
        config["data_types"] = {"grad_accum_dtype": run.gradient_dtype}
    if run.tp > 1:
        if stage > 1:
            # deepspeed/runtime/engine.py: AutoTP goes with ZeRO stages 0 and 1
            raise run.refuse("parallelism.data.stage", "DeepSpeed with tensor parallelism", "0, 1")
        config["tensor_parallel"] = {"autotp_size": run.tp}
    if run.pp > 1:
        config["pipeline"] = {"stages": run.pp}
    return config


def _offload(run: Launch) -> dict[str, Any]:
    """Return the keys of ``zero_optimization`` for states off the GPU. DeepSpeed has no delayed update any more."""
    offload = run.training.offload
    if offload is None:
        return {}
    if offload.delayed_update:
        raise run.refuse("training.offload.delayed_update", "DeepSpeed", "false")
    found: dict[str, Any] = {}
    if offload.optimizer != "gpu":
        found["offload_optimizer"] = {"device": DEVICES[offload.optimizer], "ratio": offload.optimizer_fraction}
    if offload.parameters != "gpu":
        found["offload_param"] = {"device": DEVICES[offload.parameters]}
    return found
