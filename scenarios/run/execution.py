"""The executor: jobs go where the user wants them, and their outcomes come back as they are ready."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TypeVar

from clustersim.scenarios.run.processes import Failure, Job, in_processes, outcome

A = TypeVar("A")
R = TypeVar("R")


def execute(
    jobs: Iterable[Job[A, R]], processes: int = 1, on: str = ""
) -> Generator[tuple[int, R | Failure], None, None]:
    """Yield (index of the job, its result or `Failure`) for each of *jobs*, in the order in which they end.

    A job is a pair (function, argument). One process is this one. For several *processes* or a cluster, the function
    is one of an importable module, and argument and result can be pickled. *on*: the address of a Dask scheduler, such
    as ``tcp://host:8786``; *processes* has then no meaning. Jobs are taken from the iterator when they can run.

    A job that raises an error ends with a `Failure`; the others go on. A job runs again if its process died. Each
    index comes once. Close the iterator to end what still runs, for example with `contextlib.closing`.
    Raises `ExecutionError` if no job can be executed.
    """
    if on:
        from clustersim.scenarios.run.dask_cluster import on_cluster

        return on_cluster(jobs, on)
    return in_processes(jobs, processes) if processes > 1 else _here(jobs)


def _here(jobs: Iterable[Job[A, R]]) -> Generator[tuple[int, R | Failure], None, None]:
    for index, (function, argument) in enumerate(jobs):
        yield index, outcome(function, argument)
