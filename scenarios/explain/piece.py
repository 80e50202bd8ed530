"""A piece of work of one rank: a kernel, a communication or a copy, in a real or in a simulated step."""

from __future__ import annotations

from math import nan
from typing import NamedTuple

PHASES = ("forward", "backward", "optimizer", "compute")
"""Parts of computation; ``compute`` if the trace does not tell the phase."""

COPY, WAITING, LOADING, HOST = "copy", "waiting", "loading", "host"
"""Other parts: copies; waits of a communication for its partners; loading of samples; work of the host alone."""

Shape = tuple[int, int, int, int]
"""(batch, m, n, k) of a matrix product."""


class Call(NamedTuple):
    """A communication: its *kind*, the bytes of the full vector (None: not known), its group and *ranks* there.

    The *group* is equal on all of its members.
    """

    kind: str
    nbytes: float | None
    group: str
    ranks: int


class Piece(NamedTuple):
    """Work from *begin* to *end* (s) on *stream*; *part*: a phase, ``copy`` or the kind of communication.

    *launched*: when the host launched it; nan if that is not known. *op*: the operator that launched it, with *shape*
    and *precision* if it is a matrix product. *wait*: seconds at its begin in which a communication waits for partners.
    *nbytes*: what an elementwise operator reads and writes; 0 if unknown.
    """

    name: str
    part: str
    stream: str
    begin: float
    end: float
    launched: float = nan
    op: str = ""
    layer: str = ""
    shape: Shape | None = None
    precision: str = ""
    call: Call | None = None
    wait: float = 0.0
    nbytes: float = 0.0

    @property
    def seconds(self) -> float:
        """Its duration, s."""
        return self.end - self.begin
