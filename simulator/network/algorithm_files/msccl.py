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
from dataclasses import dataclass

from clustersim.simulator.network.algorithm_files.chunks import Value, Vectors
from clustersim.simulator.network.algorithm_files.msccl_file import (
    KEEPS,
    RECEIVES,
    REDUCES,
    SENDS,
    Instruction,
    Reader,
    ThreadBlock,
)
from clustersim.simulator.network.algorithm_files.rounds import ChunkTraffic
from clustersim.simulator.reading.errors import SimulatorError


@dataclass
class Message:
    """Chunks on their way from *sender* to *receiver* in *round*, sent in *line* of the file."""

    sender: int
    receiver: int
    round: int
    values: list[Value]
    line: int


class MscclProgram:
    """The program of the file at *path*, which is proved when it is made.

    Raises `SimulatorError` with the line, the chunk and the rank of a fault.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.kind, in_place, self.gpus = Reader(path).read()
        self.vectors = Vectors(self.kind, in_place, len(self.gpus), self.gpus[0].inputs)
        self.traffic = ChunkTraffic(self.vectors.parts)
        for message in _Execution(self).run():
            self.traffic.add(message.round, message.sender, message.receiver, len(message.values))

    @property
    def thread_blocks(self) -> int:
        """The thread blocks of one GPU, at most."""
        return max(len(gpu.blocks) for gpu in self.gpus)


class _Execution:
    """Executes an algorithm on symbolic chunks. A send does not wait for its receive."""

    def __init__(self, program: MscclProgram) -> None:
        self.program, self.ranks = program, len(program.gpus)
        self.memory = [program.vectors.start(rank) for rank in range(self.ranks)]
        self.ways: defaultdict[tuple[int, int, int], deque[Message]] = defaultdict(deque)
        self.messages: list[Message] = []
        self.done: dict[tuple[int, int], list[int]] = {
            (rank, number): [] for rank, gpu in enumerate(program.gpus) for number in gpu.blocks
        }
        """By rank and thread block: the round in which each ended instruction ended."""

    def run(self) -> list[Message]:
        """Return all messages. Raises `SimulatorError` for the first fault."""
        waiting = [(rank, block) for rank, gpu in enumerate(self.program.gpus) for block in gpu.blocks.values()]
        moved = True
        while moved:
            moved = False
            for rank, block in waiting:
                while self._execute(rank, block):
                    moved = True
        self._check_all_ended(waiting)
        self._check_all_received()
        if fault := self.program.vectors.fault(lambda rank, place: self.memory[rank].get(place)):
            raise SimulatorError(f"{self.program.path}: {fault}")
        return self.messages

    def _fault(self, line: int, message: str) -> SimulatorError:
        return SimulatorError(f"{self.program.path}:{line}: {message}")

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
                memory[self.program.vectors.place(rank, (one.target[0], one.target[1] + place))] = value
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
        found = self.memory[rank].get(self.program.vectors.place(rank, where))
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
