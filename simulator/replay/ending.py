"""A process that is told to end puts its things away first, and then ends by the signal that came."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class _Ended(BaseException):
    """A signal came that ends the process."""


@contextmanager
def in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP go by way of every ``finally`` in here before they end the process, as SIGINT does anyway.

    Only the main thread can hear them; in another nothing is changed.
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


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that would end the process wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
