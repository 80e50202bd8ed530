"""A network namespace is a separate network stack on one machine. A process enters it by its name of ``ip netns``."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

NAMED = Path("/run/netns")
"""Directory of the handles made by ``ip netns add`` (ip-netns(8))."""

CLONE_NEWNET = 0x40000000
"""Of setns(2): the handle is a network namespace's."""


def enter(name: str) -> None:
    """Move this thread, and all threads that it will start, into the namespace *name*. Raises `OSError`; needs root."""
    handle = os.open(NAMED / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _setns(handle)
    finally:
        os.close(handle)


def _setns(handle: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter the network namespace: {os.strerror(number)}")
