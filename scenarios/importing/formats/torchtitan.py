"""torchtitan's configuration: TOML, or flags such as ``--training.seq_len``.

Settings and defaults are those of torchtitan 0.2.2 (torchtitan/config/job_config.py).
"""

from __future__ import annotations

from typing import Any

from scenarios.importing.facts import Facts
from scenarios.importing.source import Source, opened
from scenarios.importing.without_effect import without_effect
from simulator.document import Path

SECTIONS = {"job", "model", "training", "parallelism", "activation_checkpoint", "optimizer"}
"""Sections of which a file has at least two, ``training`` or ``parallelism`` among them."""

MODELS = {
    "llama3": {"8B": "llama3_8b", "70B": "llama3_70b", "405B": "llama3_405b"},
    "llama4": {"17bx16e": "llama4_scout", "17bx128e": "llama4_maverick"},
    "qwen3": {
        "0.6B": "qwen3_0_6b",
        "1.7B": "qwen3_1_7b",
        "4B": "qwen3_4b",
        "8B": "qwen3_8b",
        "14B": "qwen3_14b",
        "32B": "qwen3_32b",
        "30B-A3B": "qwen3_30b_a3b",
        "235B-A22B": "qwen3_235b_a22b",
    },
    "deepseek_v3": {"16B": "deepseek_v2_lite", "236B": "deepseek_v2", "671B": "deepseek_v3"},
    "gpt_oss": {"20b": "gpt_oss_20b", "120b": "gpt_oss_120b"},
}
"""Presets by model and flavour (torchtitan/models/*/__init__.py)."""

FLOAT8, MX = "quantize.linear.float8", "quantize.linear.mx"
"""Converters of the model for products in 8 bits (torchtitan/components/quantization)."""

SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved",
    "interleavedzerobubble": "interleaved_zero_bubble",
    "zbvzerobubble": "zero_bubble_v",
    "dualpipev": "dual_pipe_v",
    "loopedbfs": "looped_bfs",
}
"""The order by ``pipeline_parallel_schedule`` in small letters (torch, get_schedule_class)."""

SINGLE = ("1f1b", "gpipe")
"""Orders with one stage for each pipeline rank; the others have 2 by default (pipeline_parallel.py)."""

V_SHAPED = ("zero_bubble_v", "dual_pipe_v")
"""Orders with two stages for each pipeline rank, always."""

DEFAULT_BATCH, DEFAULT_SEQUENCE = 8, 2048


def recognises(source: Source) -> bool:
    """Return whether *source* configures torchtitan."""
    if source.script:
        flags = source.section("arguments")
        return "job.config_file" in flags or _known({key.partition(".")[0] for key in flags if "." in key})
    return _known(set(source.data)) and not {"trainer", "cluster", "version"} & source.data.keys()


def _known(sections: set[str]) -> bool:
    return len(sections & SECTIONS) >= 2 and bool({"training", "parallelism"} & sections)


class Settings:
    """The settings of a *source*, a TOML file or flags."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def path(self, key: str) -> tuple[str, ...]:
        """Return the path of the setting *key*, such as ``training.seq_len``."""
        return ("arguments", key) if self.source.script else tuple(key.split("."))

    def whole(self, key: str, least: int = 1) -> int | None:
        """Return the whole number of *key*; None if it is not given."""
        return self.source.whole(*self.path(key), least=least)

    def word(self, key: str) -> str | None:
        """Return the word of *key*; None if it is not given."""
        return self.source.word(*self.path(key))

    def flag(self, key: str) -> bool | None:
        """Return the truth of *key*; None if it is not given."""
        return self.source.flag(*self.path(key))


def read(source: Source, facts: Facts) -> None:
    """Read model, batch, precision and degrees; and the file that ``--job.config_file`` names."""
    settings = Settings(source)
    source.without_effect |= _ignored(source)
    facts.give("run.program", "torchtitan", source, given=False)
    named = settings.word("job.config_file") if source.script else None
    _model(settings, facts)
    _training(settings, facts)
    _degrees(settings, facts)
    _pipeline(settings, facts)
    if named is not None and not facts.nested:
        file = source.folder / named
        if not file.is_file():
            facts.remarks.append(f"{source.name}: names {named}, which is not there; give it as a further file")
            return
        other = opened(str(file))
        facts.follow(other)
        # a flag overrides the file: what is known already stays
        read_below(other, facts)
    elif not facts.nested:
        _defaults(source, facts)


def read_below(source: Source, facts: Facts) -> None:
    """Read *source* for what *facts* do not have yet."""
    below = Facts(nested=True)
    read(source, below)
    for key, fact in below.found.items():
        known = facts.found.get(key)
        if known is None or (fact.given and not known.given):
            facts.found[key] = fact
    facts.remarks += below.remarks
    facts.assumed += below.assumed
    _defaults(source, facts)


def _ignored(source: Source) -> set[Path]:
    keys = without_effect("torchtitan")
    if not source.script:
        return {tuple(key.split(".")) for key in keys}
    flags = source.section("arguments")
    return {("arguments", flag) for flag in flags if any(flag == key or flag.startswith(f"{key}.") for key in keys)}


def _defaults(source: Source, facts: Facts) -> None:
    """Take torchtitan's defaults for what no file says."""
    for key, value in (
        ("run.replica_batch_size", DEFAULT_BATCH),
        ("model.seq_length", DEFAULT_SEQUENCE),
        ("training.recompute", "selective"),
    ):
        facts.default(key, value, source, "torchtitan")


def _model(settings: Settings, facts: Facts) -> None:
    """Read the model: a preset here, by its name and flavour there."""
    source = settings.source
    name, flavor = settings.word("model.name"), settings.word("model.flavor")
    if name is None or flavor is None:
        return
    flavors = {known.lower(): preset for known, preset in MODELS.get(name, {}).items()}
    preset = flavors.get(flavor.lower())
    if preset is None:
        hint = "give the model's config.json as a further file, or --set model.preset=..."
        facts.remarks.append(f"{source.name}: the model {name} {flavor} is no preset here; {hint}")
        return
    facts.give("model.preset", preset, source, *settings.path("model.flavor"))


def _training(settings: Settings, facts: Facts) -> None:
    source = settings.source
    facts.give(
        "run.replica_batch_size",
        settings.whole("training.local_batch_size"),
        source,
        *settings.path("training.local_batch_size"),
    )
    if source.document.get(settings.path("training.global_batch_size")) in (-1, "-1"):
        source.taken.add(settings.path("training.global_batch_size"))
    else:
        key = "training.global_batch_size"
        facts.give(key, settings.whole(key), source, *settings.path(key))
    facts.give("model.seq_length", settings.whole("training.seq_len"), source, *settings.path("training.seq_len"))
    facts.give("run.iterations", settings.whole("training.steps"), source, *settings.path("training.steps"))
    _precision(settings, facts)
    _eight_bits(settings, facts)
    mode = settings.word("activation_checkpoint.mode")
    if mode not in (None, "none", "selective", "full"):
        raise source.error(
            settings.path("activation_checkpoint.mode"), f"{mode} is not simulated; it must be none, selective or full"
        )
    facts.give("training.recompute", mode, source, *settings.path("activation_checkpoint.mode"))
    optimizer = (settings.word("optimizer.name") or "AdamW").lower()
    if optimizer not in ("adam", "adamw"):
        raise source.error(settings.path("optimizer.name"), f"{optimizer} is not simulated; it must be Adam or AdamW")
    facts.give(
        "training.optimizer",
        "adam",
        source,
        *settings.path("optimizer.name"),
        given=source.has(*settings.path("optimizer.name")),
    )
    if settings.flag("compile.enable"):
        facts.give("run.compiled", True, source, *settings.path("compile.enable"))


def _precision(settings: Settings, facts: Facts) -> None:
    """Read the types of parameters and of reductions; FSDP's mixed precision computes in bf16 and reduces in fp32."""
    source, path = settings.source, settings.path("training.mixed_precision_param")
    whole = settings.word("training.dtype") == "bfloat16"
    narrow = whole or (settings.word("training.mixed_precision_param") or "bfloat16") == "bfloat16"
    facts.give("training.precision", "bf16" if narrow else "fp32", source, *path, given=source.has(*path))
    settings.word("training.mixed_precision_reduce")
    facts.give(
        "training.gradient_dtype",
        "fp32",
        source,
        *path,
        how="mixed_precision_reduce is float32",
        given=source.has(*path),
    )


def _eight_bits(settings: Settings, facts: Facts) -> None:
    """Read the converter that computes linear layers in 8 bits."""
    source, path = settings.source, settings.path("model.converters")
    given: Any = source.document.get(path)
    converters = given if isinstance(given, list) else str(given or "").replace(",", " ").split()
    known = [one for one in converters if one in (FLOAT8, MX)]
    if len(known) == len(converters):
        source.taken.add(path)
    if not known:
        return
    if facts.value("training.precision") == "fp32":
        raise source.error(path, f"{known[0]} is not simulated with parameters in float32")
    named = settings.word(f"{known[0]}.recipe_name")
    recipe = "mxfp8" if known[0] == MX else named or "tensorwise"
    if recipe not in ("mxfp8", "tensorwise"):
        raise source.error(settings.path(f"{known[0]}.recipe_name"), f"{recipe} is not simulated; leave it out")
    value = {"matmul": "fp8", "rest": "bf16", "recipe": recipe}
    if settings.flag(f"{known[0]}.enable_fsdp_float8_all_gather"):
        value["parameters"] = "fp8"
    settings.flag(f"{known[0]}.precompute_float8_dynamic_scale_for_fsdp")
    facts.give("training.precision", value, source, *path, over=True)


def _experts(settings: Settings, facts: Facts) -> None:
    """Read the degrees of experts; without their own tensor parallelism a rank has whole experts."""
    source = settings.source
    key = "parallelism.expert_parallel_degree"
    ep, shared = settings.whole(key), settings.whole("parallelism.expert_tensor_parallel_degree")
    if (ep or 1) == 1:
        return
    facts.give("parallelism.ep", ep, source, *settings.path(key))
    path = settings.path("parallelism.expert_tensor_parallel_degree")
    facts.give("parallelism.expert_tp", shared or 1, source, *path, given=shared is not None)


def _context(settings: Settings, facts: Facts) -> None:
    """Read how context parallelism gets at the other positions, and how it divides a sequence."""
    source = settings.source
    method = settings.word("parallelism.context_parallel_rotate_method")
    balancer = settings.word("parallelism.context_parallel_load_balancer")
    if not facts.whole("parallelism.cp"):
        return
    known = {None: "all_gather", "allgather": "all_gather", "alltoall": "ring"}
    path = settings.path("parallelism.context_parallel_rotate_method")
    if method not in known:
        raise source.error(path, f"{method} is not simulated; it must be allgather or alltoall")
    facts.give("parallelism.cp_method", known[method], source, *path, given=method is not None)
    if balancer not in (None, "headtail"):
        path = settings.path("parallelism.context_parallel_load_balancer")
        facts.give("parallelism.cp_layout", "contiguous", source, *path)


def _degrees(settings: Settings, facts: Facts) -> None:
    """Read the degrees; a shard degree of -1 is all ranks that are left."""
    source = settings.source
    for key, name in (
        ("tensor_parallel_degree", "tp"),
        ("pipeline_parallel_degree", "pp"),
        ("context_parallel_degree", "cp"),
    ):
        value = settings.whole(f"parallelism.{key}")
        if value is not None and (value > 1 or name in ("tp", "pp")):
            facts.give(f"parallelism.{name}", value, source, *settings.path(f"parallelism.{key}"))
        if name == "tp" and (value or 1) > 1:
            facts.give(
                "parallelism.sequence_parallel",
                True,
                source,
                *settings.path(f"parallelism.{key}"),
                how="as torchtitan always has it",
            )
    if settings.flag("parallelism.enable_async_tensor_parallel"):
        facts.give("parallelism.tp_overlap", True, source, *settings.path("parallelism.enable_async_tensor_parallel"))
    _experts(settings, facts)
    _context(settings, facts)
    replicate = settings.whole("parallelism.data_parallel_replicate_degree") or 1
    key = "parallelism.data_parallel_shard_degree"
    given: Any = source.document.get(settings.path(key))
    source.taken.add(settings.path(key))
    shard = None if given in (None, -1, "-1") else settings.whole(key)
    if shard == 1:
        facts.give("parallelism.data.method", "ddp", source, *settings.path(key))
    else:
        facts.give("parallelism.data.method", "fsdp", source, *settings.path(key), given=given is not None)
        if replicate > 1:
            facts.give(
                "run.replicated", replicate, source, *settings.path("parallelism.data_parallel_replicate_degree")
            )
    if shard is not None:
        facts.give("run.dp", replicate * shard, source, *settings.path(key))
    policy = settings.word("parallelism.fsdp_reshard_after_forward")
    kept = policy in (None, "default") and (settings.whole("parallelism.pipeline_parallel_degree") or 1) > 1
    if shard != 1 and (policy == "never" or kept):
        # with a pipeline torchtitan keeps gathered parameters by default (models/llama3/infra/parallelize.py)
        facts.give("parallelism.data.reshard", False, source, *settings.path("parallelism.fsdp_reshard_after_forward"))


def _pipeline(settings: Settings, facts: Facts) -> None:
    source = settings.source
    pp = settings.whole("parallelism.pipeline_parallel_degree") or 1
    size = settings.whole("parallelism.pipeline_parallel_microbatch_size")
    name = settings.word("parallelism.pipeline_parallel_schedule")
    layers = settings.whole("parallelism.pipeline_parallel_layers_per_stage")
    for end in ("first", "last"):
        settings.whole(f"parallelism.pipeline_parallel_{end}_stage_less_layers", least=0)
    if pp == 1:
        return
    path = settings.path("parallelism.pipeline_parallel_microbatch_size")
    facts.give("training.micro_batch_size", size or 1, source, *path, how="" if size else "1 by default")
    csv = settings.word("parallelism.pipeline_parallel_schedule_csv")
    order = SCHEDULES.get((name or "1F1B").lower())
    path = settings.path("parallelism.pipeline_parallel_schedule")
    if csv:
        facts.give(
            "parallelism.schedule",
            str(source.folder / csv),
            source,
            *settings.path("parallelism.pipeline_parallel_schedule_csv"),
        )
        return
    if order is None:
        raise source.error(
            path,
            f"{name} is not simulated; there are {', '.join(SCHEDULES)}, in any case of letters",
        )
    facts.give("parallelism.schedule", order, source, *path)
    facts.give(
        "parallelism.layout",
        "embedding_as_layer",
        source,
        *path,
        how="torchtitan counts embedding and logits as a layer each",
    )
    if layers is not None:
        path = settings.path("parallelism.pipeline_parallel_layers_per_stage")
        facts.give("run.layers_per_stage", layers, source, *path)
    elif order not in (*SINGLE, *V_SHAPED):
        facts.give("parallelism.virtual_stages", 2, source, *path, how="2 by default")
