"""DeepSpeed's configuration, ``ds_config.json``.

Keys and defaults are those of DeepSpeed 0.16.4 (deepspeed/runtime/config.py and runtime/zero/config.py).
A value "auto" is resolved by the arguments of Hugging Face's Trainer, or else by DeepSpeed's default.
"""

from __future__ import annotations

from typing import Any

from clustersim.scenarios.exchange.facts import Facts
from clustersim.scenarios.exchange.source_file import SourceFile, opened
from clustersim.simulator.reading.document import Path
from clustersim.simulator.reading.errors import ScenarioError

OFFLOAD_DEVICES = {"cpu": "host", "nvme": "nvme"}
"""Where states live, by DeepSpeed's name."""

OFFLOAD_WITHOUT_EFFECT = (
    "pin_memory",
    "buffer_count",
    "buffer_size",
    "max_in_cpu",
    "nvme_path",
    "fast_init",
    "pipeline_read",
    "pipeline_write",
)
"""Keys of an offload section that a simulation does not need."""

KEYS = {"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization"}
"""Keys of which a configuration has at least one."""

OPTIMIZERS = {
    "adam": "adam",
    "adamw": "adam",
    "cpuadam": "adam",
    "onebitadam": "adam",
    "sgd": "momentum",
    "lamb": "lamb",
    "onebitlamb": "lamb",
}
"""The optimizer here by the type there; its states are of the same size."""

GRADIENTS = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16"}


def recognises(source: SourceFile) -> bool:
    """Return whether *source* is a configuration of DeepSpeed."""
    return not source.script and bool(KEYS & source.data.keys())


def read(source: SourceFile, facts: Facts, at: tuple[str, ...] = ()) -> None:
    """Read the configuration at the path *at* of *source*."""
    source.ignore("deepspeed", *at)
    for key, name in (
        ("train_batch_size", "training.global_batch_size"),
        ("train_micro_batch_size_per_gpu", "training.micro_batch_size"),
        ("gradient_accumulation_steps", "run.accumulation"),
    ):
        facts.give(name, _unless_auto(source, *at, key, kind="whole"), source, *at, key)
    facts.give("run.program", "deepspeed", source, *at, given=False)
    _precision(source, facts, at)
    _zero(source, facts, at)
    kind = _unless_auto(source, *at, "optimizer", "type", kind="word")
    if kind is not None:
        if kind.lower() not in OPTIMIZERS:
            raise source.error(
                (*at, "optimizer", "type"), f"{kind} is not simulated; there are {', '.join(OPTIMIZERS)}"
            )
        facts.give("training.optimizer", OPTIMIZERS[kind.lower()], source, *at, "optimizer", "type")
    source.without_effect.add((*at, "optimizer", "params"))
    dtype = _unless_auto(source, *at, "data_types", "grad_accum_dtype", kind="word")
    dtype = dtype or _unless_auto(source, *at, "communication_data_type", kind="word")
    if dtype is not None and dtype in GRADIENTS:
        place = ("data_types", "grad_accum_dtype") if source.has(*at, "data_types") else ("communication_data_type",)
        facts.give("training.gradient_dtype", GRADIENTS[dtype], source, *at, *place)
    facts.give(
        "parallelism.tp",
        source.whole(*at, "tensor_parallel", "autotp_size", least=0) or None,
        source,
        *at,
        "tensor_parallel",
        "autotp_size",
    )
    facts.give("parallelism.pp", source.whole(*at, "pipeline", "stages"), source, *at, "pipeline", "stages")


def _unless_auto(source: SourceFile, *path: str, kind: str) -> Any:
    """Return the value at *path*; None if it is "auto", which the Trainer's arguments or a default resolve."""
    if source.document.get(path) == "auto":
        source.taken.add(path)
        return None
    return source.whole(*path) if kind == "whole" else source.word(*path)


def _precision(source: SourceFile, facts: Facts, at: tuple[str, ...]) -> None:
    """Read bf16 and fp16. DeepSpeed asserts that not both are enabled (runtime/config.py)."""
    enabled = []
    for section, precision in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16")):
        path = (*at, section, "enabled")
        source.ignore("deepspeed_precision", *at, section)
        if source.document.get(path) == "auto":
            source.taken.add(path)
            continue
        if source.section(*at, section) and source.flag(*path):
            enabled.append((precision, path))
    if len({precision for precision, _ in enabled}) > 1:
        raise source.error(enabled[1][1], "DeepSpeed refuses bf16 and fp16 together; enable one of them")
    for precision, path in enabled[:1]:
        facts.give("training.precision", precision, source, *path)


def _zero(source: SourceFile, facts: Facts, at: tuple[str, ...]) -> None:
    """Read ``zero_optimization``; without it DeepSpeed all-reduces gradients, as ZeRO stage 0 does."""
    section, at = source.section(*at, "zero_optimization"), (*at, "zero_optimization")
    source.ignore("deepspeed_zero", *at)
    stage = source.whole(*at, "stage", least=0) if section.get("stage") != "auto" else 0
    if stage is not None and stage > 3:
        raise source.error((*at, "stage"), f"ZeRO has the stages 0 to 3, not {stage}")
    place = (*at, "stage") if "stage" in section else at[:-1]
    facts.give("parallelism.data.method", "zero", source, *place)
    facts.give("parallelism.data.stage", stage or 0, source, *place, how="" if stage else "no ZeRO is stage 0")
    if section.get("overlap_comm") != "auto":
        facts.give("parallelism.data.overlap", source.flag(*at, "overlap_comm"), source, *at, "overlap_comm")
    if section.get("reduce_bucket_size") == "auto":
        source.taken.add((*at, "reduce_bucket_size"))
    else:
        facts.give("run.bucket_elements", source.number(*at, "reduce_bucket_size"), source, *at, "reduce_bucket_size")
    _offload(source, facts, at, stage or 0)


def _offload(source: SourceFile, facts: Facts, at: tuple[str, ...], stage: int) -> None:
    """Read where states live. Gradients are beside an offloaded optimizer, if the stage shards them.

    DeepSpeed offloads the optimizer from stage 1 on, parameters in stage 3.
    """
    for key, states, least in (("offload_optimizer", "optimizer", 1), ("offload_param", "parameters", 3)):
        place = (*at, key, "device")
        device = source.document.get(place)
        if device in (None, "none") or stage < least:
            source.without_effect.add((*at, key))
            continue
        source.without_effect |= {(*at, key, name) for name in OFFLOAD_WITHOUT_EFFECT}
        word = source.word(*place) or ""
        if word not in OFFLOAD_DEVICES:
            raise source.error(place, f"must be cpu, nvme or none, not {word}")
        facts.give(f"training.offload.{states}", OFFLOAD_DEVICES[word], source, *place)
        if states == "optimizer":
            facts.give(
                "training.offload.optimizer_fraction", source.number(*at, key, "ratio"), source, *at, key, "ratio"
            )
            if stage > 1:
                facts.give("training.offload.gradients", "host", source, *place, how="beside the optimizer")


def read_at(source: SourceFile, facts: Facts, path: Path) -> None:
    """Read the configuration of DeepSpeed that stands at *path*, or in the file that is named there."""
    value: Any = source.document.get(path)
    names = tuple(str(part) for part in path)
    if isinstance(value, dict):
        source.taken.add(path)
        read(source, facts, names)
    elif isinstance(value, str):
        source.taken.add(path)
        file = source.folder / value
        if not file.is_file():
            facts.remarks.append(f"{source.name}: names {value}, which is not there; give it as a further file")
            return
        named = opened(str(file))
        if not recognises(named):
            raise ScenarioError(f"{file}: is no configuration of DeepSpeed, but {source.name} names it as one")
        facts.follow(named)
        read(named, facts)
