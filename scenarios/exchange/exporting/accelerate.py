"""A configuration for Hugging Face's accelerate, and the line that starts the Trainer with it.

Keys and rules are those of accelerate 1.10.1 (src/accelerate/commands/config/config_args.py).
"""

from __future__ import annotations

from json import dumps
from shlex import quote
from typing import Any

from clustersim.scenarios.exchange.export import Export, Launch, command, launch, script
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.yaml_and_json import yaml_text

OPTIMIZERS = {"adam": "adamw_torch", "sgd": "sgd", "adam8bit": "adamw_bnb_8bit", "adafactor": "adafactor"}
"""``--optim`` of the Trainer by the optimizer of the scenario."""


EACH_BATCH = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
"""``--accelerator_config`` of a Trainer that reduces the gradients of each micro-batch; by default it does not
(transformers, trainer.py, ``model_sync_context``)."""

STRATEGIES = {
    (True, False): "FULL_SHARD",
    (False, False): "SHARD_GRAD_OP",
    (True, True): "HYBRID_SHARD",
    (False, True): "HYBRID_SHARD_ZERO2",
}
"""torch's strategy by whether gathered parameters are released, and whether shards lie within a node."""


def accelerate(scenario: Scenario) -> Export:
    """Return configuration and launch script. Raises `ScenarioError` for what accelerate does not have."""
    run = launch(scenario, "accelerate")
    config = yaml_text(_config(run))
    begin = "accelerate launch --config_file accelerate.yaml --machine_rank ${NODE_RANK:-0} train.py"
    files = {
        "accelerate.yaml": config,
        "launch.sh": script(scenario.name, "accelerate 1.10.1", [command(begin, _trainer(run))]),
    }
    note = "the model is that of your train.py, whose Trainer takes the flags of launch.sh"
    told = ("stage", "hybrid", "reshard", "prefetch", "no_sync")
    return Export(files, (note, *run.unsaid({"tp", "pp", "dp"}, told, ("offload",))))


def _trainer(run: Launch) -> list[str]:
    """Return the flags of the Trainer."""
    training = run.training
    if training.optimizer not in OPTIMIZERS:
        raise run.refuse("training.optimizer", "the Trainer", ", ".join(OPTIMIZERS))
    flags = [
        f"--per_device_train_batch_size {run.micro_batch}",
        f"--gradient_accumulation_steps {run.accumulation}",
        f"--optim {OPTIMIZERS[training.optimizer]}",
    ]
    if run.data.method == "fsdp" and run.accumulation > 1 and not getattr(run.data, "no_sync", False):
        flags.append(f"--accelerator_config {quote(dumps(EACH_BATCH))}")
    if run.steps:
        flags.append(f"--max_steps {run.steps}")
    if run.precision != "fp32":
        flags.append(f"--{run.precision} True")
    if training.recompute_method == "full":
        flags.append("--gradient_checkpointing True")
    elif training.recompute_method != "none":
        raise run.refuse("training.recompute", "the Trainer", "none, full")
    return flags


def _config(run: Launch) -> dict[str, Any]:
    for axis, degree in (("tp", run.tp), ("pp", run.pp)):
        if degree > 1:
            raise run.error(f"parallelism.{axis}", f"accelerate shares no layers: {axis} must be 1; --to megatron")
    run.check_precision("accelerate")
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "NO" if run.dp == 1 else "MULTI_GPU",
        "mixed_precision": "no" if run.precision == "fp32" else run.precision,
        "num_machines": run.nodes,
        "num_processes": run.dp,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    method = run.data.method
    if method == "fsdp":
        return config | {"distributed_type": "FSDP", "fsdp_config": _fully_sharded(run)}
    if method == "zero":
        return config | {"distributed_type": "DEEPSPEED", "deepspeed_config": _deepspeed(run)}
    if method != "ddp":
        raise run.refuse("parallelism.data.method", "accelerate", "ddp, fsdp, zero")
    return config


def _fully_sharded(run: Launch) -> dict[str, Any]:
    reshard, hybrid = getattr(run.data, "reshard", True), getattr(run.data, "hybrid", None)
    if hybrid and hybrid not in (run.dp, run.gpus_per_node):
        raise run.refuse("parallelism.data.hybrid", "torch's HYBRID_SHARD", f"the {run.gpus_per_node} GPUs of a node")
    cut = bool(hybrid and hybrid < run.dp)
    strategy = STRATEGIES[reshard, cut]
    return {
        "fsdp_version": 1,
        "fsdp_sharding_strategy": strategy,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_backward_prefetch": "BACKWARD_PRE" if getattr(run.data, "prefetch", 1) else "NO_PREFETCH",
        "fsdp_forward_prefetch": False,
        "fsdp_offload_params": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_sync_module_states": True,
        "fsdp_use_orig_params": True,
        "fsdp_activation_checkpointing": False,
    }


def _deepspeed(run: Launch) -> dict[str, Any]:
    stage = getattr(run.data, "stage", 1)
    if getattr(run.data, "hybrid", None):
        raise run.refuse("parallelism.data.hybrid", "DeepSpeed", "shards over all replicas")
    return {
        "zero_stage": stage,
        "gradient_accumulation_steps": run.accumulation,
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        "zero3_init_flag": stage == 3,
    }
