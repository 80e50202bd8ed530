"""Algorithm files of MSCCL as collectives: an XML file with the instructions of every thread block of every GPU, with
the lines that they are from.

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
from dataclasses import field
from xml.parsers import expat

from clustersim.simulator.network.algorithm_files.chunks import (
    BUFFERS,
    COLLECTIVES,
    DIVIDED,
    ChunkTraffic,
    Value,
    Vectors,
)
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.files import UnreadableFile, read_text


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


LARGEST = 16 * 2**20
"""Bytes of a file at most."""

MOST = 2**16
"""Chunks, ranks, thread blocks and instructions of one at most; files of MSCCL have hundreds."""

MOST_CHANNELS = 64
"""Channels of NCCL (MAXCHANNELS, NCCL src/include/device.h, 2.22)."""

RECEIVES, SENDS, REDUCES = ("r", "rcs", "rrs", "rrc", "rrcs"), ("s", "rcs", "rrs", "rrcs"), ("rrs", "rrc", "rrcs", "re")
TYPES = (*RECEIVES, "s", "re", "cpy", "nop")
"""Instructions: receive, copy, reduce, send in one or alone; local reduction and copy; nothing."""

KEEPS = ("r", "rcs", "rrc", "rrcs")
"""Instructions that write what arrives, or its sum, to their target."""


@dataclass(frozen=True)
class Instruction:
    """One instruction of *line* of the file: *kind* of `TYPES`, *count* chunks from *source* to *target*.

    *source* and *target*: buffer and first chunk. *after*: the thread block and instruction that it waits for.
    """

    line: int
    kind: str
    source: tuple[str, int]
    target: tuple[str, int]
    count: int
    after: tuple[int, int] | None


@dataclass
class ThreadBlock:
    """The instructions of a thread block, which sends to rank *send* and receives from rank *receive*, if not -1."""

    number: int
    send: int
    receive: int
    channel: int
    instructions: list[Instruction] = field(default_factory=list)


@dataclass
class Gpu:
    """The chunks of the input and output of one GPU, and its thread blocks by number."""

    inputs: int
    outputs: int
    blocks: dict[int, ThreadBlock] = field(default_factory=dict)


class Reader:
    """Reads the file at *path*."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._begin
        self.parser.EntityDeclHandler = self._entity
        self.kind, self.in_place, self.wanted = "", False, 0
        self.gpus: dict[int, Gpu] = {}
        self._gpu: Gpu | None = None
        self._block: ThreadBlock | None = None

    def read(self) -> tuple[str, bool, list[Gpu]]:
        """Return the collective, whether its input is its output, and the GPUs in order."""
        try:
            self.parser.Parse(read_text(self.path, LARGEST), True)
        except UnreadableFile as error:
            raise SimulatorError(str(error)) from None
        except expat.ExpatError as error:
            raise SimulatorError(
                f"{self.path}:{error.lineno}: is no XML: {expat.errors.messages[error.code]}"
            ) from None
        if not self.kind:
            raise self._fault("has no algo; an algorithm file of MSCCL begins with <algo>")
        if sorted(self.gpus) != list(range(self.wanted)) or not self.gpus:
            raise self._fault(f"ngpus is {self.wanted}, but there are GPUs {', '.join(map(str, sorted(self.gpus)))}")
        gpus = [self.gpus[number] for number in range(self.wanted)]
        if len({(gpu.inputs, gpu.outputs) for gpu in gpus}) > 1:
            raise self._fault("the GPUs differ in i_chunks or o_chunks")
        if self.kind in DIVIDED and gpus[0].inputs % len(gpus):
            raise self._fault(f"i_chunks is {gpus[0].inputs}, which is no multiple of the {len(gpus)} GPUs")
        return self.kind, self.in_place, gpus

    def _fault(self, message: str) -> SimulatorError:
        return SimulatorError(f"{self.path}:{self.parser.CurrentLineNumber}: {message}")

    def _entity(self, *_: object) -> None:
        raise self._fault("declares an entity, which no algorithm file needs")

    def _begin(self, name: str, given: dict[str, str]) -> None:
        match name:
            case "algo":
                self._algo(given)
            case "gpu":
                number = self._number(given, "id")
                if number in self.gpus:
                    raise self._fault(f"gpu {number} stands twice")
                self._gpu = self.gpus[number] = Gpu(
                    self._number(given, "i_chunks", least=1), self._number(given, "o_chunks")
                )
            case "tb" if self._gpu is not None:
                number = self._number(given, "id")
                ends = self._number(given, "send", -1), self._number(given, "recv", -1)
                channel = self._number(given, "chan", 0)
                if channel >= MOST_CHANNELS:
                    raise self._fault(f"chan is {channel}, but NCCL has {MOST_CHANNELS} channels, from 0")
                self._block = self._gpu.blocks[number] = ThreadBlock(number, *ends, channel)
                for rank in ends:
                    if self._gpu is self.gpus.get(rank):
                        raise self._fault(f"rank {rank} sends to itself or receives from itself; take cpy")
                    if rank >= self.wanted:
                        raise self._fault(f"names rank {rank}, but there are {self.wanted}")
            case "step" if self._block is not None:
                self._block.instructions.append(self._instruction(given))
            case _:
                raise self._fault(f"<{name}> has no place here; algo holds gpu, gpu holds tb, tb holds step")

    def _algo(self, given: dict[str, str]) -> None:
        name = given.get("coll", "")
        if name not in COLLECTIVES:
            raise self._fault(f'coll "{name}" is not read; there are {", ".join(COLLECTIVES)}')
        self.kind, self.wanted = COLLECTIVES[name], self._number(given, "ngpus", least=2)
        self.in_place = bool(self._number(given, "inplace", 0))

    def _instruction(self, given: dict[str, str]) -> Instruction:
        kind = given.get("type", "")
        if kind not in TYPES:
            raise self._fault(f'type "{kind}" is no instruction; there are {", ".join(TYPES)}')
        source, target = self._place(given, "src"), self._place(given, "dst")
        block, step = self._number(given, "depid", -1), self._number(given, "deps", -1)
        if block >= 0 > step:
            raise self._fault(f"deps is required beside depid {block}")
        after = None if block < 0 else (block, step)
        return Instruction(self.parser.CurrentLineNumber, kind, source, target, self._number(given, "cnt", 1, 1), after)

    def _place(self, given: dict[str, str], end: str) -> tuple[str, int]:
        buffer = given.get(f"{end}buf", "i")
        if buffer not in BUFFERS:
            raise self._fault(f'{end}buf "{buffer}" is no buffer; there are {", ".join(BUFFERS)}')
        return buffer, self._number(given, f"{end}off", 0)

    def _number(self, given: dict[str, str], key: str, default: int | None = None, least: int = 0) -> int:
        """The number at *key*, from *least* (or a *default* below it) to `MOST`."""
        if key not in given and default is not None:
            return default
        try:
            found = int(given[key])
        except KeyError:
            raise self._fault(f"{key} is required") from None
        except ValueError:
            raise self._fault(f'{key} must be a whole number, not "{given[key]}"') from None
        if found != default and not least <= found <= MOST:
            raise self._fault(f"{key} must be {least} to {MOST:,}, not {found}")
        return found
