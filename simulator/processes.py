"""Processes that a parent process starts: how one ended, and how it ends together with its parent."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import connection, parent_process


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
