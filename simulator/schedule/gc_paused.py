"""Python's cyclic garbage collector, switched off for a while.

It costs time if a program makes many objects and few reference cycles.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the cyclic collector; objects without references are freed at once all the same.

    Events are short-lived, ops and records last to the end: a collection would visit all of them and find nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
