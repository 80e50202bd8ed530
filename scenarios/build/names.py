"""The names of a model and of a cluster as reports print them.

A preset of a model is told with its changed sizes, so that it is not taken for the preset.
"""

from __future__ import annotations

from typing import Any

from scenarios.build.built import BuiltScenario
from scenarios.specification import loading
from simulator.document import Document

SIZES = {
    "num_layers": "{} layers",
    "hidden_size": "hidden size {}",
    "num_attention_heads": "{} heads",
    "num_key_value_heads": "{} key-value heads",
    "ffn_hidden_size": "feed-forward size {}",
    "seq_length": "sequences of {}",
    "vocab_size": "{} tokens of vocabulary",
    "attention": "{} attention",
}
"""How a changed key of the model section is told; any other is told as *key value*."""

MOST_TOLD = 3
"""Changed keys that are told one by one; of more only the number is."""

UNNAMED = "cluster"
"""The name of a cluster without a preset."""

NOT_SIZES = ("preset", "name", "description", "source", "sources", "kind")


def model_title(scenario: BuiltScenario) -> str:
    """Return the name of the model of *scenario*, with the keys in which it differs from its preset.

    For example ``gpt3-175b with 24 layers``. A model with a name of its own keeps that name alone.
    """
    assert scenario.model is not None
    given = scenario.source.data["model"]
    if not isinstance(given, dict) or not given.get("preset") or given.get("name"):
        return scenario.model.name
    changed = _changed(scenario, given)
    if not changed:
        return scenario.model.name
    told = [SIZES.get(key, f"{key} {{}}").format(_words(value)) for key, value in changed.items()]
    what = " and ".join(filter(None, (", ".join(told[:-1]), told[-1])))
    if len(told) > MOST_TOLD:
        what = f"{len(told)} keys changed ({', '.join(changed)})"
    return f"{scenario.model.name} with {what}"


def _words(value: Any) -> Any:
    """Return the values of a section or a list in words.

    >>> _words({"rank": 16, "targets": ["qkv", "projection"]}), _words(24)
    ('(rank 16, targets qkv + projection)', 24)
    """
    if isinstance(value, dict):
        return f"({', '.join(f'{key} {_words(inner)}' for key, inner in value.items())})"
    return " + ".join(map(str, value)) if isinstance(value, list) else value


def _changed(scenario: BuiltScenario, given: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of the model section *given* that differ from the preset, with their values."""
    bare = Document({**scenario.source.data, "model": {"preset": given["preset"]}})
    preset = loading.expanded(bare).data["model"]
    return {
        key: value
        for key, value in scenario.document.data["model"].items()
        if key in given and key not in NOT_SIZES and preset.get(key) != value
    }


def cluster_title(scenario: BuiltScenario, number: int) -> str:
    """Return *number* GPUs of *scenario*: ``100 GPUs of zhores``, or ``28 GPUs (16 h100, 12 l40s)``.

    A cluster without a preset has no name; its kinds of GPU are told instead.
    """
    cluster = scenario.cluster()
    gpus = f"{number:,} GPU{'s' if number != 1 else ''}"
    if cluster.name != UNNAMED:
        return f"{gpus} of {cluster.name}"
    counts = cluster.count(cluster.gpus)
    told = [f"{count:,} {gpu.name}" if len(counts) > 1 else gpu.name for gpu, count in counts.items()]
    return f"{gpus} ({', '.join(told)})"
