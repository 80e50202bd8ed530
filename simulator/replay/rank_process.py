"""Processes with a pipe to their parent: their start, how one ended, and their end, also by a signal; and the process
of a rank, which enters its place on the network, joins the other ranks, works, and reports to the launcher.

A testbed gives each rank a place of its own. Without a testbed all ranks are on the loopback interface.

The process of a rank sends pairs: ``("port", number)`` of the store, ``("report", ...)``, ``("done", result)``, and
``("failed", (moment, text))``.

They come from fork servers, each of which imports once what its processes need. Jobs (`scenarios.run`) and ranks of a
replay (`simulator.replay.launch`) start so.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from multiprocessing import connection, forkserver, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.forkserver import ForkServer
from multiprocessing.process import BaseProcess
from types import FrameType, ModuleType
from typing import Any, NoReturn

from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ReplayError, SimulatorError
from clustersim.simulator.replay import clock, network_namespaces

LOOPBACK = "127.0.0.1"
"""The address that never leaves the machine (RFC 1122, 3.2.1.3)."""

INSTALL = 'torch is not installed, and ranks need it: run pip install -e ".[torch]" in a clone of clustersim'


@dataclass(frozen=True, slots=True)
class NetworkPlace:
    """*rank* runs in the network *namespace* (None: the launcher's own), with Gloo bound to *interface* (None: any).

    *address* is the rank's IPv4 address. The namespace is a name of ``ip netns``; only root can enter one. The store of
    a replay is at the address and in the namespace of rank 0.
    """

    rank: int
    namespace: str | None = None
    interface: str | None = None
    address: str = LOOPBACK


def on_loopback(ranks: int) -> tuple[NetworkPlace, ...]:
    """Return a place on the loopback interface for each of *ranks* ranks."""
    return tuple(NetworkPlace(rank, interface="lo") for rank in range(ranks))


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


def prepare(place: NetworkPlace) -> None:
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


@dataclass(frozen=True)
class Assignment:
    """The launcher's message to a rank: its *place* among *world_size*, its *work*, the *argument*, the *store*'s
    address.
    """

    place: NetworkPlace
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
        network_namespaces.enter(place.namespace)
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


def start(
    target: Callable[..., None], *arguments: Any, imports: Sequence[str], name: str | None = None
) -> tuple[BaseProcess, Connection]:
    """Start a process that calls *target* with *arguments* and its end of a pipe; return it and the other end.

    *imports*: modules that the fork server imports. *target* should call `begin` first.
    """
    context = get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs), name=name, daemon=True)
    # processes inherit what is blocked: an interrupt from the terminal does not reach them
    with blocked(), _without_main(), _from(_fork_server(tuple(imports))):
        process.start()
    theirs.close()
    return process, ours


@cache
def _fork_server(imports: tuple[str, ...]) -> ForkServer:
    """Return the fork server with *imports*. A server that runs imports nothing more, so each set has its own."""
    server = ForkServer()
    server.set_forkserver_preload(list(imports))
    return server


_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def _from(server: ForkServer) -> Iterator[None]:
    """Let processes come from *server* instead of Python's only one."""
    with _ONE_AT_A_TIME:
        usual = forkserver.connect_to_new_process
        forkserver.connect_to_new_process = server.connect_to_new_process
        try:
            yield
        finally:
            forkserver.connect_to_new_process = usual


def begin() -> None:
    """Call this first in a process: it leaves interrupts to its parent, and ends as soon as its parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def end(children: Iterable[tuple[BaseProcess, Connection]]) -> None:
    """End all processes, given with their pipes."""
    own = list(children)
    for process, _ in own:
        process.kill()
    for process, pipe in own:
        process.join()
        pipe.close()


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module. A new process would import it, and a user's script would then begin again in there."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def blocked() -> Iterator[None]:
    """Block the signals that would end the process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """End this process as soon as its parent has ended, even by SIGKILL. Call it once, in the child process."""
    threading.Thread(target=_wait_for_end, daemon=True).start()


def _wait_for_end() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def death(exitcode: int | None) -> str:
    """Return how a process with *exitcode*, as of `multiprocessing.Process`, ended.

    >>> death(1), death(-9)
    ('died (exit status 1)', 'died (SIGKILL)')
    """
    if exitcode is None or exitcode >= 0:
        return f"died (exit status {exitcode})"
    return f"died ({signal.Signals(-exitcode).name})"


class _Ended(BaseException):
    """A signal that ends the process has arrived."""


@contextmanager
def orderly_termination() -> Iterator[None]:
    """Let SIGTERM and SIGHUP run every ``finally`` of the context before they end the process, as SIGINT does anyway.

    Only the main thread receives signals; in another thread this has no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    ended = 0
    try:
        yield
    except _Ended as signalled:
        ended = signalled.args[0]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if ended:
        os.kill(os.getpid(), ended)
        raise SystemExit(128 + ended)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise _Ended(number)
