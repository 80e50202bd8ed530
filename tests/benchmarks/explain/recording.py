"""Recording of steps of a small GPT on gloo ranks with torch.profiler: DDP, healthy or with a fault, and a pipeline.

`python -m tests.benchmarks.explain.recording FOLDER` writes a folder of traces for each trial, reduced to what
`clustersim explain` reads. All trials run in one group of processes.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

RANKS, LAYERS, HIDDEN, HEADS, VOCABULARY, SEQUENCE, BATCH = 4, 4, 256, 4, 2048, 64, 4
BUCKET_MB, STEPS, WARMUP, TRIALS = 4.0, 6, 3, 10

FAULTS = ("healthy", "sleep", "bucket", "overlap")
KEPT = ("External id", "Input Dims", "Input type", "stream", "correlation", "Collective name", "dtype", "Group size")
"""Arguments of events that are kept."""


class Block(nn.Module):
    """A transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer for *x*, of shape (batch, tokens, hidden)."""
        batch, tokens, _ = x.shape
        queries, keys, values = (
            self.qkv(self.norms[0](x)).view(batch, tokens, 3, HEADS, HIDDEN // HEADS).permute(2, 0, 3, 1, 4)
        )
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, HIDDEN))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    """Embedding, layers, head and loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the loss of *tokens*, of shape (batch, tokens)."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


def record(step: Callable[[], None], path: Path) -> None:
    """Run *step* several times with the profiler, and write the reduced trace to *path*."""
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=1, warmup=WARMUP, active=STEPS),
    ) as profiler:
        for _ in range(1 + WARMUP + STEPS):
            step()
            profiler.step()
    raw = path.with_suffix(".raw")
    profiler.export_chrome_trace(str(raw))
    path.write_bytes(gzip.compress(reduced(json.loads(raw.read_text())), mtime=0))
    raw.unlink()


def reduced(trace: dict[str, Any]) -> bytes:
    """Return *trace* as JSON with the events and arguments that `clustersim explain` reads."""
    events = [_event(event) for event in trace["traceEvents"] if event.get("ph") == "X" and event.get("cat") != "Trace"]
    info = {key: trace["distributedInfo"][key] for key in ("backend", "rank", "world_size")}
    head = {"schemaVersion": 1, "distributedInfo": info, "displayTimeUnit": "ms"}
    return json.dumps({**head, "traceEvents": events}, separators=(",", ":")).encode()


def _event(event: dict[str, Any]) -> dict[str, Any]:
    args = {key: value for key, value in event.get("args", {}).items() if key in KEPT and key != "External id"}
    kept = {key: event[key] for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur")}
    return {**kept, "args": args}


def ddp_step(fault: str, rank: int, slow: int, seconds: float) -> Callable[[], None]:
    """Return a step of DDP with *fault*; for ``sleep`` rank *slow* sleeps *seconds*."""
    torch.manual_seed(0)
    model = Gpt()
    cap = 1000.0 if fault == "bucket" else BUCKET_MB
    wrapped = DistributedDataParallel(model, bucket_cap_mb=cap)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE))

    def step() -> None:
        optimizer.zero_grad()
        if fault == "overlap":
            with wrapped.no_sync():
                wrapped(tokens).backward()
            reduce_in_buckets(list(model.parameters()))
        else:
            loss = wrapped(tokens)
            if fault == "sleep" and rank == slow:
                time.sleep(seconds)
            loss.backward()
        optimizer.step()

    return step


def reduce_in_buckets(parameters: list[nn.Parameter]) -> None:
    """All-reduce the gradients in buckets of DDP's size, after the backward pass."""
    for bucket in _buckets(parameters[::-1]):
        flat = torch.cat([one.flatten() for one in bucket])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for gradient, part in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
            gradient.copy_(part.view_as(gradient))


def _buckets(parameters: list[nn.Parameter]) -> Iterator[list[Tensor]]:
    row: list[Tensor] = []
    for parameter in parameters:
        assert parameter.grad is not None
        row.append(parameter.grad)
        if sum(one.nbytes for one in row) >= BUCKET_MB * 2**20:
            yield row
            row = []
    if row:
        yield row


def trials(rank: int, folder: Path, port: int) -> None:
    """Record all trials on *rank* into *folder*."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    own = (os.cpu_count() or 1) // RANKS
    if own:
        # ranks that move between processors are late by chance
        os.sched_setaffinity(0, range(own * rank, own * (rank + 1)))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    draws = random.Random(0)
    for number in range(-1, TRIALS):
        for fault in FAULTS if number >= 0 else ("reference",):
            place = folder / f"{fault}{max(number, 0)}"
            place.mkdir(parents=True, exist_ok=True)
            dist.barrier()
            slow, seconds = draws.randrange(RANKS), draws.uniform(0.03, 0.06)
            record(ddp_step(fault, rank, slow, seconds), place / f"rank{rank}.json.gz")
    dist.destroy_process_group()


if __name__ == "__main__":
    spawn(trials, (Path(sys.argv[1]), 29617), nprocs=RANKS)
