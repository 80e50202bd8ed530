"""Settings of FSDP as the Trainer and accelerate write them.

Names are those of accelerate 1.10.1 (src/accelerate/utils/dataclasses.py, ``FullyShardedDataParallelPlugin``).
It recognises no file of its own: `training_arguments` and `accelerate` read files with such settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clustersim.scenarios.exchange.facts import Facts
from clustersim.scenarios.exchange.source_file import SourceFile

STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "full_shard": {"method": "fsdp"},
    "shard_grad_op": {"method": "fsdp", "reshard": False},
    "no_shard": {"method": "ddp"},
    "hybrid_shard": {"method": "fsdp", "hybrid": "node"},
    "_hybrid_shard_zero2": {"method": "fsdp", "reshard": False, "hybrid": "node"},
    "hybrid_shard_zero2": {"method": "fsdp", "reshard": False, "hybrid": "node"},
}
"""The section ``data`` by sharding strategy; ``hybrid: node`` is a group for each node."""

NUMBERS = {str(number): name for number, name in enumerate(list(STRATEGIES)[:5], 1)}
"""torch's ``ShardingStrategy``: accelerate also accepts its numbers."""


def recognises(source: SourceFile) -> bool:
    """Return False: the settings stand in files of other formats."""
    return False


def read(source: SourceFile, facts: Facts, at: tuple[str, ...] = ()) -> None:
    """Read the settings at *at*, with or without ``fsdp_`` before their names."""
    given = source.section(*at)
    source.ignore("fully_sharded", *at)
    named = {key.removeprefix("fsdp_"): key for key in given}
    if key := named.get("sharding_strategy"):
        _strategy(source, facts, source.word(*at, key) or "", (*at, key))
    elif key := named.get("reshard_after_forward"):
        word = (source.word(*at, key) if isinstance(given[key], str) else "") or ""
        if word.lower() in STRATEGIES or word in NUMBERS:
            _strategy(source, facts, word, (*at, key))
        else:
            facts.give("parallelism.data.method", "fsdp", source, *at, key)
            facts.give("parallelism.data.reshard", source.flag(*at, key), source, *at, key)
    else:
        facts.give("parallelism.data.method", "fsdp", source, *at)
    if (key := named.get("version")) is not None:
        source.without_effect.add((*at, key))
    if (key := named.get("activation_checkpointing")) and source.flag(*at, key):
        facts.give("training.recompute", "full", source, *at, key)
    if (key := named.get("forward_prefetch")) is not None:
        source.without_effect.add((*at, key))
    if (key := named.get("backward_prefetch")) is not None:
        prefetch = (source.word(*at, key) or "").upper()
        facts.give("parallelism.data.prefetch", int(prefetch not in ("NO_PREFETCH", "NONE", "")), source, *at, key)
    if (key := named.get("offload_params")) is not None and not source.document.get((*at, key)):
        source.without_effect.add((*at, key))


def _strategy(source: SourceFile, facts: Facts, name: str, path: tuple[str, ...]) -> None:
    plain = NUMBERS.get(name, name.lower())
    if plain not in STRATEGIES:
        known = ", ".join(one.upper() for one in STRATEGIES)
        raise source.error(path, f'unknown sharding strategy "{name}"; there are {known}')
    for key, value in STRATEGIES[plain].items():
        if key == "hybrid":
            facts.give("run.shards_in_node", True, source, *path)
        else:
            facts.give(f"parallelism.data.{key}", value, source, *path)


def of_trainer(source: SourceFile, facts: Facts, at: tuple[str, ...]) -> None:
    """Read the Trainer's ``fsdp`` (words such as "full_shard auto_wrap") and ``fsdp_config``."""
    value = source.take(*at, "fsdp")
    words = value if isinstance(value, list) else str(value or "").split()
    strategy = next((str(word) for word in words if str(word).lower() in STRATEGIES), None)
    if strategy is not None:
        _strategy(source, facts, strategy, (*at, "fsdp"))
    elif words and value not in (False, "false"):
        facts.give("parallelism.data.method", "fsdp", source, *at, "fsdp")
    if isinstance(source.document.get((*at, "fsdp_config")), dict):
        read(source, facts, (*at, "fsdp_config"))
