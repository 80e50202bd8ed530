"""Termination by a signal: clean up first, then end by that signal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


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
