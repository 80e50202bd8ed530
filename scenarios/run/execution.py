"""The executor: jobs go where the user wants them, to processes of this machine or to a Dask cluster, and their
outcomes come back as they are ready.

All machines must have the same versions of what results depend on.

Scheduler and workers need the same clustersim as this process. Dask is imported only here.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import pickle
import socket
import sys
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from clustersim.scenarios.run.processes import Failure, Job, executed, in_processes, outcome
from clustersim.simulator.reading.errors import ExecutionError
from clustersim.simulator.reading.lookup import version

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
        return on_cluster(jobs, on)
    return in_processes(jobs, processes) if processes > 1 else _here(jobs)


def _here(jobs: Iterable[Job[A, R]]) -> Generator[tuple[int, R | Failure], None, None]:
    for index, (function, argument) in enumerate(jobs):
        yield index, outcome(function, argument)


DISTRIBUTIONS = ("numpy", "scipy", "networkx", "numba", "pydantic", "distributed")
"""Libraries on which numbers, or the exchange with workers, depend."""

SOURCES = ("simulator", "topologies", "workloads", "scenarios")
"""Folders of clustersim's own code and data."""


@cache
def versions() -> dict[str, str]:
    """Return the versions of clustersim, Python and libraries on this machine, by name."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    libraries = {name: version(name) or "none" for name in DISTRIBUTIONS}
    return {"clustersim": f"{version()} (sources {_digest()})", "Python": python, **libraries}


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return what of *there* differs from *here*; empty if nothing does.

    >>> difference({"Python": "3.12", "numpy": "2.1.0"}, {"Python": "3.11", "numpy": "2.1.0"})
    'Python 3.11 in place of 3.12'
    """
    differing = [name for name in here if there.get(name) != here[name]]
    return ", ".join(f"{name} {there.get(name, 'none')} in place of {here[name]}" for name in differing)


def _digest() -> str:
    """Return a short hash of clustersim's code and data: a clone may differ from a release of the same version."""
    root = Path(__file__).parents[2]
    hashed = hashlib.sha256()
    for path in sorted(path for folder in SOURCES for path in (root / folder).rglob("*")):
        if path.suffix in (".py", ".yaml", ".csv") and path.is_file():
            hashed.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return hashed.hexdigest()[:8]


log = logging.getLogger(__name__)

SCHEMES = ("tcp", "tls")

CONNECT = 10.0
"""Seconds in which the scheduler must answer."""

CLOSE = 2.0
"""Seconds in which the connection must close."""

SUBMITTED = 4096
"""Jobs at the scheduler at a time: more than most clusters have processors; their arguments take some 10 MB there."""

INSTALL = (
    "a Dask cluster needs dask[distributed], which is not installed: "
    'run pip install -e ".[cluster]" in a clone of clustersim'
)


def on_cluster(jobs: Iterable[Job[A, R]], address: str) -> Generator[tuple[int, R | Failure], None, None]:
    """Yield (index, result or failure) for each of *jobs*, executed by the workers of the scheduler at *address*.

    Raises `ExecutionError` if the scheduler does not answer or is lost, or if versions differ.
    """
    with _connected(address) as client:
        from distributed import as_completed

        tasks = enumerate(jobs)
        pending: dict[str, int] = {}

        def submitted(count: int) -> list[Any]:
            futures = []
            for index, job in islice(tasks, count):
                future = client.submit(_execute, versions(), pickle.dumps(job), pure=False)
                pending[future.key] = index
                futures.append(future)
            return futures

        completed: Any = as_completed(submitted(SUBMITTED), loop=client.loop)  # type: ignore[no-untyped-call]
        while pending:
            future = next(completed)
            outcome = _outcome(future, address)
            completed.update(submitted(1))
            yield pending.pop(future.key), outcome


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Yield a client of the scheduler at *address* whose versions are those of this process; close it at the end.

    What was submitted and has not begun is then cancelled.
    """
    try:
        from distributed import Client
    except ImportError:
        raise ExecutionError(INSTALL) from None
    with _quiet():
        try:
            _reach(address)
            client: Any = Client(address, timeout=CONNECT, set_as_default=False)  # type: ignore[no-untyped-call]
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or f"no answer within {CONNECT:g} s"
            raise ExecutionError(f"no Dask scheduler answers at {address}: {reason}") from None
        try:
            _check_versions(client, address)
            yield client
        finally:
            with suppress(Exception):
                client.close(timeout=CLOSE)


def _reach(address: str) -> None:
    """Raise `OSError` or `ValueError` if no scheduler is at *address*. A client without a scheduler may never end."""
    parts = urlsplit(address)
    if parts.scheme not in SCHEMES or not parts.hostname or not parts.port:
        raise ValueError("write the address as in tcp://host:8786")
    socket.create_connection((parts.hostname, parts.port), CONNECT).close()
    with ThreadPoolExecutor(1) as pool:
        # in a thread, because a notebook has an event loop of its own
        identity = pool.submit(asyncio.run, asyncio.wait_for(_identity(address), CONNECT)).result()
    if identity.get("type") != "Scheduler":
        raise ValueError("it is not a scheduler")


async def _identity(address: str) -> dict[str, Any]:
    """Return what the server at *address* says about itself."""
    from distributed import rpc

    peer: Any = rpc(address)  # type: ignore[no-untyped-call]
    async with peer:
        return dict(await peer.identity())


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Dask's own messages off stderr: a worker that dies is made good, and other faults are errors here."""
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client", "distributed.core")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _check_versions(client: Any, address: str) -> None:
    """Raise `ExecutionError` if the scheduler or a worker has other versions. Later workers check by themselves."""
    try:
        found = {"the scheduler": client.run_on_scheduler(versions)}
        found |= client.run(versions, on_error="return")
    except Exception as error:
        raise _not_equal("the scheduler", address, str(error)) from None
    for where, there in found.items():
        differing = difference(versions(), there) if isinstance(there, Mapping) else str(there)
        if differing:
            raise _not_equal(where, address, differing)
    if len(found) == 1:
        log.warning("%s has no workers yet; the runs wait for the first", address)


def _not_equal(where: str, address: str, differing: str) -> ExecutionError:
    place = f"worker {where}" if "://" in where else where
    return ExecutionError(f"{place} of {address} cannot share the runs, it needs the versions used here: {differing}")


def _execute(expected: Mapping[str, str], job: bytes) -> bytes:
    """Return the pickled outcome of a pickled *job*, on a worker. Raises `ExecutionError` for other versions."""
    if differing := difference(expected, versions()):
        raise ExecutionError(differing)
    return executed(job)


def _outcome(future: Any, address: str) -> Any:
    """Return the result or failure of *future*, which is done. Raises `ExecutionError` if the cluster is at fault."""
    from distributed import CancelledError, KilledWorker

    try:
        return pickle.loads(future.result())
    except KilledWorker as error:
        count = error.allowed_failures + 1
        return Failure(f"its worker died, {count} times; perhaps a machine of the cluster ran out of memory")
    except CancelledError:
        raise ExecutionError(f"the Dask scheduler at {address} is lost") from None
    except Exception as error:
        raise _not_equal("a worker", address, str(error)) from None
