"""TrainingArguments of Hugging Face's Trainer, as a file or as flags.

Arguments and defaults are those of transformers 4.56 (src/transformers/training_args.py). The Trainer
fills "auto" in a configuration of DeepSpeed from them.
"""

from __future__ import annotations

from json import loads

from clustersim.scenarios.exchange.facts import Facts
from clustersim.scenarios.exchange.formats import deepspeed, fully_sharded
from clustersim.scenarios.exchange.source_file import SourceFile
from clustersim.simulator.reading.document import replaced

KEYS = {"per_device_train_batch_size", "per_gpu_train_batch_size", "num_train_epochs", "gradient_accumulation_steps"}
"""Arguments of which a file has at least one."""

DEFAULT_MICRO_BATCH, DEFAULT_EPOCHS = 8, 3
"""training_args.py: ``per_device_train_batch_size`` and ``num_train_epochs``."""

OPTIMIZERS = {
    "adamw_torch": "adam",
    "adamw_torch_fused": "adam",
    "adamw_hf": "adam",
    "adamw_apex_fused": "adam",
    "adamw_bnb_8bit": "adam8bit",
    "adamw_8bit": "adam8bit",
    "paged_adamw_8bit": "adam8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
}
"""The optimizer here by the name of ``--optim``."""


def recognises(source: SourceFile) -> bool:
    """Return whether *source* has arguments of the Trainer."""
    return bool(KEYS & source.section(*_at(source)).keys() - {"gradient_accumulation_steps"})


def _at(source: SourceFile) -> tuple[str, ...]:
    return ("arguments",) if source.script else ()


def read(source: SourceFile, facts: Facts) -> None:
    """Read the arguments, and the configuration of DeepSpeed that they name."""
    at = _at(source)
    given = source.section(*at)
    source.ignore("training_arguments", *at)
    facts.give("run.program", "trainer", source, given=False)
    micro = "per_gpu_train_batch_size" if "per_gpu_train_batch_size" in given else "per_device_train_batch_size"
    facts.give("training.micro_batch_size", source.whole(*at, micro), source, *at, micro)
    facts.default("training.micro_batch_size", DEFAULT_MICRO_BATCH, source, "Hugging Face's Trainer")
    key = "gradient_accumulation_steps"
    facts.give("run.accumulation", source.whole(*at, key), source, *at, key)
    facts.default("run.accumulation", 1, source, "Hugging Face's Trainer")
    _synchronisation(source, facts, at)
    _length(source, facts, at)
    _precision(source, facts, at)
    if source.flag(*at, "gradient_checkpointing"):
        facts.give("training.recompute", "full", source, *at, "gradient_checkpointing")
    source.without_effect.add((*at, "gradient_checkpointing_kwargs"))
    optimizer = source.word(*at, "optim")
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise source.error((*at, "optim"), f"{optimizer} is not simulated; there are {', '.join(OPTIMIZERS)}")
    facts.give("training.optimizer", OPTIMIZERS.get(optimizer or ""), source, *at, "optim")
    for name in ("block_size", "max_seq_length", "model_max_length", "max_length"):
        facts.give("model.seq_length", source.whole(*at, name), source, *at, name)
    fully_sharded.of_trainer(source, facts, at)
    deepspeed.read_at(source, facts, (*at, "deepspeed"))


def _synchronisation(source: SourceFile, facts: Facts, at: tuple[str, ...]) -> None:
    """Read whether the gradients of each micro-batch are reduced; a command line names a file, or has JSON."""
    path = (*at, "accelerator_config")
    given = source.document.get(path)
    if isinstance(given, str) and given.lstrip().startswith("{"):
        try:
            values = loads(given)
        except ValueError as error:
            raise source.error(path, f"must be JSON, or the path of a file: {error}") from None
        source.document = replaced(source.document, path, values, source.document.position(path))
    path = (*path, "gradient_accumulation_kwargs", "sync_each_batch")
    facts.give("run.sync_each_batch", source.flag(*path), source, *path)


def _length(source: SourceFile, facts: Facts, at: tuple[str, ...]) -> None:
    """Read how long the run is: steps, which come before epochs."""
    steps = source.take(*at, "max_steps")
    if steps not in (None, -1, "-1", 0, "0"):
        facts.give("run.iterations", source.whole(*at, "max_steps"), source, *at, "max_steps")
        source.taken.add((*at, "num_train_epochs"))
        return
    facts.give("run.epochs", source.number(*at, "num_train_epochs"), source, *at, "num_train_epochs")
    facts.default("run.epochs", DEFAULT_EPOCHS, source, "Hugging Face's Trainer")
    for key in ("max_train_samples", "dataset_samples"):
        facts.give("run.dataset_samples", source.whole(*at, key), source, *at, key)


def _precision(source: SourceFile, facts: Facts, at: tuple[str, ...]) -> None:
    """Read bf16 and fp16, which the Trainer refuses together (training_args.py, ``__post_init__``)."""
    bf16, fp16 = source.flag(*at, "bf16"), source.flag(*at, "fp16")
    if bf16 and fp16:
        raise source.error((*at, "fp16"), "the Trainer refuses bf16 and fp16 together; give one of them")
    if bf16 or fp16:
        facts.give("training.precision", "bf16" if bf16 else "fp16", source, *at, "bf16" if bf16 else "fp16")
