"""A member is the process of one rank, with its rank and its backend."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from simulator.errors import ReplayError
from simulator.replay.place import Place


@dataclass(frozen=True)
class Member:
    """*rank* of *world_size*. *backend* of the collectives of its groups: ``gloo`` or ``nccl``.

    *device*: torch's name of the device that computes and sends, ``cpu`` or ``cuda:0``. *report* sends a report to the
    launcher at once, so it is kept even if this process dies.
    """

    rank: int
    world_size: int
    backend: str
    device: str
    report: Callable[[Any], None]


Work = Callable[[Member, Any], Any]
"""The work of a member with its argument, while the default process group is open.

A function of a module, so that a new process finds it by name.
"""


def device_of(backend: str, local_rank: int) -> str:
    """Return the device of a rank's tensors. Under nccl each rank of a machine has a GPU of its own."""
    return f"cuda:{local_rank}" if backend == "nccl" else "cpu"


def prepare(place: Place) -> None:
    """Bind Gloo to the interface of *place*, and limit torch to one core."""
    import torch

    if place.interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = place.interface
    torch.set_num_threads(1)


def open_world(member: Member, timeout: float, store: Any = None) -> None:
    """Join the default process group, by *store* or by the environment. *timeout* in s.

    The group uses Gloo between hosts, and under nccl also NCCL between GPUs.
    """
    import torch.distributed as dist

    if member.device != "cpu":
        _take_gpu(member.device)
    backend = "gloo" if member.backend == "gloo" else "cpu:gloo,cuda:nccl"
    given = {} if store is None else {"store": store, "rank": member.rank, "world_size": member.world_size}
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **given)


def _take_gpu(device: str) -> None:
    import torch

    there, number = torch.cuda.device_count(), int(device.rpartition(":")[2])
    if number >= there:
        raise ReplayError(
            f"nccl needs a GPU for each rank of a machine, but GPU {number} is missing: there are {there}"
        )
    torch.cuda.set_device(device)
