"""torchtitan's configuration: TOML, or flags such as ``--training.seq_len``.

Settings and defaults are those of torchtitan 0.2.2 (torchtitan/config/job_config.py).
"""

from __future__ import annotations

from typing import Any

from clustersim.scenarios.exchange import torchtitan_keys as keys
from clustersim.scenarios.exchange.facts import Facts
from clustersim.scenarios.exchange.program_keys import Key, without_effect
from clustersim.scenarios.exchange.source_file import SourceFile, opened
from clustersim.simulator.reading.document import Path

SECTIONS = {"job", "model", "training", "parallelism", "activation_checkpoint", "optimizer"}
"""Sections of which a file has at least two, ``training`` or ``parallelism`` among them."""

DEFAULT_BATCH, DEFAULT_SEQUENCE = 8, 2048


def recognises(source: SourceFile) -> bool:
    """Return whether *source* configures torchtitan."""
    if source.script:
        flags = source.section("arguments")
        return "job.config_file" in flags or _known({key.partition(".")[0] for key in flags if "." in key})
    return _known(set(source.data)) and not {"trainer", "cluster", "version"} & source.data.keys()


def _known(sections: set[str]) -> bool:
    return len(sections & SECTIONS) >= 2 and bool({"training", "parallelism"} & sections)


class TorchtitanSettings:
    """The settings of a *source*, a TOML file or flags."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source

    def path(self, key: str) -> tuple[str, ...]:
        """Return the path of the setting *key*, such as ``training.seq_len``."""
        return ("arguments", key) if self.source.script else tuple(key.split("."))

    def whole(self, key: str, least: int = 1) -> int | None:
        """Return the whole number of *key*; None if it is not given."""
        return self.source.whole(*self.path(key), least=least)

    def number(self, key: str) -> float | None:
        """Return the number of *key*; None if it is not given."""
        return self.source.number(*self.path(key))

    def word(self, key: str) -> str | None:
        """Return the word of *key*; None if it is not given."""
        return self.source.word(*self.path(key))

    def flag(self, key: str) -> bool | None:
        """Return the truth of *key*; None if it is not given."""
        return self.source.flag(*self.path(key))

    def take(self, facts: Facts, key: Key) -> None:
        """Give *facts* what the setting *key* says, if it is given."""
        facts.give(key.key, key.read(self), self.source, *self.path(key.flag))


def read(source: SourceFile, facts: Facts) -> None:
    """Read model, batch, precision and degrees; and the file that ``--job.config_file`` names."""
    settings = TorchtitanSettings(source)
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


def read_below(source: SourceFile, facts: Facts) -> None:
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


def _ignored(source: SourceFile) -> set[Path]:
    keys = without_effect("torchtitan")
    if not source.script:
        return {tuple(key.split(".")) for key in keys}
    flags = source.section("arguments")
    return {("arguments", flag) for flag in flags if any(flag == key or flag.startswith(f"{key}.") for key in keys)}


def _defaults(source: SourceFile, facts: Facts) -> None:
    """Take torchtitan's defaults for what no file says."""
    for key, value in (
        (keys.LOCAL_BATCH, DEFAULT_BATCH),
        (keys.LENGTH, DEFAULT_SEQUENCE),
        (keys.RECOMPUTE, "selective"),
    ):
        facts.default(key.key, value, source, "torchtitan")


def _model(settings: TorchtitanSettings, facts: Facts) -> None:
    """Read the model: a preset here, by its name and flavour there."""
    source = settings.source
    name, flavor = settings.word("model.name"), settings.word("model.flavor")
    if name is None or flavor is None:
        return
    flavors = {known.lower(): preset for known, preset in keys.MODELS.get(name, {}).items()}
    preset = flavors.get(flavor.lower())
    if preset is None:
        hint = "give the model's config.json as a further file, or --set model.preset=..."
        facts.remarks.append(f"{source.name}: the model {name} {flavor} is no preset here; {hint}")
        return
    facts.give("model.preset", preset, source, *settings.path("model.flavor"))


def _training(settings: TorchtitanSettings, facts: Facts) -> None:
    source = settings.source
    settings.take(facts, keys.LOCAL_BATCH)
    path = settings.path(keys.BATCH.flag)
    if source.document.get(path) in (-1, "-1"):
        source.taken.add(path)
    else:
        settings.take(facts, keys.BATCH)
    settings.take(facts, keys.LENGTH)
    settings.take(facts, keys.STEPS)
    _precision(settings, facts)
    _eight_bits(settings, facts)
    mode = settings.word(keys.RECOMPUTE.flag)
    if mode not in (None, *keys.RECOMPUTE.words):
        path = settings.path(keys.RECOMPUTE.flag)
        raise source.error(path, f"{mode} is not simulated; it must be none, selective or full")
    settings.take(facts, keys.RECOMPUTE)
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
    settings.take(facts, keys.COMPILED)


def _precision(settings: TorchtitanSettings, facts: Facts) -> None:
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


def _eight_bits(settings: TorchtitanSettings, facts: Facts) -> None:
    """Read the converter that computes linear layers in 8 bits."""
    source, path = settings.source, settings.path("model.converters")
    given: Any = source.document.get(path)
    converters = given if isinstance(given, list) else str(given or "").replace(",", " ").split()
    known = [one for one in converters if one in (keys.FLOAT8, keys.MX)]
    if len(known) == len(converters):
        source.taken.add(path)
    if not known:
        return
    if facts.value("training.precision") == "fp32":
        raise source.error(path, f"{known[0]} is not simulated with parameters in float32")
    named = settings.word(f"{known[0]}.recipe_name")
    recipe = "mxfp8" if known[0] == keys.MX else named or "tensorwise"
    if recipe not in ("mxfp8", "tensorwise"):
        raise source.error(settings.path(f"{known[0]}.recipe_name"), f"{recipe} is not simulated; leave it out")
    value = {"matmul": "fp8", "rest": "bf16", "recipe": recipe}
    if settings.flag(f"{known[0]}.enable_fsdp_float8_all_gather"):
        value["parameters"] = "fp8"
    settings.flag(f"{known[0]}.precompute_float8_dynamic_scale_for_fsdp")
    facts.give("training.precision", value, source, *path, over=True)


def _experts(settings: TorchtitanSettings, facts: Facts) -> None:
    """Read the degrees of experts; without their own tensor parallelism a rank has whole experts."""
    source = settings.source
    ep, shared = keys.EXPERT.read(settings), keys.EXPERT_TENSOR.read(settings)
    if (ep or 1) == 1:
        return
    settings.take(facts, keys.EXPERT)
    path = settings.path(keys.EXPERT_TENSOR.flag)
    facts.give(keys.EXPERT_TENSOR.key, shared or 1, source, *path, given=shared is not None)


def _context(settings: TorchtitanSettings, facts: Facts) -> None:
    """Read how context parallelism gets at the other positions, and how it divides a sequence."""
    source = settings.source
    how = keys.CONTEXT_METHOD
    method = settings.word(how.flag)
    balancer = settings.word("parallelism.context_parallel_load_balancer")
    if not facts.whole("parallelism.cp"):
        return
    path = settings.path(how.flag)
    if method not in (None, *how.words):
        raise source.error(path, f"{method} is not simulated; it must be {' or '.join(how.words)}")
    facts.give(how.key, how.words[method or "allgather"], source, *path, given=method is not None)
    if balancer not in (None, "headtail"):
        path = settings.path("parallelism.context_parallel_load_balancer")
        facts.give("parallelism.cp_layout", "contiguous", source, *path)


def _degrees(settings: TorchtitanSettings, facts: Facts) -> None:
    """Read the degrees; a shard degree of -1 is all ranks that are left."""
    source = settings.source
    settings.take(facts, keys.TENSOR)
    if (keys.TENSOR.read(settings) or 1) > 1:
        path, how = settings.path(keys.TENSOR.flag), "as torchtitan always has it"
        facts.give("parallelism.sequence_parallel", True, source, *path, how=how)
    settings.take(facts, keys.PIPELINE)
    if (keys.CONTEXT.read(settings) or 1) > 1:
        settings.take(facts, keys.CONTEXT)
    settings.take(facts, keys.TENSOR_OVERLAP)
    _experts(settings, facts)
    _context(settings, facts)
    _replicas(settings, facts)


def _replicas(settings: TorchtitanSettings, facts: Facts) -> None:
    """Read how many replicas there are, and what they share."""
    source, path = settings.source, settings.path(keys.SHARDED.flag)
    replicate = keys.REPLICATED.read(settings) or 1
    given: Any = source.document.get(path)
    source.taken.add(path)
    shard = None if given in (None, -1, "-1") else keys.SHARDED.read(settings)
    if shard == 1:
        facts.give("parallelism.data.method", "ddp", source, *path)
    else:
        facts.give("parallelism.data.method", "fsdp", source, *path, given=given is not None)
        if replicate > 1:
            settings.take(facts, keys.REPLICATED)
    if shard is not None:
        facts.give(keys.SHARDED.key, replicate * shard, source, *path)
    policy, pipeline = settings.word(keys.RESHARD.flag), (keys.PIPELINE.read(settings) or 1) > 1
    reshard = not pipeline if policy in (None, "default") else keys.RESHARD.read(settings)
    if shard != 1 and reshard is False:
        facts.give(keys.RESHARD.key, False, source, *settings.path(keys.RESHARD.flag))


def _pipeline(settings: TorchtitanSettings, facts: Facts) -> None:
    source = settings.source
    pp, size = keys.PIPELINE.read(settings) or 1, keys.MICRO_BATCH.read(settings)
    name, layers = settings.word(keys.SCHEDULE.flag), keys.LAYERS_PER_STAGE.read(settings)
    for end in ("first", "last"):
        settings.whole(f"parallelism.pipeline_parallel_{end}_stage_less_layers", least=0)
    if pp == 1:
        return
    path = settings.path(keys.MICRO_BATCH.flag)
    facts.give(keys.MICRO_BATCH.key, size or 1, source, *path, how="" if size else "1 by default")
    csv = settings.word("parallelism.pipeline_parallel_schedule_csv")
    orders = {known.lower(): order for known, order in keys.SCHEDULE.words.items()}
    order = orders.get((name or "1F1B").lower())
    path = settings.path(keys.SCHEDULE.flag)
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
            f"{name} is not simulated; there are {', '.join(orders)}, in any case of letters",
        )
    facts.give(keys.SCHEDULE.key, order, source, *path)
    facts.give(
        "parallelism.layout",
        "embedding_as_layer",
        source,
        *path,
        how="torchtitan counts embedding and logits as a layer each",
    )
    if layers is not None:
        settings.take(facts, keys.LAYERS_PER_STAGE)
    elif order not in (*keys.SINGLE, *keys.V_SHAPED):
        facts.give("parallelism.virtual_stages", 2, source, *path, how="2 by default")
