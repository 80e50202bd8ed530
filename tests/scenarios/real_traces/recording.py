"""Steps of data-parallel ranks that sleep in place of computing, recorded by torch.profiler on a testbed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

from clustersim.simulator.replay.rank_process import Member

FORWARD, BACKWARD, OPTIMIZER = 0.04, 0.015, 0.005
"""Seconds of sleep: once, for each bucket, once."""

BUCKETS, ELEMENTS, STEPS, WARMUP = 4, 250_000, 5, 2
"""Buckets of 1 MB each."""


def record(member: Member, folder: str) -> None:
    """Record `STEPS` steps on this rank into *folder*."""
    torch.set_num_threads(1)
    gradients = [torch.ones(ELEMENTS) for _ in range(BUCKETS)]
    active = schedule(wait=0, warmup=WARMUP, active=STEPS, repeat=1)
    path = Path(folder) / f"rank{member.rank}.json"
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=active,
        on_trace_ready=lambda ready: ready.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(WARMUP + STEPS):
            step(gradients)
            profiler.step()
    trace = json.loads(path.read_text())
    trace["distributedInfo"] = {"backend": "gloo", "rank": member.rank, "world_size": member.world_size}
    path.write_text(json.dumps(trace))


def step(gradients: list[torch.Tensor]) -> None:
    """Run forward, backward with an all-reduce behind each bucket, and the optimizer."""
    time.sleep(FORWARD)
    sent = []
    for gradient in gradients:
        time.sleep(BACKWARD)
        gradient.fill_(1.0)
        sent.append(dist.all_reduce(gradient, async_op=True))
    for one in sent:
        one.wait()
    for gradient in gradients:
        gradient.mul_(0.5)
    time.sleep(OPTIMIZER)
    dist.barrier()
