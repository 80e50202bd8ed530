"""An algorithm as an XML file of MSCCL: its steps executed chunk by chunk, each message a send and a receive.

A thread block is for one direction, one other GPU and one channel. An instruction depends on those of other thread
blocks that wrote the chunk before it, and one that writes also on those that sent it. MSCCL takes one dependency for an
instruction, so further ones are on `nop`. Runs of chunks that do not lie side by side go by channels of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from math import lcm
from xml.sax.saxutils import quoteattr

from clustersim.simulator.network.algorithm_files.chunks import COLLECTIVES
from clustersim.simulator.network.algorithm_files.msccl import MOST, MOST_CHANNELS
from clustersim.simulator.network.step import Step
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import SimulatorError

Instruction = tuple[int, int]
"""A thread block, and the place of an instruction in it."""

Run = tuple[int, int]
"""Chunks side by side: the first, and how many."""


def msccl_xml(name: str, kind: str, ranks: int, steps: Sequence[Step]) -> str:
    """Return the algorithm *name* of *steps* for the collective *kind* over *ranks* as a file of MSCCL.

    Raises `SimulatorError` for what MSCCL cannot say: collectives with a root, switches that add or copy, blocks that
    are forwarded without their sum or by way of a third rank of an all-to-all, and too many channels.
    """
    if kind not in COLLECTIVES.values():
        raise SimulatorError(
            f"{kind} is no collective of MSCCL; there are {', '.join(sorted(set(COLLECTIVES.values())))}"
        )
    if any(step.in_switch for step in steps):
        raise SimulatorError(f"{name} adds and copies in switches, which MSCCL does not use; take ring, for example")
    if any(step.forwards for step in steps):
        raise SimulatorError(
            f"{name} forwards what arrives without adding it, which needs buffers that are not written"
        )
    squared = ranks * ranks if kind == "all_to_all" else ranks
    parts = lcm(squared, *(max(1, step.parts) for step in steps))
    if parts > MOST:
        raise SimulatorError(f"{name} cuts the vector into {parts:,} chunks; a file holds {MOST:,}")
    program = _Program(name, kind, ranks, parts)
    for step in steps:
        for messages in _rounds(step, parts):
            program.add(messages)
    return program.text()


@dataclass(frozen=True)
class _Sent:
    sender: int
    receiver: int
    chunks: tuple[int, ...]
    adds: bool


def _rounds(step: Step, parts: int) -> Iterator[list[_Sent]]:
    """The messages that are sent at once: of a repetition, or one by one if *step* is pipelined."""
    finer = parts // max(1, step.parts)
    for repetition in range(step.repeat if step.blocks is not None else 1):
        sent = []
        for number, (sender, receiver) in enumerate(step.transfers):
            blocks = step.blocks(repetition, number) if step.blocks is not None else range(max(1, step.parts))
            chunks = tuple(sorted(block * finer + place for block in blocks for place in range(finer)))
            sent.append(_Sent(sender, receiver, chunks, step.adds(number)))
        if step.pipelined:
            yield from ([one] for one in sent)
        else:
            yield sent


def _runs(chunks: Iterable[int]) -> list[Run]:
    """Return *chunks*, in order, as runs.

    >>> _runs([0, 1, 4])
    [(0, 2), (4, 1)]
    """
    runs: list[Run] = []
    for chunk in chunks:
        if runs and sum(runs[-1]) == chunk:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((chunk, 1))
    return runs


@dataclass
class _Lines:
    """A thread block: the ranks that it sends to and receives from (-1: none), and its instructions."""

    send: int
    receive: int
    channel: int
    steps: list[tuple[dict[str, str], Instruction | None]] = field(default_factory=list)


class _Program:
    """Instructions of all ranks, while messages are added. *parts*: chunks of the vector (`proof.start`)."""

    def __init__(self, name: str, kind: str, ranks: int, parts: int) -> None:
        self.name, self.kind, self.ranks, self.parts = name, kind, ranks, parts
        self.blocks: list[dict[tuple[int, int, int], _Lines]] = [{} for _ in range(ranks)]
        self.written: list[dict[str, Instruction]] = [{} for _ in range(ranks)]
        self.sent: list[defaultdict[str, list[Instruction]]] = [defaultdict(list) for _ in range(ranks)]
        if kind == "all_to_all":
            own = parts // ranks // ranks
            for rank in range(ranks):
                place = {"srcbuf": "i", "srcoff": str(rank * own), "dstbuf": "o", "dstoff": str(rank * own)}
                self._instruction(rank, (-1, -1, 0), {"type": "cpy", **place, "cnt": str(own)}, [], [])

    def add(self, messages: Sequence[_Sent]) -> None:
        """Add *messages* that are sent at once: all sends, then all receives."""
        channel: Counter[tuple[int, int]] = Counter()
        receives = []
        for one in messages:
            for run in _runs(one.chunks):
                number = channel[one.sender, one.receiver]
                channel[one.sender, one.receiver] += 1
                if number >= MOST_CHANNELS:
                    raise SimulatorError(f"{self.name} needs more than the {MOST_CHANNELS} channels of NCCL")
                buffer, first = self._place(one, run[0], at_sender=True)
                where = {"srcbuf": buffer, "srcoff": str(first), "dstbuf": buffer, "dstoff": str(first)}
                names = [f"{buffer}{first + place}" for place in range(run[1])]
                attributes = {"type": "s", **where, "cnt": str(run[1])}
                self._instruction(one.sender, (one.receiver, -1, number), attributes, names, [])
                receives.append((one, run, number))
        for one, run, number in receives:
            buffer, first = self._place(one, run[0], at_sender=False)
            where = {"srcbuf": buffer, "srcoff": str(first), "dstbuf": buffer, "dstoff": str(first)}
            names = [f"{buffer}{first + place}" for place in range(run[1])]
            attributes = {"type": "rrc" if one.adds else "r", **where, "cnt": str(run[1])}
            self._instruction(one.receiver, (-1, one.sender, number), attributes, [], names)

    def _place(self, one: _Sent, chunk: int, *, at_sender: bool) -> tuple[str, int]:
        """The buffer and its chunk where *chunk* of the vector is: in place, but for an all-to-all."""
        if self.kind != "all_to_all":
            return ("o" if self.kind == "all_gather" else "i"), chunk
        own = self.parts // self.ranks // self.ranks
        block, inside = divmod(chunk, own)
        if divmod(block, self.ranks) != (one.sender, one.receiver):
            raise SimulatorError(f"{self.name} passes blocks on by a third rank, for which no buffers are written")
        return ("i", one.receiver * own + inside) if at_sender else ("o", one.sender * own + inside)

    def _instruction(
        self,
        rank: int,
        block: tuple[int, int, int],
        attributes: dict[str, str],
        reads: Sequence[str],
        writes: Sequence[str],
    ) -> None:
        """Add an instruction of *rank* to the thread block (send, receive, channel), after what it depends on."""
        there = self.blocks[rank]
        lines = there.setdefault(block, _Lines(*block))
        number = list(there).index(block)
        before: dict[int, int] = {}
        written, sent = self.written[rank], self.sent[rank]
        found = [written[name] for name in (*reads, *writes) if name in written]
        for other, place in (*found, *(one for name in writes for one in sent[name])):
            if other != number:
                before[other] = max(before.get(other, 0), place)
        awaited = list(before.items())
        others, last = awaited[:-1], awaited[-1] if awaited else None
        nothing = {"type": "nop", "srcbuf": "i", "srcoff": "0", "dstbuf": "i", "dstoff": "0", "cnt": "1"}
        lines.steps += [(nothing, other) for other in others]
        lines.steps.append((attributes, last))
        here = number, len(lines.steps) - 1
        for name in reads:
            sent[name].append(here)
        for name in writes:
            written[name] = here
            sent[name] = []

    def text(self) -> str:
        """Return the file."""
        coll = {kind: name for name, kind in reversed(COLLECTIVES.items())}[self.kind]
        inputs = self.parts if self.kind in ("all_reduce", "reduce_scatter") else self.parts // self.ranks
        outputs = self.parts if self.kind in ("all_reduce", "all_gather") else self.parts // self.ranks
        channels = 1 + max(block[2] for there in self.blocks for block in there)
        in_place = int(self.kind != "all_to_all")
        lines = [
            f'<algo name={quoteattr(self.name)} proto="Simple" nchannels="{channels}" nchunksperloop="{self.parts}" '
            f'ngpus="{self.ranks}" coll="{coll}" inplace="{in_place}" outofplace="{1 - in_place}" '
            'minBytes="0" maxBytes="0">'
        ]
        for rank, there in enumerate(self.blocks):
            lines.append(f'  <gpu id="{rank}" i_chunks="{inputs}" o_chunks="{outputs}" s_chunks="0">')
            awaited = {one for block in there.values() for _, one in block.steps if one is not None}
            for number, block in enumerate(there.values()):
                lines.append(
                    f'    <tb id="{number}" send="{block.send}" recv="{block.receive}" chan="{block.channel}">'
                )
                for place, (attributes, after) in enumerate(block.steps):
                    written = " ".join(f'{key}="{value}"' for key, value in attributes.items())
                    other, step = after or (-1, -1)
                    hasdep = int((number, place) in awaited)
                    lines.append(f'      <step s="{place}" {written} depid="{other}" deps="{step}" hasdep="{hasdep}"/>')
                lines.append("    </tb>")
            lines.append("  </gpu>")
        return "\n".join([*lines, "</algo>"]) + "\n"
