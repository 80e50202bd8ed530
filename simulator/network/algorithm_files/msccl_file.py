"""Reading of an algorithm file of MSCCL: its thread blocks and instructions, with the lines that they are from."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat

from clustersim.simulator.network.algorithm_files.chunks import BUFFERS, COLLECTIVES, DIVIDED
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.files import UnreadableFile, read_text

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
