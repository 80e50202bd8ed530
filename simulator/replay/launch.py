"""The launcher starts a process for each rank on this machine, or joins the processes of torchrun.

Processes come from a fork server, which imports torch once for all of them. Each process watches a pipe to the launcher
and ends when the launcher has ended, however that happened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from simulator.errors import ReplayError
from simulator.processes import start
from simulator.replay import process
from simulator.replay.place import Place, on_loopback
from simulator.replay.worker import Member, Work, device_of, open_world, prepare
from simulator.replay.worker_group import WorkerGroup

TIMEOUT = 300.0
"""Default limit for a whole launch, s."""

PRELOADED = tuple(f"simulator.replay.{name}" for name in ("process", "execution", "communication", "computation"))
"""Imports of the fork server, and torch with them."""

OnReport = Callable[[int, Any], None]
"""Callback for a report: (rank, report)."""


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
    on_report: OnReport = lambda rank, report: None,
) -> list[Any] | None:
    """Run *work* in each rank with its member and its one of *arguments*; return the results in order of ranks.

    Ranks run at *places* (default: on the loopback interface). *on_report* is called with each report of a rank. Under
    torchrun its processes are the ranks: rank 0 gets the results, the others None. Raises `ReplayError` if a rank fails
    or dies, or after *timeout* s. No process is left behind.
    """
    if under_torchrun():
        return _join_torchrun(work, arguments, backend, timeout, on_report)
    return _start(work, arguments, backend, tuple(places or on_loopback(len(arguments))), timeout, on_report)


def _start(
    work: Work, arguments: Sequence[Any], backend: str, places: Sequence[Place], timeout: float, on_report: OnReport
) -> list[Any]:
    deadline = time.monotonic() + timeout
    workers = WorkerGroup(deadline, timeout, on_report)
    try:
        for place, argument in zip(places, arguments, strict=True):
            assignment = process.Assignment(place, len(places), backend, timeout, work, argument, places[0].address)
            workers.add(*start(process.main, assignment, imports=PRELOADED, name=f"rank {place.rank}"))
        return workers.results()
    finally:
        workers.close()


def _join_torchrun(
    work: Work, arguments: Sequence[Any], backend: str, timeout: float, on_report: OnReport
) -> list[Any] | None:
    """Run this process as the rank that torchrun assigned to it."""
    import torch.distributed as dist

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world_size != len(arguments):
        raise ReplayError(f"there are {len(arguments)} ranks to run, but torchrun started {world_size}")
    device = device_of(backend, int(os.environ.get("LOCAL_RANK", "0")))
    member = Member(rank, world_size, backend, device, lambda report: on_report(rank, report))
    prepare(Place(rank))
    open_world(member, timeout)
    result = work(member, arguments[rank])
    results: list[Any] | None = [None] * world_size if rank == 0 else None
    dist.gather_object(result, results)
    dist.destroy_process_group()
    return results
