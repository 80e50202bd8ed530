"""The process of a rank: it enters its network, joins the others, does its work, and tells the launcher.

What it tells are pairs: ``("port", number)`` of the store, ``("report", ...)``, ``("done", result)``, and
``("failed", (moment, text))``.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from typing import Any

from simulator.errors import SimulatorError
from simulator.replay import clock
from simulator.replay.place import Place
from simulator.replay.testbed import namespace
from simulator.replay.worker import Member, Work, device_of, open_world, prepare

INSTALL = 'torch is not installed, and ranks need it: run pip install -e ".[torch]" in a clone of clustersim'


@dataclass(frozen=True)
class Order:
    """What the launcher tells a rank: its *place* among *world_size*, *work* and its *argument*, *store*'s address."""

    place: Place
    world_size: int
    backend: str
    timeout: float
    work: Work
    argument: Any
    store: str


def main(order: Order, launcher: Connection) -> None:
    """Carry out *order*, telling *launcher* what comes of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    _silence()
    try:
        launcher.send(("done", _carried_out(order, launcher)))
        _stay(launcher)
    except ModuleNotFoundError as error:
        text = INSTALL if error.name == "torch" else str(error)
        launcher.send(("failed", (time.monotonic(), text)))
    except Exception as error:
        launcher.send(("failed", (time.monotonic(), told(error))))


def _stay(launcher: Connection) -> None:
    """Until the launcher sends all home: what other ranks still need of this one, rank 0's store, must be there."""
    with suppress(EOFError, OSError):
        launcher.recv()


def told(error: Exception) -> str:
    """The first line of *error*: what torch adds below are its own stack frames."""
    if isinstance(error, SimulatorError):
        return str(error)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _end_with_launcher() -> None:
    """The pipe to the launcher closes when that has ended, even by SIGKILL."""
    launcher = parent_process()
    assert launcher is not None
    connection.wait([launcher.sentinel])
    os._exit(1)


def _silence() -> None:
    """What torch's C++ writes to stderr when a peer has gone would bury the one error that matters."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


def _carried_out(order: Order, launcher: Connection) -> Any:
    place = order.place
    if place.namespace is not None:
        # a message of less than a millisecond must not wait until another process has had its turn
        clock.before_others()
        namespace.enter(place.namespace)
    prepare(place)
    device = device_of(order.backend, place.rank)
    member = Member(
        place.rank, order.world_size, order.backend, device, lambda report: launcher.send(("report", report))
    )
    open_world(member, order.timeout, _store(order, launcher))
    return order.work(member, order.argument)


def _store(order: Order, launcher: Connection) -> Any:
    """The store by which ranks find one another: at rank 0, on a port that is free; the launcher passes it on."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    within = timedelta(seconds=order.timeout)
    if order.place.rank == 0:
        store = TCPStore(order.store, 0, order.world_size, is_master=True, timeout=within, wait_for_workers=False)
        launcher.send(("port", store.port))
        return store
    port = launcher.recv()
    return TCPStore(order.store, port, order.world_size, is_master=False, timeout=within, wait_for_workers=False)
