"""Training steps of a small model with torch's own hooks of DistributedDataParallel: bytes, gradients and times.

The loss is linear in the parameters, so the gradient of each rank is a known random matrix. Executed by rank processes
on a testbed, so that bytes are counted at the interface of each rank.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from clustersim.simulator.network.library.gloo import gloo
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import tree
from clustersim.workloads.architectures.timed_models import UnitLayer
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import REPLICAS, ParameterTensor
from clustersim.workloads.parallelism._parallelism import TrainingStep
from clustersim.workloads.parallelism.ddp import DistributedDataParallel
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b

SHAPES: tuple[tuple[int, ...], ...] = ((384, 256), (256,), (256, 512))
"""Parameter tensors in order of registration: two matrices and a vector, one bucket of torch."""

DENSITY, RANK, FIRST, GROUP = 0.01, 4, 2, 512
"""Of top-k; of PowerSGD, and the first step that it compresses; elements with one scale."""


COMPRESSION: dict[str, dict[str, Any] | None] = {
    "none": None,
    "fp16": {"method": "fp16"},
    "quantise": {"method": "quantise", "bits": 8, "group": GROUP},
    "top_k": {"method": "top_k", "density": DENSITY, "error_feedback": False},
    "powersgd": {"method": "powersgd", "rank": RANK},
}
"""By hook, the section ``parallelism.data.compression`` of the same reduction."""

STAR = tree([4], [300e6 / 8], [0.0], hosts=0)
"""Four ranks at one switch, 300 Mbit/s each."""


@dataclass(frozen=True)
class Shapes(UnitLayer):
    """A layer with the tensors of `SHAPES`."""

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        return tuple(ParameterTensor(prod(shape), rows=shape[0] if len(shape) > 1 else 1) for shape in SHAPES)


def schedule(hook: str) -> Schedule:
    """The step that ranks with *hook* execute."""
    layer = Shapes("layer", 0.0, 0.0)
    model = Model("shapes", [layer], sample_bytes=0.0, precision="fp32", optimizer_seconds=0.0)
    base = compute(model, one_f_one_b(1, 1), micro_batch_size=1).replicate(REPLICAS, len(STAR.gpus))
    data = DistributedDataParallel.model_validate({"method": "ddp", "compression": COMPRESSION[hook]})
    return data.apply(base, TrainingStep(model, 1, 1))


def simulated(hook: str) -> tuple[float, int]:
    """The bytes that each rank sends in a step with *hook*, and in how many collectives."""
    step = schedule(hook)
    timeline = simulate(step, STAR, transport=gloo())
    count = sum(isinstance(op, Collective) for op in step.programs[0].ops)
    return timeline.axis_bytes[REPLICAS] / len(STAR.gpus), count


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


def train(member: Any, job: tuple[Sequence[str], int]) -> dict[str, list[Step]]:
    """Work of a member: so many steps with each of the hooks of these names."""
    hooks, steps = job
    return {hook: _trained(member, hook, steps) for hook in hooks}


def _trained(member: Any, hook: str, steps: int) -> list[Step]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

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
        dist.barrier()  # a rank's last bytes may still wait in its shaper when it has received all of its own
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
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "quantise":
        model.register_comm_hook(None, lambda _, bucket: quantise(bucket))
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=RANK, start_powerSGD_iter=FIRST, random_seed=7
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook == "top_k":
        model.register_comm_hook(None, lambda _, bucket: top_k(bucket))
    else:
        assert hook == "none"


def quantise(bucket: Any) -> Any:
    """8 bits and a scale for each `GROUP` gradients, gathered from all ranks.

    torch's own ``quantization_pertensor_hook`` fails with Gloo and more than two ranks ("index 2 is out of bounds").
    """
    import torch
    import torch.distributed as dist

    own, ranks = bucket.buffer(), dist.get_world_size()
    scales, codes = quantised(own)
    every_scale, every_code = scales.new_empty(ranks * scales.numel()), codes.new_empty(ranks * codes.numel())
    dist.all_gather_into_tensor(every_scale, scales)
    dist.all_gather_into_tensor(every_code, codes)
    pairs = zip(every_scale.chunk(ranks), every_code.chunk(ranks), strict=True)
    return _done(torch.stack([dequantised(*pair)[: own.numel()] for pair in pairs]).mean(0))


def quantised(own: Any) -> tuple[Any, Any]:
    """The scale of each `GROUP` elements, and the elements in 8 bits, filled up to whole groups."""
    import torch

    rows = torch.nn.functional.pad(own, (0, -own.numel() % GROUP)).view(-1, GROUP)
    scales = rows.abs().amax(1).clamp_min(1e-12) / 127
    return scales, (rows / scales[:, None]).round().to(torch.int8).flatten()


def dequantised(scales: Any, codes: Any) -> Any:
    """The elements that were quantised."""
    return (codes.view(-1, GROUP) * scales[:, None]).flatten()


def top_k(bucket: Any) -> Any:
    """The largest gradients of a bucket and their places, gathered from all ranks (Aji and Heafield 2017)."""
    import torch
    import torch.distributed as dist

    own = bucket.buffer()
    count, ranks = max(1, int(own.numel() * DENSITY)), dist.get_world_size()
    places = own.abs().topk(count).indices
    values, indices = own.new_empty(ranks * count), torch.empty(ranks * count, dtype=torch.int32)
    dist.all_gather_into_tensor(values, own[places])
    dist.all_gather_into_tensor(indices, places.to(torch.int32))
    return _done(torch.zeros_like(own).index_add_(0, indices.long(), values) / ranks)


def _done(total: Any) -> Any:
    import torch

    future: Any = torch.futures.Future()
    future.set_result(total)
    return future
