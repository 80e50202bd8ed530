"""One small schedule of every kind, for replays of a few milliseconds."""

from __future__ import annotations

from typing import Any

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.lookup import names

UNIT = {
    "kind": "unit",
    "num_layers": 8,
    "forward": "0.5 ms",
    "backward": "1 ms",
    "parameters": 40_000,
    "activations": "4 kB",
}
GPT = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 16, "vocab_size": 128}


def scenario(gpus: int, parallelism: dict[str, Any], model: dict[str, Any] | None = None, **more: Any) -> Scenario:
    """*gpus* on the textbook network, two micro-batches each."""
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {
                "preset": "uniform",
                "gpus": gpus,
                "hosts": 2,
                "bandwidth": "1 GB/s",
                "latency": "50 us",
                "accelerator": "v100_16gb",
            },
            "model": model or UNIT,
            "training": {"global_batch_size": 24, "micro_batch_size": 2, "precision": "fp32"},
            "parallelism": parallelism,
            "network": {"transport": "gloo"},
            **more,
        }
    )


def data(method: str, **more: Any) -> dict[str, Any]:
    """A parallelism with that method of data parallelism."""
    return {"data": {"method": method, **more}}


THREE_D = {"tp": 2, "pp": 2, "dp": 2, **data("zero", stage=1)}

KINDS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "naive": (3, data("naive"), UNIT),
    "naive, main updates": (3, data("naive", update="main"), UNIT),
    "parameter server": (2, data("parameter_server", servers=2), UNIT),
    "ddp": (3, data("ddp", bucket="20 kB"), UNIT),
    "zero 1": (3, data("zero", stage=1), UNIT),
    "zero 2": (3, data("zero", stage=2), UNIT),
    "zero 3": (3, data("zero", stage=3), UNIT),
    "fsdp": (3, data("fsdp"), UNIT),
    "fsdp, hybrid": (4, data("fsdp", hybrid=2), UNIT),
    "tp": (2, {"tp": 2}, GPT),
    "tp, sequence parallel": (2, {"tp": 2, "sequence_parallel": True}, GPT),
    "tp, overlapped": (2, {"tp": 2, "sequence_parallel": True, "tp_overlap": True}, GPT),
    "3-D": (8, THREE_D, GPT),
    **{
        f"pipeline {order}": (2, {"pp": 2, "schedule": order}, UNIT)
        for order in names("clustersim.workloads.pipelines")
    },
}
"""By name: GPUs, parallelism, model."""
