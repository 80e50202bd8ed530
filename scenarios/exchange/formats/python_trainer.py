"""A Python training script of Hugging Face's Trainer or accelerate; it is read, never run.

`scenarios.exchange.python_script` reads the calls. TrainingArguments have the keys of a file of them
(`training_arguments`). ``Accelerator`` and its plugins are those of accelerate 1.10 (src/accelerate/accelerator.py and
utils/dataclasses.py), ``DataLoader`` is torch's.
"""

from __future__ import annotations

from clustersim.scenarios.exchange.facts import Facts
from clustersim.scenarios.exchange.formats import deepspeed, fully_sharded, huggingface
from clustersim.scenarios.exchange.program_keys import preset_of
from clustersim.scenarios.exchange.python_script import SECTIONS
from clustersim.scenarios.exchange.source_file import SourceFile
from clustersim.simulator.reading.document import Document
from clustersim.workloads.architectures.huggingface_config import FAMILIES

WITHOUT_EFFECT = {
    "accelerator": ("log_with", "project_dir", "project_config", "cpu", "even_batches", "step_scheduler_with_optimizer",
                    "split_batches", "dispatch_batches", "rng_types", "device_placement"),
    "data_loader": ("shuffle", "drop_last", "num_workers", "pin_memory", "collate_fn", "persistent_workers"),
    "deepspeed_plugin": ("gradient_clipping", "zero3_init_flag", "zero3_save_16bit_model"),
}  # fmt: skip
"""Arguments that change neither time nor memory of a step."""

TOLD = {
    "arguments": (
        *("batch_size", "accumulation", "bf16", "fp16", "checkpointing"),
        *("deepspeed", "fsdp", "optim", "max_steps"),
    ),
    "accelerator": ("mixed_precision", "gradient_accumulation_steps"),
    "data_loader": ("batch_size",),
    "deepspeed_plugin": ("zero_stage", "hf_ds_config", "gradient_accumulation_steps"),
}  # fmt: skip
"""Parts of the names of arguments that matter: a value that only the running script has is told."""


def recognises(source: SourceFile) -> bool:
    """Return whether *source* is a Python script with one of the calls."""
    return source.python and bool({*SECTIONS.values(), "config", "model"} & source.data.keys())


def read(source: SourceFile, facts: Facts) -> None:
    """Read the model, the plugins of accelerate and the data loader."""
    for section, keys in WITHOUT_EFFECT.items():
        source.without_effect |= {(section, key) for key in keys}
    _unknown(source, facts)
    _model(source, facts)
    _accelerator(source, facts)
    _deepspeed(source, facts)
    if source.section("fsdp_plugin"):
        fully_sharded.read(source, facts, ("fsdp_plugin",))
    if "arguments" not in source.data:
        at = "data_loader", "batch_size"
        facts.give("training.micro_batch_size", source.whole(*at), source, *at)


def _unknown(source: SourceFile, facts: Facts) -> None:
    """Tell the arguments whose values only the running script has."""
    for name, expression in source.section("unknown").items():
        source.taken.add(("unknown", name))
        section, _, key = name.partition(".")
        if any(part in key for part in TOLD.get(section, ())):
            line = source.document.position(("unknown", name)).line
            facts.remarks.append(f"{source.name}:{line}: {key} is {expression}, which only the running script knows")


def _model(source: SourceFile, facts: Facts) -> None:
    """Read the model: a configuration of transformers in the script, or the name of a checkpoint with a preset."""
    if source.section("config"):
        _config(source, facts)
        return
    named = source.word("model", "name")
    if named is None:
        return
    preset = preset_of(named)
    if preset is None:
        line = source.document.position(("model", "name")).line
        why = f"the model is {named}; give its config.json too, or --set model.preset=NAME"
        facts.remarks.append(f"{source.name}:{line}: {why}")
    else:
        facts.give("model.preset", preset, source, "model", "name")


def _config(source: SourceFile, facts: Facts) -> None:
    """Read a configuration of transformers, such as ``LlamaConfig(hidden_size=...)``, as a config.json."""
    kind = source.word("config", "class") or ""
    family = {name.replace("_", ""): name for name in FAMILIES}.get(kind.removesuffix("Config").lower())
    if family is None:
        raise source.error(("config", "class"), f"{kind} is of no family that can be imported", "give a config.json")
    given = {key: value for key, value in source.section("config").items() if key != "class"}
    places = {path[1:]: place for path, place in source.document.positions.items() if path[:1] == ("config",)}
    places |= {("model_type",): source.document.position(("config", "class"))}
    document = Document({"model_type": family, **given}, {(): source.document.position(()), **places})
    config = SourceFile(source.name, source.text, document, folder=source.folder)
    huggingface.read(config, facts)
    source.taken.add(("config",))
    facts.follow(config)


def _accelerator(source: SourceFile, facts: Facts) -> None:
    """Read precision and accumulation; a script without TrainingArguments is accelerate's own."""
    if "accelerator" not in source.data and "deepspeed_plugin" not in source.data:
        return
    facts.give("run.program", "accelerate", source, "accelerator", given=False)
    precision = source.word("accelerator", "mixed_precision")
    if precision in ("bf16", "fp16"):
        facts.give("training.precision", precision, source, "accelerator", "mixed_precision")
    elif precision not in (None, "no"):
        raise source.error(
            ("accelerator", "mixed_precision"), f"{precision} is not simulated; it must be bf16, fp16 or no"
        )
    for section in ("accelerator", "deepspeed_plugin"):
        key = "gradient_accumulation_steps"
        facts.give("run.accumulation", source.whole(section, key), source, section, key)


def _deepspeed(source: SourceFile, facts: Facts) -> None:
    """Read DeepSpeedPlugin: a configuration, in the script or a file, or the stage of ZeRO."""
    at = "deepspeed_plugin"
    if source.has(at, "hf_ds_config"):
        deepspeed.read_at(source, facts, (at, "hf_ds_config"))
        return
    stage = source.whole(at, "zero_stage", least=0)
    if stage is None:
        return
    if stage > 3:
        raise source.error((at, "zero_stage"), f"ZeRO has the stages 0 to 3, not {stage}")
    facts.give("parallelism.data.method", "zero", source, at, "zero_stage")
    facts.give("parallelism.data.stage", stage, source, at, "zero_stage")
