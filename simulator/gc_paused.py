"""Looking for garbage costs time where much is made and little of it stands in circles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Meanwhile Python looks for no circles; what nobody refers to goes at once all the same.

    Events live shortly, ops and records to the end: each look at all of them finds nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
