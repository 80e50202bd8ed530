"""Algorithm files of MSCCL as collectives: an XML file with the instructions of every thread block of every GPU.

A thread block executes its instructions one after the other. It sends to one GPU and receives from one, over one
channel; instructions of other blocks are awaited by `depid` and `deps`. The file is executed on symbolic chunks, which
proves it: a chunk that is waited for and never sent, sent and never received, or wrong at the end is a fault, named
with chunk and rank. The rounds of the simulation are the longest chains of dependencies: a message is in the round
after those that its sender had to wait for.

MSCCL: Cowan et al., "MSCCLang: Microsoft Collective Communication Language", ASPLOS 2023; the format is that of
github.com/Azure/msccl-executor-nccl, ``msccl_setup``.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from clustersim.simulator.network.msccl_file import (
    KEEPS,
    RECEIVES,
    REDUCES,
    SENDS,
    Instruction,
    Reader,
    ThreadBlock,
)
from clustersim.simulator.network.proof import contribution, held
from clustersim.simulator.network.step import Group, Step
from clustersim.simulator.reading.errors import SimulatorError

SUFFIX = ".xml"


class Value(NamedTuple):
    """A chunk: its number *part* in the vector, and the contributions that it holds (`proof.contribution`)."""

    part: int
    held: int


@dataclass
class Message:
    """Chunks on their way from *sender* to *receiver* in *round*."""

    sender: int
    receiver: int
    round: int
    values: list[Value]
    line: int


class MscclAlgorithm:
    """The algorithm of the file at *path*, which is proved when it is made.

    Raises `SimulatorError` with the line, the chunk and the rank of a fault.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.kind, self.in_place, self.gpus = Reader(path).read()
        self.messages = _Execution(self).run()

    @property
    def ranks(self) -> int:
        """The number of ranks, which is fixed."""
        return len(self.gpus)

    def ranks_allowed(self, ranks: int) -> bool:
        """Return whether it is for so many *ranks*."""
        return ranks == self.ranks

    @property
    def parts(self) -> int:
        """The chunks of the whole vector, as nccl-tests counts it."""
        first = self.gpus[0]
        return first.inputs * self.ranks if self.kind == "all_gather" else first.inputs

    @cached_property
    def _rounds(self) -> list[tuple[tuple[tuple[int, int], ...], int, int]]:
        """By round: its transfers of one number of chunks, that number, and how often in a row."""
        found: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for message in self.messages:
            found[message.round, len(message.values)].append((message.sender, message.receiver))
        rounds: list[tuple[tuple[tuple[int, int], ...], int, int]] = []
        for (_, count), transfers in sorted(found.items()):
            ordered = tuple(sorted(transfers))
            if rounds and rounds[-1][:2] == (ordered, count):
                rounds[-1] = ordered, count, rounds[-1][2] + 1
            else:
                rounds.append((ordered, count, 1))
        return rounds

    def __call__(self, group: Group, nbytes: float) -> list[Step]:
        """Return the steps for *nbytes* of the full vector over *group*."""
        if group.size != self.ranks:
            raise SimulatorError(f"{self.path} is for {self.ranks} ranks, not {group.size}")
        return [
            Step(transfers, nbytes * count / self.parts, repeat, coupled=_is_permutation(transfers))
            for transfers, count, repeat in self._rounds
        ]


def is_file(name: str) -> bool:
    """Return whether *name* is the path of an algorithm file."""
    return name.endswith(SUFFIX)


@lru_cache(maxsize=64)
def algorithm(path: str) -> MscclAlgorithm:
    """Return the algorithm of the file at *path*. Raises `SimulatorError` if it is wrong."""
    return MscclAlgorithm(path)


def _is_permutation(transfers: tuple[tuple[int, int], ...]) -> bool:
    """Whether each rank sends once and receives once, so that all advance at one rate."""
    senders, receivers = ({transfer[end] for transfer in transfers} for end in (0, 1))
    return len(senders) == len(receivers) == len(transfers) and senders == receivers


class _Execution:
    """Executes an algorithm on symbolic chunks. A send does not wait for its receive."""

    def __init__(self, algorithm: MscclAlgorithm) -> None:
        self.algorithm, self.ranks = algorithm, len(algorithm.gpus)
        self.memory = [self._start(rank) for rank in range(self.ranks)]
        self.ways: defaultdict[tuple[int, int, int], deque[Message]] = defaultdict(deque)
        self.messages: list[Message] = []
        self.done: dict[tuple[int, int], list[int]] = {
            (rank, number): [] for rank, gpu in enumerate(algorithm.gpus) for number in gpu.blocks
        }
        """By rank and thread block: the round in which each ended instruction ended."""

    def run(self) -> list[Message]:
        """Return all messages. Raises `SimulatorError` for the first fault."""
        waiting = [(rank, block) for rank, gpu in enumerate(self.algorithm.gpus) for block in gpu.blocks.values()]
        moved = True
        while moved:
            moved = False
            for rank, block in waiting:
                while self._execute(rank, block):
                    moved = True
        self._check_all_ended(waiting)
        self._check_all_received()
        self._check_end()
        return self.messages

    def _fault(self, line: int, message: str) -> SimulatorError:
        return SimulatorError(f"{self.algorithm.path}:{line}: {message}")

    def _start(self, rank: int) -> dict[tuple[str, int], Value]:
        """The chunks that *rank* holds before."""
        own, inputs = contribution(rank), self.algorithm.gpus[rank].inputs
        first = rank * inputs if self.algorithm.kind in ("all_gather", "all_to_all") else 0
        return {self._place(rank, ("i", chunk)): Value(first + chunk, own) for chunk in range(inputs)}

    def _place(self, rank: int, place: tuple[str, int]) -> tuple[str, int]:
        """The place in memory: in place, the smaller one of input and output is a part of the other."""
        buffer, chunk = place
        gpu, kind = self.algorithm.gpus[rank], self.algorithm.kind
        if not self.algorithm.in_place or buffer == "s":
            return place
        if buffer == "i" and kind == "all_gather":
            return "i", rank * gpu.inputs + chunk
        if buffer == "o" and kind == "reduce_scatter":
            return "i", rank * (gpu.inputs // self.ranks) + chunk
        return "i", chunk

    def _execute(self, rank: int, block: ThreadBlock) -> bool:
        """Execute the next instruction of *block* if it waits for nothing; return whether it did."""
        ended = self.done[rank, block.number]
        if len(ended) == len(block.instructions):
            return False
        one = block.instructions[len(ended)]
        begin = ended[-1] if ended else 0
        if one.after is not None:
            others = self.done.get((rank, one.after[0]))
            if others is None:
                raise self._fault(one.line, f"rank {rank} waits for thread block {one.after[0]}, which it has not")
            if one.after[1] >= len(others):
                return False
            begin = max(begin, others[one.after[1]])
        arrived: list[Value] = []
        if one.kind in RECEIVES:
            way = self.ways[block.receive, rank, block.channel]
            if not way:
                return False
            message = way.popleft()
            if len(message.values) != one.count:
                raise self._fault(
                    one.line,
                    f"rank {rank} receives {one.count} chunks, but rank {message.sender} sends {len(message.values)} "
                    f"in line {message.line}",
                )
            arrived, begin = message.values, max(begin, message.round)
        ended.append(self._moved(rank, block, one, arrived, begin))
        return True

    def _moved(self, rank: int, block: ThreadBlock, one: Instruction, arrived: list[Value], begin: int) -> int:
        """Move the chunks of instruction *one*; return the round in which it ends."""
        if one.kind == "nop":
            return begin
        memory = self.memory[rank]
        values = arrived or [self._read(rank, one, one.source, place) for place in range(one.count)]
        if one.kind in REDUCES:
            own = one.target if one.kind == "re" else one.source
            values = [
                self._sum(rank, one, value, self._read(rank, one, own, place)) for place, value in enumerate(values)
            ]
        if one.kind in (*KEEPS, "cpy", "re"):
            for place, value in enumerate(values):
                memory[self._place(rank, (one.target[0], one.target[1] + place))] = value
        if one.kind not in SENDS:
            return begin
        if block.send < 0:
            raise self._fault(one.line, f"rank {rank} sends, but thread block {block.number} names no receiver")
        message = Message(rank, block.send, begin + 1, values, one.line)
        self.ways[rank, block.send, block.channel].append(message)
        self.messages.append(message)
        return begin + 1

    def _read(self, rank: int, one: Instruction, first: tuple[str, int], place: int) -> Value:
        where = first[0], first[1] + place
        found = self.memory[rank].get(self._place(rank, where))
        if found is None:
            raise self._fault(one.line, f"rank {rank} takes chunk {where[0]}[{where[1]}], of which it has nothing")
        return found

    def _sum(self, rank: int, one: Instruction, value: Value, other: Value) -> Value:
        if value.part != other.part:
            raise self._fault(one.line, f"rank {rank} adds chunk {value.part} to chunk {other.part}")
        return Value(value.part, value.held + other.held)

    def _check_all_ended(self, blocks: list[tuple[int, ThreadBlock]]) -> None:
        """Raise `SimulatorError` for the first instruction that waits for ever."""
        for rank, block in blocks:
            place = len(self.done[rank, block.number])
            if place == len(block.instructions):
                continue
            one = block.instructions[place]
            chunk = f"{one.target[0]}[{one.target[1]}]"
            if one.after is not None and one.after[1] >= len(self.done[rank, one.after[0]]):
                what = f"with chunk {chunk} for step {one.after[1]} of thread block {one.after[0]}"
            else:
                what = f"for chunk {chunk} from rank {block.receive} on channel {block.channel}"
            raise self._fault(
                one.line, f"deadlock: rank {rank}, thread block {block.number}, step {place} waits {what}, for ever"
            )

    def _check_all_received(self) -> None:
        for (sender, receiver, channel), way in self.ways.items():
            if way:
                part = way[0].values[0].part
                raise self._fault(
                    way[0].line,
                    f"chunk {part} is lost: rank {sender} sends it to rank {receiver} on channel {channel}, which does "
                    "not receive it",
                )

    def _check_end(self) -> None:
        """Raise `SimulatorError` for the first chunk that is wrong at the end."""
        for rank in range(self.ranks):
            for chunk, wanted in self._expected(rank).items():
                found = self.memory[rank].get(self._place(rank, ("o", chunk)))
                if found == wanted:
                    continue
                if found is not None and found.part != wanted.part:
                    what = f"chunk {found.part}"
                else:
                    what = held(found.held if found else 0, wanted.held, self.ranks)
                raise SimulatorError(
                    f"{self.algorithm.path}: {self.algorithm.kind} is wrong: rank {rank} ends with {what} in the place "
                    f"of chunk {wanted.part}"
                )

    def _expected(self, rank: int) -> Mapping[int, Value]:
        """What *rank* must hold after, by chunk of its output."""
        inputs, everyone = self.algorithm.gpus[rank].inputs, sum(map(contribution, range(self.ranks)))
        match self.algorithm.kind:
            case "all_reduce":
                return {chunk: Value(chunk, everyone) for chunk in range(inputs)}
            case "reduce_scatter":
                own = inputs // self.ranks
                return {chunk: Value(rank * own + chunk, everyone) for chunk in range(own)}
            case "all_gather":
                return {chunk: Value(chunk, contribution(chunk // inputs)) for chunk in range(inputs * self.ranks)}
        own = inputs // self.ranks
        return {
            chunk: Value(chunk // own * inputs + rank * own + chunk % own, contribution(chunk // own))
            for chunk in range(inputs)
        }
