"""accelerate's configuration, as ``accelerate config`` writes it (accelerate 1.10, commands/config/config_args.py)."""

from __future__ import annotations

from clustersim.scenarios.exchange.facts import Facts
from clustersim.scenarios.exchange.formats import deepspeed, fully_sharded
from clustersim.scenarios.exchange.source_file import SourceFile, opened

TYPES = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM")
"""Kinds of ``distributed_type`` that are simulated."""

PARALLELISM = {
    "tp_size": "parallelism.tp",
    "cp_size": "parallelism.cp",
    "dp_shard_size": "run.shards",
}
"""Keys of ``parallelism_config`` without their prefix ``parallelism_config_``."""

MEGATRON = {
    "tp_degree": "parallelism.tp",
    "pp_degree": "parallelism.pp",
    "num_micro_batches": "run.accumulation",
}
"""Keys of ``megatron_lm_config`` without their prefix ``megatron_lm_``."""


def recognises(source: SourceFile) -> bool:
    """Return whether *source* is a configuration of accelerate."""
    return not source.script and "distributed_type" in source.data


def read(source: SourceFile, facts: Facts) -> None:
    """Read the numbers of machines and processes, the precision, and the settings of FSDP, DeepSpeed or Megatron-LM."""
    source.ignore("accelerate")
    kind = source.word("distributed_type") or "NO"
    if kind not in TYPES:
        raise source.error(("distributed_type",), f"{kind} is not simulated; there are {', '.join(TYPES)}")
    facts.give("run.nodes", source.whole("num_machines"), source, "num_machines")
    processes = source.take("num_processes")
    if processes != -1 and kind != "NO":
        facts.give("run.gpus", source.whole("num_processes"), source, "num_processes")
    if kind == "NO":
        facts.give("run.gpus", 1, source, "distributed_type", how="one process")
    precision = source.word("mixed_precision")
    if precision in ("bf16", "fp16"):
        facts.give("training.precision", precision, source, "mixed_precision")
    elif precision not in (None, "no", "False"):
        raise source.error(("mixed_precision",), f"{precision} is not simulated; it must be bf16, fp16 or no")
    facts.give("run.program", "accelerate", source, given=False)
    if kind == "MULTI_GPU":
        facts.give("parallelism.data.method", "ddp", source, "distributed_type")
    elif kind == "FSDP":
        fully_sharded.read(source, facts, ("fsdp_config",))
    elif kind == "DEEPSPEED":
        _deepspeed(source, facts)
    elif kind == "MEGATRON_LM":
        _prefixed(source, facts, "megatron_lm_config", "megatron_lm_", MEGATRON)
        _megatron(source, facts)
    _prefixed(source, facts, "parallelism_config", "parallelism_config_", PARALLELISM)


def _prefixed(source: SourceFile, facts: Facts, section: str, prefix: str, keys: dict[str, str]) -> None:
    for key in source.section(section):
        if (name := keys.get(key.removeprefix(prefix))) is not None:
            facts.give(name, source.whole(section, key), source, section, key)


def _megatron(source: SourceFile, facts: Facts) -> None:
    at = "megatron_lm_config"
    if source.flag(at, "megatron_lm_recompute_activations"):
        facts.give("training.recompute", "selective", source, at, "megatron_lm_recompute_activations")
    key = "megatron_lm_sequence_parallelism"
    facts.give("parallelism.sequence_parallel", source.flag(at, key), source, at, key)
    key = "megatron_lm_use_distributed_optimizer"
    facts.give("parallelism.data.method", "zero" if source.flag(at, key) else "ddp", source, at, key)
    source.without_effect.add((at, "megatron_lm_gradient_clipping"))


def _deepspeed(source: SourceFile, facts: Facts) -> None:
    """Read ``deepspeed_config``: settings in the file itself, or the name of a ds_config.json."""
    at = "deepspeed_config"
    source.ignore("accelerate_deepspeed", at)
    named = source.document.get((at, "deepspeed_config_file"))
    if isinstance(named, str) and named not in ("", "none"):
        source.taken.add((at, "deepspeed_config_file"))
        file = source.folder / named
        if file.is_file():
            other = opened(str(file))
            facts.follow(other)
            deepspeed.read(other, facts)
        else:
            facts.remarks.append(f"{source.name}: names {named}, which is not there; give it as a further file")
        return
    facts.give(
        "run.accumulation", source.whole(at, "gradient_accumulation_steps"), source, at, "gradient_accumulation_steps"
    )
    stage = source.whole(at, "zero_stage", least=0)
    if stage is not None and stage > 3:
        raise source.error((at, "zero_stage"), f"ZeRO has the stages 0 to 3, not {stage}")
    facts.give("parallelism.data.method", "zero", source, at, "zero_stage")
    facts.give("parallelism.data.stage", 2 if stage is None else stage, source, at, "zero_stage")
    for key in ("offload_optimizer_device", "offload_param_device"):
        if source.document.get((at, key)) in (None, "none"):
            source.without_effect.add((at, key))
