"""A scenario to plan for, from a model, a cluster and a batch."""

from __future__ import annotations

from math import gcd
from pathlib import Path
from typing import Any

from scenarios.beginning import called, cluster_of
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
    replicas = gcd(batch, len(cluster_of(machine, settings).gpus))
    data: dict[str, Any] = {
        "version": 1,
        "name": f"{called(Path(model))}-{nodes}x{cluster}",
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
