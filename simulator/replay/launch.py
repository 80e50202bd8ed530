"""The launcher starts a process for each rank on this machine, or joins the processes of torchrun; it receives the
messages of its processes and ends them.

Processes come from a fork server, which imports torch once for all of them. Each process watches a pipe to the launcher
and ends when the launcher has ended, however that happened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ReplayError
from clustersim.simulator.replay import rank_process
from clustersim.simulator.replay.rank_process import (
    Member,
    NetworkPlace,
    Work,
    death,
    device_of,
    end,
    on_loopback,
    open_world,
    prepare,
    start,
)

GRACE = 0.5
"""Seconds to wait for other failures after the first: ranks that lose a partner fail too, and may report earlier."""

TIMEOUT = 300.0
"""Default limit for a whole launch, s."""

PRELOADED = tuple(
    f"clustersim.simulator.replay.{name}" for name in ("rank_process", "execution", "communication", "computation")
)
"""Imports of the fork server, and torch with them."""

OnReport = Callable[[int, Any], None]
"""Callback for a report: (rank, report)."""


@dataclass
class WorkerGroup:
    """Processes in order of ranks. They must end before *deadline*, *timeout* s after the start (monotonic clock)."""

    deadline: float
    timeout: float
    on_report: Callable[[int, Any], None]
    _processes: list[BaseProcess] = field(default_factory=list)
    _pipes: list[Connection] = field(default_factory=list)
    _results: dict[int, Any] = field(default_factory=dict)
    _failures: list[tuple[float, int, str]] = field(default_factory=list)
    _gone: set[int] = field(default_factory=set)

    def add(self, process: BaseProcess, pipe: Connection) -> None:
        """Add *process* with *pipe* as the next rank."""
        self._processes.append(process)
        self._pipes.append(pipe)

    def results(self) -> list[Any]:
        """Return each rank's result. Raises `ReplayError` for the rank that failed first, or after the deadline."""
        while len(self._results) < len(self._processes):
            if not self._receive(self.deadline):
                raise ReplayError(
                    f"no end after {self.timeout:g} s: {_ranks(self._at_work)} still at work; see --timeout"
                )
            if self._failures:
                self._receive_rest()
                raise self._error()
        return [self._results[rank] for rank in range(len(self._processes))]

    def close(self) -> None:
        """End every process that still runs."""
        end(zip(self._processes, self._pipes, strict=True))

    @property
    def _at_work(self) -> list[int]:
        return [rank for rank in range(len(self._processes)) if rank not in self._results and rank not in self._gone]

    def _receive(self, until: float) -> bool:
        """Wait for messages of working ranks; return False if there is none before *until*."""
        pipes = {self._pipes[rank]: rank for rank in self._at_work}
        ready = connection.wait(list(pipes), max(0.0, until - time.monotonic()))
        for pipe in (pipe for pipe in pipes if pipe in ready):
            rank = pipes[pipe]
            try:
                what, content = pipe.recv()
            except (EOFError, OSError):
                self._died(rank)
            else:
                self._handle(rank, what, content)
        return bool(ready)

    def _handle(self, rank: int, what: str, content: Any) -> None:
        if what == "report":
            self.on_report(rank, content)
        elif what == "port":
            for pipe in self._pipes[1:]:
                with suppress(OSError):
                    pipe.send(content)
        elif what == "done":
            self._results[rank] = content
        else:
            moment, text = content
            self._gone.add(rank)
            self._failures.append((moment, rank, text))

    def _died(self, rank: int) -> None:
        self._gone.add(rank)
        self._processes[rank].join(GRACE)
        # time 0: other ranks fail only because this one died
        self._failures.append((0.0, rank, death(self._processes[rank].exitcode)))

    def _receive_rest(self) -> None:
        until = time.monotonic() + GRACE
        while self._at_work and self._receive(until):
            pass

    def _error(self) -> ReplayError:
        _, rank, text = min(self._failures)
        return ReplayError(f"rank {rank} {text}" if text.startswith("died") else f"rank {rank} failed: {text}")


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} are"


def under_torchrun() -> bool:
    """Whether this process is one of torchrun's ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launch(
    work: Work,
    arguments: Sequence[Any],
    *,
    backend: str = "gloo",
    places: Sequence[NetworkPlace] | None = None,
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
    work: Work,
    arguments: Sequence[Any],
    backend: str,
    places: Sequence[NetworkPlace],
    timeout: float,
    on_report: OnReport,
) -> list[Any]:
    deadline = time.monotonic() + timeout
    workers = WorkerGroup(deadline, timeout, on_report)
    try:
        for place, argument in zip(places, arguments, strict=True):
            assignment = rank_process.Assignment(
                place, len(places), backend, timeout, work, argument, places[0].address
            )
            workers.add(*start(rank_process.main, assignment, imports=PRELOADED, name=f"rank {place.rank}"))
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
    prepare(NetworkPlace(rank))
    open_world(member, timeout)
    result = work(member, arguments[rank])
    results: list[Any] | None = [None] * world_size if rank == 0 else None
    dist.gather_object(result, results)
    dist.destroy_process_group()
    return results
