"""The launcher starts a process for each rank on this machine, or joins those that torchrun started.

Processes come from a fork server, which imports torch once for all of them. Each watches the launcher through a pipe
and ends when that is gone, so that no rank outlives it, however it ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from typing import Any

from simulator.errors import ReplayError
from simulator.replay import process
from simulator.replay.place import Place, on_loopback
from simulator.replay.worker import Member, Work, device_of, open_world, prepare
from simulator.replay.worker_group import WorkerGroup

TIMEOUT = 300.0
"""Seconds that all of it may take unless told otherwise."""

PRELOADED = tuple(f"simulator.replay.{name}" for name in ("process", "execution", "communication", "computation"))
"""What the fork server imports, and torch with it."""

Told = Callable[[int, Any], None]
"""(rank, what it reported)."""


def under_torchrun() -> bool:
    """Whether this process is one of torchrun's ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launch(
    work: Work,
    arguments: Sequence[Any],
    *,
    backend: str = "gloo",
    places: Sequence[Place] | None = None,
    timeout: float = TIMEOUT,
    told: Told = lambda rank, report: None,
) -> list[Any] | None:
    """What *work* returns in each rank, given its member and the rank's of *arguments*; in order of ranks.

    Ranks run at *places* (unless given, on the loopback interface). *told* hears what members report meanwhile. Under
    torchrun the ranks are its own: rank 0 gets the results, the others None. Raises `ReplayError` if a rank fails or
    dies, or after *timeout* s; no process is left behind.
    """
    if under_torchrun():
        return _joined(work, arguments, backend, timeout, told)
    return _started(work, arguments, backend, tuple(places or on_loopback(len(arguments))), timeout, told)


def _started(
    work: Work, arguments: Sequence[Any], backend: str, places: Sequence[Place], timeout: float, told: Told
) -> list[Any]:
    context = get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    deadline = time.monotonic() + timeout
    workers = WorkerGroup(deadline, timeout, told)
    try:
        for place, argument in zip(places, arguments, strict=True):
            ours, theirs = context.Pipe()
            order = process.Order(place, len(places), backend, timeout, work, argument, places[0].address)
            rank = context.Process(target=process.main, args=(order, theirs), name=f"rank {place.rank}", daemon=True)
            rank.start()
            theirs.close()
            workers.enlist(rank, ours)
        return workers.results()
    finally:
        workers.dismiss()


def _joined(work: Work, arguments: Sequence[Any], backend: str, timeout: float, told: Told) -> list[Any] | None:
    """This process as the rank that torchrun made it."""
    import torch.distributed as dist

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world_size != len(arguments):
        raise ReplayError(f"there are {len(arguments)} ranks to run, but torchrun started {world_size}")
    device = device_of(backend, int(os.environ.get("LOCAL_RANK", "0")))
    member = Member(rank, world_size, backend, device, lambda report: told(rank, report))
    prepare(Place(rank))
    open_world(member, timeout)
    result = work(member, arguments[rank])
    results: list[Any] | None = [None] * world_size if rank == 0 else None
    dist.gather_object(result, results)
    dist.destroy_process_group()
    return results
