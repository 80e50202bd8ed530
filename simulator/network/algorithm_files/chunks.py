"""What the ranks of a collective hold before and must hold after it, chunk by chunk, with buffers as MSCCL has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from clustersim.simulator.network.proof import contribution, held

Place = tuple[str, int]
"""A buffer (i: input, o: output, s: scratch) and a chunk of it."""

BUFFERS = ("i", "o", "s")
"""Input, output and scratch."""

COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
"""The collectives of MSCCL and MSCCL++ that are read, without those of a root."""

DIVIDED = "reduce_scatter", "all_to_all"
"""Collectives whose input has an equal number of chunks for each rank."""


class Value(NamedTuple):
    """A chunk: its number *part* in the vector, and the contributions that it holds (`proof.contribution`)."""

    part: int
    held: int


@dataclass(frozen=True)
class Vectors:
    """The vectors of the collective *kind* over *ranks*, each with *inputs* chunks in its input buffer.

    *in_place*: whether the smaller one of input and output is a part of the other.
    """

    kind: str
    in_place: bool
    ranks: int
    inputs: int

    @property
    def parts(self) -> int:
        """The chunks of the whole vector, as nccl-tests counts it."""
        return self.inputs * self.ranks if self.kind == "all_gather" else self.inputs

    @property
    def outputs(self) -> int:
        """The chunks of the output buffer."""
        own = self.inputs // self.ranks
        return {"all_gather": self.parts, "reduce_scatter": own}.get(self.kind, self.inputs)

    def start(self, rank: int) -> dict[Place, Value]:
        """Return the chunks that *rank* holds before."""
        own = contribution(rank)
        first = rank * self.inputs if self.kind in ("all_gather", "all_to_all") else 0
        return {self.place(rank, ("i", chunk)): Value(first + chunk, own) for chunk in range(self.inputs)}

    def place(self, rank: int, place: Place) -> Place:
        """Return the place in memory of *place* in a buffer of *rank*."""
        buffer, chunk = place
        if not self.in_place or buffer == "s":
            return place
        if buffer == "i" and self.kind == "all_gather":
            return "i", rank * self.inputs + chunk
        if buffer == "o" and self.kind == "reduce_scatter":
            return "i", rank * self.outputs + chunk
        return "i", chunk

    def expected(self, rank: int) -> Mapping[int, Value]:
        """Return what *rank* must hold after, by chunk of its output."""
        everyone = sum(map(contribution, range(self.ranks)))
        match self.kind:
            case "all_reduce":
                return {chunk: Value(chunk, everyone) for chunk in range(self.inputs)}
            case "reduce_scatter":
                return {chunk: Value(rank * self.outputs + chunk, everyone) for chunk in range(self.outputs)}
            case "all_gather":
                return {chunk: Value(chunk, contribution(chunk // self.inputs)) for chunk in range(self.parts)}
        own = self.inputs // self.ranks
        return {
            chunk: Value(chunk // own * self.inputs + rank * own + chunk % own, contribution(chunk // own))
            for chunk in range(self.inputs)
        }

    def fault(self, found: Callable[[int, Place], Value | None], finer: int = 1) -> str:
        """Return the first chunk that is wrong at the end, in words; empty if there is none.

        *found* (rank, place in memory): what is there. *finer*: chunks of this for each chunk of the file.
        """
        for rank in range(self.ranks):
            for chunk, wanted in self.expected(rank).items():
                value = found(rank, self.place(rank, ("o", chunk)))
                if value == wanted:
                    continue
                if value is not None and value.part != wanted.part:
                    what = f"chunk {value.part // finer}"
                else:
                    what = held(value.held if value else 0, wanted.held, self.ranks)
                return (
                    f"{self.kind} is wrong: rank {rank} ends with {what} in the place of chunk {wanted.part // finer}"
                )
        return ""
