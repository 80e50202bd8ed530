"""The process of a rank: it enters its network, joins the other ranks, works, and reports to the launcher.

It sends pairs: ``("port", number)`` of the store, ``("report", ...)``, ``("done", result)``, and ``("failed", (moment,
text))``.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from simulator.errors import SimulatorError
from simulator.processes import begin
from simulator.replay import clock
from simulator.replay.place import Place
from simulator.replay.testbed import namespace
from simulator.replay.worker import Member, Work, device_of, open_world, prepare

INSTALL = 'torch is not installed, and ranks need it: run pip install -e ".[torch]" in a clone of clustersim'


@dataclass(frozen=True)
class Assignment:
    """The launcher's message to a rank: its *place* among *world_size*, its *work*, the *argument*, the *store*'s
    address.
    """

    place: Place
    world_size: int
    backend: str
    timeout: float
    work: Work
    argument: Any
    store: str


def main(assignment: Assignment, launcher: Connection) -> None:
    """Execute *assignment* and send its results to *launcher*."""
    begin()
    _silence()
    try:
        launcher.send(("done", _execute(assignment, launcher)))
        _stay(launcher)
    except ModuleNotFoundError as error:
        text = INSTALL if error.name == "torch" else str(error)
        launcher.send(("failed", (time.monotonic(), text)))
    except Exception as error:
        launcher.send(("failed", (time.monotonic(), message_of(error))))


def _stay(launcher: Connection) -> None:
    """Wait for the launcher's message: other ranks may still need this one, for example the store of rank 0."""
    with suppress(EOFError, OSError):
        launcher.recv()


def message_of(error: Exception) -> str:
    """Return the first line of *error*. Further lines of torch's errors are its own stack frames."""
    if isinstance(error, SimulatorError):
        return str(error)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _silence() -> None:
    """Discard stderr. The messages of torch's C++ about a lost peer would hide the first error."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


def _execute(assignment: Assignment, launcher: Connection) -> Any:
    place = assignment.place
    if place.namespace is not None:
        # a message of less than a millisecond must not wait for the time slice of another process
        clock.run_realtime()
        namespace.enter(place.namespace)
    prepare(place)
    device = device_of(assignment.backend, place.rank)
    member = Member(
        place.rank, assignment.world_size, assignment.backend, device, lambda report: launcher.send(("report", report))
    )
    open_world(member, assignment.timeout, _store(assignment, launcher))
    return assignment.work(member, assignment.argument)


def _store(assignment: Assignment, launcher: Connection) -> Any:
    """The store by which ranks find one another: at rank 0, on a free port, which the launcher passes on."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    within = timedelta(seconds=assignment.timeout)
    if assignment.place.rank == 0:
        store = TCPStore(
            assignment.store, 0, assignment.world_size, is_master=True, timeout=within, wait_for_workers=False
        )
        launcher.send(("port", store.port))
        return store
    port = launcher.recv()
    return TCPStore(
        assignment.store, port, assignment.world_size, is_master=False, timeout=within, wait_for_workers=False
    )
