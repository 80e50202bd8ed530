"""Targets of whole processes: seconds, bytes, and the ratio of CPU time to an earlier revision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.benchmarks.processes import CLUSTERSIM, CROSSING

BEFORE = "e5d7695"
"""The last commit before the compiled engine; the ratios refer to it."""

GB = 1e9
RING = (
    "allreduce_dgx_a100",
    {"cluster.nodes": 128, "collective.size": "1 GiB", "network.algorithms.all_reduce": "ring"},
)
JITTER = {"simulation.jitter": 0.02}


@dataclass(frozen=True)
class Claim:
    """*command* takes at most *ratio* of the CPU time at `BEFORE`, and at most *peak_bytes*; None: no target.

    *wall* and *processor*: the most seconds (of CPU time for *processor*) on a machine where bare SimPy does 700,000
    timeouts/s. *slow*: it takes more than a minute. *new*: the code at `BEFORE` cannot run it. *beside*: the command of
    the code at `BEFORE` that *ratio* compares with; None: the same command.
    """

    name: str
    command: Sequence[str]
    ratio: float | None = None
    processor: float | None = None
    wall: float | None = None
    peak_bytes: float | None = None
    slow: bool = False
    new: bool = False
    beside: Sequence[str] | None = None


def run(scenario: str, changes: Mapping[str, object] | None = None, *, plain: bool = False) -> tuple[str, ...]:
    """The command that simulates *scenario* with *changes*; *plain*: with report and files, else as JSON."""
    settings = (part for key, value in (changes or {}).items() for part in ("--set", f"{key}={value}"))
    return (*CLUSTERSIM, "run", *(() if plain else ("--json",)), scenario, *settings)


def plan(model: str, cluster: str, nodes: int, batch: int) -> tuple[str, ...]:
    """The command that plans for *model* on *nodes* of *cluster*, all keys open."""
    sizes = ("--nodes", str(nodes), "--batch", str(batch))
    return (*CLUSTERSIM, "plan", "--model", model, "--cluster", cluster, *sizes, "--json")


def megascale(replicas: int, changes: Mapping[str, object] | None = None) -> tuple[str, ...]:
    """The command for *replicas* replicas of MegaScale's model, each with 64 GPUs and 32 micro-batches."""
    sizes = {
        "cluster.nodes": 8 * replicas,
        "parallelism.dp": replicas,
        "training.global_batch_size": 32 * replicas,
    }
    return run("megascale_175b_12288a100", {**sizes, **(changes or {})})


def claims() -> Iterator[Claim]:
    """All claims, the quick ones first."""
    name, ring = RING
    # how long one waits for the first answer, in units of the shortest run
    hello = run("hello")
    yield Claim("--help : hello --json", (*CLUSTERSIM, "--help"), 0.25, beside=hello)
    yield Claim("list : hello --json", (*CLUSTERSIM, "list"), 0.4, beside=hello)
    yield Claim("check hello : hello --json", (*CLUSTERSIM, "check", "hello"), 0.7, beside=hello)
    yield Claim("hello", run("hello", plain=True), 1.0)
    yield Claim("hello --json", hello, 0.8)
    yield Claim("ResNet-50, 100 GPUs of Zhores", run("zhores_resnet50_ddp", plain=True), 1.0)
    yield Claim("ResNet-50, 100 GPUs of Zhores, --json", run("zhores_resnet50_ddp"), 1.0)
    yield Claim("GPT 6.7B, 64 GPUs, --json", run("gpt_6_7b_64a100"))
    yield Claim("1 GiB ring, 1,024 GPUs, --json", run(name, ring))
    yield Claim("1 GiB ring, 1,024 GPUs, unfolded, --json", run(name, {**ring, "simulation.fold": "false"}))
    yield Claim("ring, slow link, crossing flow", CROSSING)
    yield Claim("GPT-3 175B, 1,024 GPUs", run("gpt3_175b_1024a100", plain=True), 0.1)
    yield Claim("GPT-3 175B, 1,024 GPUs, --json", run("gpt3_175b_1024a100"), 1.0)
    yield Claim("1T, 3,072 GPUs, --json", run("megatron_1t_3072a100"), 0.5)
    yield Claim("plan of Llama 3 8B, 8 GPUs", plan("llama3_8b", "dgx_h100", 1, 64), processor=5, new=True)
    yield Claim(
        "plan of GPT-3 175B, 1,024 GPUs", plan("gpt3_175b", "dgx_a100_80gb", 128, 1536), processor=15, slow=True
    )
    yield Claim("plan of Llama 3 70B, 64 GPUs", plan("llama3_70b", "dgx_h100", 8, 512), processor=60, slow=True)
    yield Claim("MegaScale, 1,024 GPUs, --json", megascale(16))
    yield Claim("MegaScale, 12,288 GPUs, --json", run("megascale_175b_12288a100"), 0.6)
    straggler = {"simulation.stragglers": "[{rank: 517, slowdown: 1.3}]"}
    yield Claim("MegaScale, 12,288 GPUs, a straggler, --json", megascale(192, straggler))
    wide = {"cluster.fabric.radix": 128}
    yield Claim("MegaScale, 98,304 GPUs, --json", megascale(1536, wide), 0.6, peak_bytes=2 * GB)
    yield Claim("MegaScale, 256 GPUs, jitter, --json", megascale(4, JITTER))
    repeats = {**JITTER, "simulation.repeats": 20}
    yield Claim("MegaScale, 256 GPUs, 20 repeats, --json", megascale(4, repeats), new=True)
    yield Claim("GPT-3 175B, 1,024 GPUs, 20 repeats, --json", run("gpt3_175b_1024a100", repeats), slow=True, new=True)
    all_ranks = run("megascale_175b_12288a100", JITTER)
    # before: a quarter of an hour and 10 GB
    yield Claim("MegaScale, 12,288 GPUs, jitter", all_ranks, processor=70, peak_bytes=4 * GB, slow=True, new=True)
    eight = run("megascale_175b_12288a100", {**JITTER, "simulation.repeats": 8})
    yield Claim("MegaScale, 12,288 GPUs, 8 repeats", eight, wall=360, slow=True, new=True)


RATIOS = (("MegaScale, 12,288 GPUs, --json", "MegaScale, 1,024 GPUs, --json", 1.5),)
"""(claim, other claim, the largest ratio of their CPU times)."""
