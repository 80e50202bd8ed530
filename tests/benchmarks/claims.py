"""What the simulator is to take, as whole processes: each run, the seconds and bytes that are wanted of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.benchmarks.processes import CLUSTERSIM, CROSSING

GIB = float(2**30)
RING = (
    "allreduce_dgx_a100",
    {"cluster.nodes": 128, "collective.size": "1 GiB", "network.algorithms.all_reduce": "ring"},
)
YARDSTICK = {"cluster.nodes": 32, "parallelism.dp": 4, "training.global_batch_size": 64}
"""256 ranks of GPT-3, 16 micro-batches."""


@dataclass(frozen=True)
class Claim:
    """*command* shall take no more than *seconds*, and hold no more than *peak_bytes*, where they are given."""

    name: str
    command: Sequence[str]
    seconds: float | None = None
    peak_bytes: float | None = None
    slow: bool = False


def run(scenario: str, changes: Mapping[str, object] | None = None) -> tuple[str, ...]:
    """The command that simulates *scenario* with *changes*."""
    settings = (part for key, value in (changes or {}).items() for part in ("--set", f"{key}={value}"))
    return (*CLUSTERSIM, "run", "--json", scenario, *settings)


def megascale(replicas: int, **changes: object) -> tuple[str, ...]:
    """MegaScale's model and pipeline, *replicas* times: 64 GPUs and 32 micro-batches each."""
    sizes = {
        "cluster.nodes": 8 * replicas,
        "parallelism.dp": replicas,
        "training.global_batch_size": 32 * replicas,
    }
    return run("megascale_175b_12288a100", {**sizes, **changes})


def claims() -> Iterator[Claim]:
    """All of them, the quick ones first."""
    name, ring = RING
    yield Claim("--help", (*CLUSTERSIM, "--help"), 0.08)
    yield Claim("check hello", (*CLUSTERSIM, "check", "hello"), 0.7)
    yield Claim("hello", run("hello"))
    yield Claim("ResNet-50, 100 GPUs of Zhores", run("zhores_resnet50_ddp"))
    yield Claim("GPT 6.7B, 64 GPUs, YAML to timeline", run("gpt_6_7b_64a100"), 2.0)
    yield Claim("1 GiB ring, 1,024 GPUs", run(name, ring), 1.0)
    yield Claim("1 GiB ring, 1,024 GPUs, chunk", run(name, {**ring, "network.fidelity": "chunk"}), 1.0)
    yield Claim("1 GiB ring, 1,024 GPUs, unfolded", run(name, {**ring, "simulation.fold": "false"}))
    yield Claim("ring, slow link, crossing flow", CROSSING, 10.0)
    yield Claim("ring, slow link, crossing flow, unfolded", (*CROSSING, "--unfolded"))
    yield Claim("GPT-3 175B, 1,024 GPUs", run("gpt3_175b_1024a100"), 2.0)
    yield Claim("1T, 3,072 GPUs", run("megatron_1t_3072a100"), 10.0)
    yield Claim("MegaScale, 1,024 GPUs (dp 16)", megascale(16))
    yield Claim("MegaScale, 12,288 GPUs (dp 192)", megascale(192), 4.0, GIB)
    straggler = {"simulation.stragglers": "[{rank: 517, slowdown: 1.3}]"}
    yield Claim("MegaScale, 12,288 GPUs, a straggler", megascale(192, **straggler))
    # three levels of the preset's 40-port switches join fewer
    wide = {"cluster.fabric.radix": 128}
    yield Claim("MegaScale, 98,304 GPUs", megascale(1536, **wide), 7.5, 2 * GIB, slow=True)
    yield Claim("GPT-3, 256 GPUs, folded", run("gpt3_175b_1024a100", YARDSTICK))
    unfolded = {**YARDSTICK, "simulation.fold": "false"}
    yield Claim("GPT-3, 256 GPUs, unfolded", run("gpt3_175b_1024a100", unfolded), slow=True)


RATIOS = (
    ("MegaScale, 12,288 GPUs (dp 192)", "MegaScale, 1,024 GPUs (dp 16)", 1.5),
    ("MegaScale, 12,288 GPUs, a straggler", "MegaScale, 12,288 GPUs (dp 192)", 4.0),
)
"""What the time of the first may be, at most, as a multiple of that of the second."""
