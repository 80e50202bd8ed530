"""How context parallelism cuts sequences."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Context:
    """Sequences are cut over *ranks* ranks of the axis *over*, which attend by *method*; *zigzag*: their layout."""

    over: str = ""
    ranks: int = 1
    method: str = "ring"
    zigzag: bool = True


ALONE = Context()
"""Every rank has whole sequences."""
