"""Training steps of a small model with torch's own hooks of DistributedDataParallel: bytes, gradients and times.

The loss is linear in the parameters, so the gradient of each rank is a known random matrix. Executed by rank processes
on a testbed, so that bytes are counted at the interface of each rank.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHAPES: tuple[tuple[int, ...], ...] = ((384, 256), (256,), (256, 512))
"""Parameter tensors in order of registration: two matrices and a vector, one bucket of torch."""

DENSITY, RANK, FIRST = 0.01, 4, 2
"""Of top-k; of PowerSGD, and the first step that it compresses."""


@dataclass(frozen=True)
class Step:
    """Of one rank: the bytes that it sent, seconds, and its gradients before and after, flat, by tensor."""

    sent: int
    seconds: float
    local: list[Any]
    reduced: list[Any]


def gradients(rank: int, step: int) -> list[Any]:
    """The gradients of *rank* in *step*, one matrix or vector for each of `SHAPES`."""
    import torch

    generator = torch.Generator().manual_seed(1000 * step + rank)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def train(member: Any, job: tuple[str, int]) -> list[Step]:
    """Work of a member: so many steps with the hook of that name."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    hook, steps = job
    model = torch.nn.Module()
    names = [f"tensor{number}" for number in range(len(SHAPES))]
    for name, shape in zip(names, SHAPES, strict=True):
        model.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))

    def forward(local: Sequence[Any]) -> Any:
        pairs = zip(names, local, strict=True)
        return torch.stack([(getattr(model, name) * own).sum() for name, own in pairs]).sum()

    model.forward = forward
    trained = DistributedDataParallel(model)
    _register(trained, hook)
    done = []
    for step in range(steps):
        local = gradients(member.rank, step)
        trained.zero_grad()
        loss = trained(local)
        dist.barrier()
        before, begin = _sent(), time.perf_counter()
        loss.backward()
        seconds = time.perf_counter() - begin
        sent = _sent() - before
        reduced = [getattr(model, name).grad.clone().numpy() for name in names]
        done.append(Step(sent, seconds, [own.numpy() for own in local], reduced))
    return done


def _sent() -> int:
    """Bytes that this process's network has sent over its interface."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    (own,) = (line.split(":")[1].split() for line in lines if line.strip().startswith("net0:"))
    return int(own[8])


def _register(model: Any, hook: str) -> None:
    """Register *hook*: one of torch's, or top-k, which torch has not."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks

    if hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "quantise":
        model.register_comm_hook(None, quantization_hooks.quantization_pertensor_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=RANK, start_powerSGD_iter=FIRST, random_seed=7
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook == "top_k":
        model.register_comm_hook(None, top_k)
    else:
        assert hook == "none"


def top_k(_: Any, bucket: Any) -> Any:
    """The largest gradients of a bucket and their places, gathered from all ranks (Aji and Heafield 2017)."""
    import torch
    import torch.distributed as dist

    own = bucket.buffer()
    count, ranks = max(1, int(own.numel() * DENSITY)), dist.get_world_size()
    places = own.abs().topk(count).indices
    values, indices = own.new_empty(ranks * count), torch.empty(ranks * count, dtype=torch.int32)
    dist.all_gather_into_tensor(values, own[places])
    dist.all_gather_into_tensor(indices, places.to(torch.int32))
    total = torch.zeros_like(own).index_add_(0, indices.long(), values) / ranks
    future: Any = torch.futures.Future()
    future.set_result(total)
    return future
