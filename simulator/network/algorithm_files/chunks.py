"""What the ranks of a collective hold before and must hold after it, chunk by chunk, with buffers as MSCCL has them;
and messages of an algorithm file as steps in rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from itertools import chain
from typing import NamedTuple

from clustersim.simulator.network.proof import contribution, held
from clustersim.simulator.network.step import Step, Transfer
from clustersim.simulator.reading.dataclass import dataclass

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


GRAIN, MOST_GRAINS = 16 * 1024, 64
"""Bytes that a thread block of 1,024 threads passes through switches at once, 16 of each thread (MSCCL++,
src/core/include/execution_kernel.hpp, handleMultiLoadReduceStore), and parts into which a message is cut at most."""


@dataclass
class ChunkTraffic:
    """Chunks by round and by sender and receiver, in chunks of the vector, of which there are *parts*.

    *switched*: chunks by round and by (rank, ranks of the group, whether switches add before they copy): the switches
    add what all ranks of the group hold and send it to the rank, which sends it to all (`multimem` instructions), or
    copy what the rank sends.
    """

    parts: int
    messages: defaultdict[int, dict[Transfer, int]] = field(default_factory=lambda: defaultdict(dict))
    switched: defaultdict[int, dict[tuple[int, tuple[int, ...], bool], int]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def add(self, number: int, sender: int, receiver: int, chunks: int) -> None:
        """Add a message of *chunks* to round *number*; one without chunks is a signal, which takes a latency."""
        here = self.messages[number]
        here[sender, receiver] = here.get((sender, receiver), 0) + chunks

    def add_switched(self, number: int, rank: int, ranks: tuple[int, ...], chunks: int, *, adds: bool) -> None:
        """Add *chunks* that switches add (if *adds*) and copy to round *number*."""
        here = self.switched[number]
        here[rank, ranks, adds] = here.get((rank, ranks, adds), 0) + chunks

    def steps(self, nbytes: float) -> list[Step]:
        """Return the steps for *nbytes* of the full vector. Equal rounds in a row are one repeated step."""
        chunk, found = nbytes / self.parts, list[Step]()
        for number in sorted({*self.messages, *self.switched}):
            made = [*self._levels(number, chunk), *self._through_switches(number, chunk)]
            last = found[-1] if found else None
            if len(made) == 1 and last is not None and replace(last, repeat=1) == made[0] and not last.in_switch:
                found[-1] = replace(last, repeat=last.repeat + 1)
            else:
                found += made
        return found

    def _levels(self, number: int, chunk: float) -> Iterator[Step]:
        """The messages of round *number*: all send as much as the smallest, then the larger ones go on."""
        here = self.messages[number]
        sizes = sorted({size for size in here.values() if size})
        if not sizes and here and not self.switched[number]:
            yield Step(tuple(sorted(here)), 0.0, coupled=False)
        sent = 0
        for size in sizes:
            transfers = tuple(sorted(transfer for transfer, count in here.items() if count >= size))
            yield Step(transfers, (size - sent) * chunk, coupled=_is_permutation(transfers), continues=sent > 0)
            sent = size

    def _through_switches(self, number: int, chunk: float) -> Iterator[Step]:
        here = self.switched[number]
        for adds, size, width in sorted({(adds, size, len(ranks)) for (_, ranks, adds), size in here.items()}):
            lanes = [
                (rank, [other for other in ranks if other != rank])
                for (rank, ranks, added), count in sorted(here.items())
                if (added, count, len(ranks)) == (adds, size, width)
            ]
            copied = [[(rank, other) for other in others] for rank, others in lanes]
            if not adds:
                yield Step(tuple(chain.from_iterable(copied)), size * chunk, coupled=False, in_switch=True)
                continue
            transfers = tuple(pair for lane in copied for pair in (*((other, rank) for rank, other in lane), *lane))
            each, grains = 2 * (width - 1), min(MOST_GRAINS, max(1, round(size * chunk / GRAIN)))
            reduces = tuple(place % each < each // 2 for place in range(len(transfers)))
            yield Step(transfers, size * chunk / grains, grains, True, len(lanes), True, reduces, in_switch=True)


def _is_permutation(transfers: tuple[Transfer, ...]) -> bool:
    """Whether each rank sends once and receives once, so that all advance at one rate."""
    senders, receivers = ({transfer[end] for transfer in transfers} for end in (0, 1))
    return len(senders) == len(receivers) == len(transfers) and senders == receivers
