"""A scenario to plan for, from a model, a cluster and a batch."""

from __future__ import annotations

from math import gcd
from pathlib import Path
from typing import Any

from scenarios.scenario import Scenario
from simulator.document import read
from simulator.errors import ScenarioError
from workloads.huggingface.aliases import ALIASES

SHAPE = {
    *ALIASES,
    *ALIASES.values(),
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
}
"""The keys of a Hugging Face configuration that describe the shape of a transformer."""

PRECISION, SOFTWARE = "bf16", "megatron"
"""Of a scenario from nothing; ``--set training.precision=...`` and ``--set software=...`` change them."""


def scenario_from(
    model: str, cluster: str, nodes: int, batch: int, tokens: str | None = None, settings: list[str] | None = None
) -> Scenario:
    """Return the scenario of *model* (a name, a YAML file, or a Hugging Face config.json) on *nodes* of *cluster*.

    *batch*: samples of a step. *tokens* of the whole run, such as ``1T``. *settings*: texts ``key.path=value``. Raises
    `ScenarioError`.
    """
    machine = {"preset": cluster, "nodes": nodes}
    replicas = gcd(batch, _gpus(machine, settings))
    data: dict[str, Any] = {
        "version": 1,
        "name": f"{Path(model).parent.name or 'model' if _is_json(model) else Path(model).stem}-{nodes}x{cluster}",
        "cluster": machine,
        "model": _model(model),
        "training": {
            "global_batch_size": batch,
            "precision": PRECISION,
            **({"tokens": tokens} if tokens else {}),
        },
        # a beginning that divides the batch; the candidates have degrees of their own
        "parallelism": {"dp": replicas},
        "software": SOFTWARE,
    }
    return Scenario.model_validate(data, settings)


def _gpus(cluster: dict[str, Any], settings: list[str] | None) -> int:
    """Return the number of GPUs of *cluster*, with those of *settings* that change it."""
    of_cluster = [one for one in settings or () if one.startswith("cluster.")]
    benchmark = {"version": 1, "cluster": cluster, "collective": {"kind": "all_reduce", "size": "1 MB"}}
    return len(Scenario.model_validate(benchmark, of_cluster).cluster().gpus)


def _is_json(name: str) -> bool:
    return name.endswith(".json")


def _model(name: str) -> dict[str, Any]:
    """Return the section ``model`` of a name, or of a Hugging Face configuration."""
    if not _is_json(name):
        return {"preset": name}
    given = read(Path(name)).data
    found = {key: value for key, value in given.items() if key in SHAPE and value is not None}
    if not found:
        raise ScenarioError(f"{name}: has none of the keys of a transformer's configuration, such as hidden_size")
    if given.get("model_type") in RMS_NORM:
        found |= {"normalization": "rmsnorm", "position_embedding_type": "rope", "add_bias_linear": False, "dropout": 0}
    return {"attention": "flash", **found}


RMS_NORM = ("llama", "mistral", "qwen2", "qwen3")
"""Model types of Hugging Face's transformers with RMS norm, rotary positions and no biases (modeling_llama.py and
others); their configurations do not say so."""
