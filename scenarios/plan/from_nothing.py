"""A scenario to plan for, from a model, a cluster and a batch."""

from __future__ import annotations

from math import gcd
from pathlib import Path
from typing import Any

from scenarios.scenario import Scenario

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
        "name": f"{_called(Path(model))}-{nodes}x{cluster}",
        "cluster": machine,
        "model": {"preset": model},
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


def _called(model: Path) -> str:
    """Return the name of a model; of a config.json, which has the same name for all, that of its folder."""
    return model.parent.name or "model" if model.suffix == ".json" else model.stem
