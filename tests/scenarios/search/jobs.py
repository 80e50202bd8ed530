"""Small jobs to plan: few candidates, which are simulated in a moment."""

from __future__ import annotations

import random
from typing import Any

from clustersim.scenarios import Scenario

SMALL_MODEL = {
    "num_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "seq_length": 256,
    "vocab_size": 4096,
    "attention": "flash",
    "dropout": 0,
}


def job(search: dict[str, Any] | None = None, **changes: Any) -> Scenario:
    """A small transformer on two nodes of four V100; *changes* by section, *search* of the plan."""
    data: dict[str, Any] = {
        "version": 1,
        "name": "small",
        "cluster": {
            "nodes": 2,
            "node": {
                "accelerator": "v100_16gb",
                "accelerators": 4,
                "intra": {"kind": "nvlink2", "shape": "full_mesh", "bandwidth": "50 GB/s", "latency": "2 us"},
                "host": {"kind": "pcie3", "bandwidth": "12 GB/s", "latency": "3 us"},
                "nics": 1,
                "nic": {"kind": "ib_edr", "bandwidth": "100 Gb/s", "latency": "1.5 us"},
            },
        },
        "model": dict(SMALL_MODEL),
        "training": {"global_batch_size": 32, "precision": "fp16"},
        "software": "megatron",
        "simulation": {"engine": "compiled"},
        "plan": {"search": search} if search else {},
    }
    for key, value in changes.items():
        data[key] = {**data[key], **value} if isinstance(value, dict) and isinstance(data.get(key), dict) else value
    return Scenario.model_validate(data)


def random_job(seed: int) -> Scenario:
    """A job of random sizes, cluster, batch and bandwidth, with a search over degrees, schedule and micro-batch."""
    draw = random.Random(seed)
    heads = draw.choice([4, 8, 16])
    model = {
        **SMALL_MODEL,
        "num_layers": draw.choice([4, 8]),
        "hidden_size": heads * draw.choice([32, 64, 128]),
        "num_attention_heads": heads,
        "seq_length": draw.choice([128, 256, 512, 1024]),
        "vocab_size": draw.choice([4096, 32768]),
        "attention": draw.choice(["flash", "unfused"]),
    }
    nodes, gpus = draw.choice([(1, 4), (2, 2), (2, 4), (4, 2)])
    bandwidth = draw.choice([10, 25, 100, 200])
    cluster = {
        "nodes": nodes,
        "node": {
            "accelerator": draw.choice(["v100_16gb", "a100_40gb"]),
            "accelerators": gpus,
            "intra": {
                "kind": "nvlink2",
                "shape": draw.choice(["full_mesh", "switch"]),
                "bandwidth": f"{draw.choice([25, 50, 150])} GB/s",
                "latency": "2 us",
            },
            "host": {"kind": "pcie3", "bandwidth": "12 GB/s", "latency": "3 us"},
            "nics": draw.choice([1, gpus]),
            "nic": {"kind": "ib_edr", "bandwidth": f"{bandwidth} Gb/s", "latency": "1.5 us"},
        },
    }
    search = {
        "tp": "auto",
        "sequence_parallel": "auto",
        "pp": "auto",
        "schedule": "auto",
        "virtual_stages": [2],
        "data": [{"method": "ddp"}, {"method": "zero", "stage": 1}],
        "micro_batch_size": [1, 2, 4],
        "recompute": ["none"],
    }
    training = {"global_batch_size": draw.choice([16, 32]), "precision": "fp16"}
    software = draw.choice(["megatron", "megatron_deepspeed"])
    return job(search, cluster=cluster, model=model, training=training, software=software)
