"""Bounds of whole processes: the ratio of CPU time to an earlier revision, seconds, bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.benchmarks.processes import CLUSTERSIM, CROSSING

BEFORE = "e5d7695"
"""The last commit before the compiled engine. Ratios are of the CPU times of whole processes, measured in turns."""

GB = 1e9
RING = (
    "allreduce_dgx_a100",
    {"cluster.nodes": 128, "collective.size": "1 GiB", "network.algorithms.all_reduce": "ring"},
)
JITTER = {"simulation.jitter": 0.02}


@dataclass(frozen=True)
class Claim:
    """*command* takes at most *ratio* of the CPU time of the same command at `BEFORE`, or of the command *over*.

    *processor* (s of CPU time) and *peak_bytes*: the most, whatever it took before. None: no bound. *new*: the code at
    `BEFORE` cannot run it.
    """

    name: str
    command: Sequence[str]
    ratio: float | None = None
    processor: float | None = None
    peak_bytes: float | None = None
    over: Sequence[str] = ()
    new: bool = False

    @property
    def bounded(self) -> bool:
        """Whether it has a bound."""
        return any(bound is not None for bound in (self.ratio, self.processor, self.peak_bytes))


def run(scenario: str, changes: Mapping[str, object] | None = None, *, plain: bool = False) -> tuple[str, ...]:
    """The command that simulates *scenario* with *changes*; *plain*: with report and files, else as JSON."""
    settings = (part for key, value in (changes or {}).items() for part in ("--set", f"{key}={value}"))
    return (*CLUSTERSIM, "run", *(() if plain else ("--json",)), scenario, *settings)


def megascale(replicas: int, changes: Mapping[str, object] | None = None) -> tuple[str, ...]:
    """The command for *replicas* replicas of MegaScale's model, each with 64 GPUs and 32 micro-batches."""
    sizes = {
        "cluster.nodes": 8 * replicas,
        "parallelism.dp": replicas,
        "training.global_batch_size": 32 * replicas,
    }
    return run("megascale_175b_12288a100", {**sizes, **(changes or {})})


def plan(model: str, cluster: str, nodes: int, batch: int) -> tuple[str, ...]:
    """The command that plans *model* on *nodes* of *cluster*."""
    options = {"model": model, "cluster": cluster, "nodes": nodes, "batch": batch}
    return (
        *CLUSTERSIM,
        "plan",
        "--json",
        *(part for key, value in options.items() for part in (f"--{key}", f"{value}")),
    )


HELLO = "hello --json"
"""The claim whose CPU time is taken as start-up, and that start-up is compared with."""


def claims() -> Iterator[Claim]:
    """All claims: start-up, plans, large runs, then those without a bound."""
    hello = run("hello")
    yield Claim(HELLO, hello, 0.8)
    yield Claim("--help", (*CLUSTERSIM, "--help"), 0.25, over=hello)
    yield Claim("list", (*CLUSTERSIM, "list"), 0.4, over=hello)
    yield Claim("check hello", (*CLUSTERSIM, "check", "hello"), 0.7, over=hello)
    yield Claim("plan, Llama 3 8B, 8 GPUs", plan("llama3_8b", "dgx_h100", 1, 64), processor=5, new=True)
    gpt3 = plan("gpt3_175b", "dgx_a100_80gb", 128, 1536)
    yield Claim("plan, GPT-3 175B, 1,024 GPUs", gpt3, processor=15, new=True)
    yield from _large()
    yield from _unbounded()


def _large() -> Iterator[Claim]:
    yield Claim("GPT-3 175B, 1,024 GPUs", run("gpt3_175b_1024a100"), 0.7)
    yield Claim("1T, 3,072 GPUs", run("megatron_1t_3072a100"), 0.4)
    yield Claim("MegaScale, 12,288 GPUs", run("megascale_175b_12288a100"), 0.5)
    wide = {"cluster.fabric.radix": 128}
    yield Claim("MegaScale, 98,304 GPUs", megascale(1536, wide), 0.4)
    # three levels of 128-port switches join half as many: the code before refuses it
    yield Claim("MegaScale, 1,048,576 GPUs", megascale(16384, wide), processor=60, peak_bytes=4 * GB, new=True)
    every = run("megascale_175b_12288a100", JITTER)
    # before: a quarter of an hour and 10 GB
    yield Claim("MegaScale, jitter of 12,288 GPUs", every, processor=60, peak_bytes=2 * GB, new=True)


def _unbounded() -> Iterator[Claim]:
    name, ring = RING
    yield Claim("hello", run("hello", plain=True))
    yield Claim("ResNet-50, 100 GPUs of Zhores", run("zhores_resnet50_ddp"))
    yield Claim("GPT 6.7B, 64 GPUs", run("gpt_6_7b_64a100"))
    yield Claim("1 GiB ring, 1,024 GPUs", run(name, ring))
    yield Claim("1 GiB ring, 1,024 GPUs, unfolded", run(name, {**ring, "simulation.fold": "false"}))
    yield Claim("ring, slow link, crossing flow", CROSSING)
    yield Claim("GPT-3 175B, 1,024 GPUs, with files", run("gpt3_175b_1024a100", plain=True))
    yield Claim("MegaScale, 1,024 GPUs", megascale(16))
    straggler = {"simulation.stragglers": "[{rank: 517, slowdown: 1.3}]"}
    yield Claim("MegaScale, 12,288 GPUs, a straggler", megascale(192, straggler))
    yield Claim("MegaScale, 256 GPUs, jitter", megascale(4, JITTER))
    repeats = {**JITTER, "simulation.repeats": 20}
    yield Claim("MegaScale, 256 GPUs, 20 repeats", megascale(4, repeats), new=True)
    yield Claim("GPT-3 175B, 1,024 GPUs, 20 repeats", run("gpt3_175b_1024a100", repeats), new=True)
    eight = run("megascale_175b_12288a100", {**JITTER, "simulation.repeats": 8})
    yield Claim("MegaScale, 12,288 GPUs, 8 repeats", eight, new=True)


RATIOS = (("MegaScale, 1,048,576 GPUs", "MegaScale, 12,288 GPUs", 3.0),)
"""(claim, other claim, the largest ratio of their CPU times)."""
