"""A scenario from a model, a cluster and its nodes: `init` writes it, `run` runs a config.json with it.

Batch, precision and data parallelism are those with which one begins; none is searched for (`clustersim plan` does).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenarios.scenario import Scenario
from simulator.cluster import Cluster
from workloads.model import Model

SAMPLES_PER_GPU = 8
"""Samples of the global batch for each GPU, so that it divides in many ways."""

LARGE = 1e9
"""Parameters from which on FSDP is proposed: states of 16 bytes each no longer fit beside activations everywhere."""

_ONE_GPU = {"preset": "uniform", "gpus": 1, "bandwidth": "1 GB/s", "latency": "1 us"}
"""A cluster on which a model can be looked at."""

_BENCHMARK = {"kind": "all_reduce", "size": "1 MB"}
"""What runs on a cluster that is looked at."""


@dataclass(frozen=True)
class Beginning:
    """A *model* on *gpus* GPUs: samples of a step, number format, and how replicas exchange gradients."""

    model: Model
    gpus: int
    batch: int
    precision: str
    method: str


def beginning(model: str, cluster: str, nodes: int, settings: list[str] | None = None) -> Beginning:
    """Return how to begin with *model* (a name, or the path of a file) on *nodes* of *cluster*.

    *settings*: texts ``key.path=value``, some of which may change the cluster. Raises `ScenarioError` for an unknown
    name.
    """
    made = Scenario.model_validate(
        {"version": 1, "cluster": _ONE_GPU, "model": {"preset": model}, "training": {"global_batch_size": 1}}
    ).model
    assert made is not None
    machine = cluster_of({"preset": cluster, "nodes": nodes}, settings)
    peaks = machine.accelerator(machine.gpus[0]).peak_flops
    known = peaks if isinstance(peaks, dict) else {}
    gpus = len(machine.gpus)
    return Beginning(
        made,
        gpus,
        SAMPLES_PER_GPU * gpus,
        next((precision for precision in ("bf16", "fp16") if precision in known), "fp32"),
        "fsdp" if made.parameters >= LARGE else "ddp",
    )


def cluster_of(section: dict[str, Any], settings: list[str] | None = None) -> Cluster:
    """Return the cluster of *section*, with those of *settings* that change it."""
    own = [one for one in settings or () if one.startswith("cluster.")]
    return Scenario.model_validate({"version": 1, "cluster": section, "collective": _BENCHMARK}, own).cluster()


def scenario_on(
    model: str,
    cluster: str,
    nodes: int,
    batch: int | None = None,
    tokens: str | None = None,
    settings: list[str] | None = None,
) -> Scenario:
    """Return the scenario of *model* on *nodes* of *cluster*; *batch*: samples of a step, *tokens* of the whole run."""
    begun = beginning(model, cluster, nodes, settings)
    data = {
        "version": 1,
        "name": f"{called(Path(model))}-{nodes}x{cluster}",
        "cluster": {"preset": cluster, "nodes": nodes},
        "model": {"preset": model},
        "training": {
            "global_batch_size": batch or begun.batch,
            "micro_batch_size": 1,
            "precision": begun.precision,
            **({"tokens": tokens} if tokens else {}),
        },
        "parallelism": {"data": {"method": begun.method}},
    }
    return Scenario.model_validate(data, settings)


def called(model: Path) -> str:
    """Return the name of a model; of a config.json, which has the same name for all, that of its folder."""
    return model.absolute().parent.name or "model" if model.suffix == ".json" else model.stem
