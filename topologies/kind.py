"""A kind of node: one wiring, stamped so many times, its vertices numbered through the cluster."""

from __future__ import annotations

from dataclasses import dataclass

from topologies.wiring import Wiring


@dataclass(frozen=True, slots=True)
class Kind:
    """*count* nodes of one *wiring*: the first has the number *node*, and its vertices begin at *first*, by kind."""

    wiring: Wiring
    count: int
    node: int
    first: dict[str, int]
    each: dict[str, int]

    def name(self, vertex: str, index: int) -> str:
        """What *vertex* of the wiring is called in the node of that *index* among its kind."""
        kind, _, number = vertex.rpartition(" ")
        return f"{kind} {self.first.get(kind, 0) + index * self.each[kind] + int(number)}"
