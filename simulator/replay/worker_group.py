"""The rank processes of a launch: the launcher receives their messages and ends them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from simulator.errors import ReplayError
from simulator.processes import death, end

GRACE = 0.5
"""Seconds to wait for other failures after the first: ranks that lose a partner fail too, and may report earlier."""


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
