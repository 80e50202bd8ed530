"""Processes that a parent process starts, with a pipe to each: their start, how one ended, and their end, also by a
signal: clean up first, then end by that signal.

They come from a fork server, which imports what all of them need once. Jobs (`scenarios.run`) and ranks of a
replay (`simulator.replay.launch`) start so.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import FrameType, ModuleType
from typing import Any, NoReturn


def start(
    target: Callable[..., None], *arguments: Any, imports: Sequence[str], name: str | None = None
) -> tuple[BaseProcess, Connection]:
    """Start a process that calls *target* with *arguments* and its end of a pipe; return it and the other end.

    *imports*: modules that the fork server imports. *target* should call `begin` first.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(list(imports))
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs), name=name, daemon=True)
    # processes inherit what is blocked: an interrupt from the terminal does not reach them
    with blocked(), _without_main():
        process.start()
    theirs.close()
    return process, ours


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
