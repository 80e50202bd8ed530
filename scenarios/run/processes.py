"""Jobs, their outcomes, and their execution in processes of this machine.

A job is a function and its argument. Its outcome is the result of the function, or a failure.

Each process has one job at a time, so that a process that dies tells which job it had. Processes come from a fork
server, which imports clustersim once for all of them. They end with this process, however it ends.
"""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import field
from itertools import islice
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeAlias, TypeVar

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import DeadlockError, ExecutionError, SimulatorError
from clustersim.simulator.replay.rank_process import begin, death, end, start

A = TypeVar("A")
R = TypeVar("R")

Job: TypeAlias = tuple[Callable[[A], R], A]


@dataclass(frozen=True, slots=True)
class Failure:
    """A job without a result; *message* says why, for the user. *kind*: the class of the error, empty if none came."""

    message: str
    kind: str = ""

    def error(self) -> SimulatorError:
        """Return the error of a command that cannot go on without the result."""
        return (DeadlockError if self.kind == DeadlockError.__name__ else ExecutionError)(self.message)


def outcome(function: Callable[[A], R], argument: A) -> R | Failure:
    """Return the result of *function* for *argument*, or the failure if it raises an error."""
    try:
        return function(argument)
    except Exception as error:
        return failure(error)


def executed(job: bytes) -> bytes:
    """Return the pickled outcome of a pickled *job*: a failure also if it cannot be read, or its result not pickled."""
    try:
        function, argument = pickle.loads(job)
        return pickle.dumps(outcome(function, argument))
    except Exception as error:
        return pickle.dumps(failure(error))


def failure(error: Exception) -> Failure:
    """Return the failure for *error*: the text of an error for users, else the error's type, text and place.

    >>> failure(ZeroDivisionError("division by zero")).message
    'unexpected ZeroDivisionError: division by zero'
    """
    kind = type(error).__name__
    if isinstance(error, SimulatorError):
        return Failure(str(error), kind)
    if isinstance(error, MemoryError):
        return Failure("the memory of the machine does not suffice", kind)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return Failure(f"unexpected {kind}: {error}{place}", kind)


PRELOADED = ("clustersim.scenarios.scenario",)
"""Imports of the fork server."""

ATTEMPTS = 2
"""A job that loses its process runs again: the memory may have run out because of another job."""

GRACE = 5.0
"""Seconds to wait for the exit status of a process that has closed its pipe."""

BEGUN = b"begun"
"""First message of a process."""


def in_processes(jobs: Iterable[Job[A, R]], processes: int) -> Generator[tuple[int, R | Failure], None, None]:
    """Yield (index, result or failure) for each of *jobs*, executed in *processes* at a time, as they end.

    Raises `ExecutionError` if processes cannot start.
    """
    tasks = (_Task(index, pickle.dumps(job)) for index, job in enumerate(jobs))
    pool = _Pool()
    try:
        for task in islice(tasks, processes):
            pool.start(task)
        while pool.busy:
            for task, answer in pool.answers():
                if answer is None and task.attempts < ATTEMPTS:
                    pool.give(task)
                    continue
                for following in islice(tasks, 1):
                    pool.give(following)
                yield task.index, pool.failure() if answer is None else pickle.loads(answer)
    finally:
        pool.close()


@dataclass
class _Task:
    """A pickled job, its index, and how often a process has begun it."""

    index: int
    job: bytes
    attempts: int = 0


@dataclass
class _Pool:
    """Processes by their pipes: *busy* ones with their tasks, and *idle* ones. *death*: how the last one died."""

    busy: dict[Connection, _Task] = field(default_factory=dict)
    idle: list[Connection] = field(default_factory=list)
    death: str = ""
    _processes: dict[Connection, BaseProcess] = field(default_factory=dict)
    _begun: set[Connection] = field(default_factory=set)

    def start(self, task: _Task) -> None:
        """Start a process for *task*."""
        process, ours = start(_serve, Path.cwd(), imports=PRELOADED)
        self._processes[ours] = process
        self.idle.append(ours)
        self.give(task)

    def give(self, task: _Task) -> None:
        """Let an idle process execute *task*, a new one if there is none."""
        if not self.idle:
            self.start(task)
            return
        pipe = self.idle.pop()
        task.attempts += 1
        self.busy[pipe] = task
        # if the process has died, there is an end of file in place of its answer
        with suppress(OSError):
            pipe.send_bytes(task.job)

    def answers(self) -> Iterator[tuple[_Task, bytes | None]]:
        """Wait for answers; yield each task with its pickled outcome, or with None if its process died."""
        for pipe in connection.wait(list(self.busy)):
            assert isinstance(pipe, Connection)
            try:
                answer = pipe.recv_bytes()
            except (EOFError, OSError):
                self._remove(pipe)
                yield self.busy.pop(pipe), None
                continue
            if pipe in self._begun:
                self.idle.append(pipe)
                yield self.busy.pop(pipe), answer
            self._begun.add(pipe)

    def failure(self) -> Failure:
        """Return the failure of a task that has lost all its processes."""
        cause = "; perhaps the machine ran out of memory" if "SIGKILL" in self.death else ""
        return Failure(f"its process {self.death}, {ATTEMPTS} times{cause}")

    def close(self) -> None:
        """End all processes."""
        end((process, pipe) for pipe, process in self._processes.items())

    def _remove(self, pipe: Connection) -> None:
        process = self._processes.pop(pipe)
        process.join(GRACE)
        self.death = death(process.exitcode)
        pipe.close()
        if pipe not in self._begun:
            message = f"no process can be started to share the runs: it {self.death}; go on with -j 1"
            raise ExecutionError(message) from None


def _serve(folder: Path, pipe: Connection) -> None:
    """Execute the jobs that arrive through *pipe*, in *folder*, until it closes."""
    begin()
    os.chdir(folder)
    pipe.send_bytes(BEGUN)
    with suppress(EOFError):
        while True:
            pipe.send_bytes(executed(pipe.recv_bytes()))
