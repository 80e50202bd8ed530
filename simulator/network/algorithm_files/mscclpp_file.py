"""Reading of an execution plan of MSCCL++ (JSON): the operations of each thread block, with channels and buffers
resolved to ranks.

The format is that of ``ExecutionPlan::Impl::loadExecutionPlan`` (github.com/microsoft/mscclpp,
src/core/executor/execution_plan.cc), the limits those of src/core/include/execution_common.hpp.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from clustersim.simulator.network.algorithm_files.chunks import COLLECTIVES, DIVIDED
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.files import UnreadableFile, read_text
from clustersim.simulator.reading.validation import reason

LARGEST = 64 * 2**20
"""Bytes of a plan at most."""

MOST = 2**16
"""Ranks, chunks and numbers of any kind at most."""

MOST_OPERATIONS, MOST_CHANNELS, MOST_BARRIERS = 64, 16, 16
"""Of a thread block: operations, and channels of one type; of a GPU: barriers (MAX_OPERATION, MAX_CHANNEL and
MAX_DEVICE_SYNCERS of execution_common.hpp)."""

Number = Annotated[int, Field(strict=True, ge=0, le=MOST)]
Buffer = Literal["i", "o", "s"]
ChannelType = Literal["memory", "port", "switch", "none"]
Name = Literal[
    "nop", "barrier", "put", "pws", "pwsf", "get", "copy", "signal", "wait", "flush", "re", "res", "rre", "rres",
    "ppkt", "rppkt", "respkt", "cpkt", "upkt", "repkt", "recpkt", "recspkt", "glres", "gstore", "gstorepkt",
    "rlxsignal", "rlxwait", "pipeline", "sem_acquire", "sem_release",
]  # fmt: skip


class _Part(BaseModel):
    """A part of a plan. Keys that are not read are ignored, as the executor ignores them."""

    model_config = ConfigDict(extra="ignore")


class _Chunks(_Part):
    type: Buffer | None = None
    buffer_id: Number | None = None
    switch_channel_id: Number | None = None
    index: Number
    size: Annotated[Number, Field(ge=1)]


class _Share(_Part):
    tb_id: Number
    tbg_size: Annotated[Number, Field(ge=1)]


class _Iterations(_Part):
    unit_size: Annotated[int, Field(strict=True, ge=1)]
    num_chunks: Annotated[Number, Field(ge=1)]


class _Operation(_Part):
    name: Name
    src_buff: list[_Chunks] = []
    dst_buff: list[_Chunks] = []
    channel_type: ChannelType = "none"
    channel_ids: list[Number] = []
    tbg_info: _Share | None = None
    barrier_id: Number = 0
    num_threadblocks: Number = 1
    semaphore_ids: list[Number] = []
    iter_context: _Iterations | None = None
    ops: list[_Operation] = []


class _BlockChannels(_Part):
    channel_type: ChannelType
    channel_ids: list[Number] = []


class _BufferRefs(_Part):
    access_channel_type: ChannelType
    remote_buffer_ids: list[Number] = []


class _ThreadBlock(_Part):
    id: Number
    ops: list[_Operation] = []
    channels: list[_BlockChannels] = []
    remote_buffer_refs: list[_BufferRefs] = []


class _RankGroup(_Part):
    ranks: list[Number]


class _Channels(_Part):
    channel_type: Literal["memory", "port", "switch"]
    connected_to: list[Number] = []
    buffer_type: Buffer = Field("i", validation_alias=AliasChoices("buffer_type", "buff"))
    """Of switches; ``buff`` in older files."""
    rank_groups: list[_RankGroup] = []


class _RemoteBuffer(_Part):
    rank: Number
    type: Buffer


class _Semaphore(_Part):
    init_value: Number


class _Gpu(_Part):
    id: Number
    input_chunks: Number
    output_chunks: Number
    threadblocks: list[_ThreadBlock]
    channels: list[_Channels] = []
    remote_buffers: list[_RemoteBuffer] = []
    semaphores: list[_Semaphore] = []


class _Plan(_Part):
    collective: str
    inplace: bool
    gpus: Annotated[list[_Gpu], Field(min_length=2, max_length=MOST)]


@dataclass(frozen=True)
class ChunkSpan:
    """*size* chunks of *buffer* from number *first*, on each of *ranks*: one rank, or those behind switches."""

    ranks: tuple[int, ...]
    buffer: str
    first: int
    size: int


@dataclass(frozen=True)
class PlanOperation:
    """An operation of a thread block. *where*: its place in the file.

    *channels*: the semaphores that it signals, or waits for, as (type of channel, number of the GPU's channel).
    *share*: the number of the thread block in its group, and the size of the group. *unit*: bytes of an iteration of a
    pipeline, of the operations *body*, over *chunks*.
    """

    where: str
    name: str
    sources: tuple[ChunkSpan, ...]
    targets: tuple[ChunkSpan, ...]
    channels: tuple[tuple[str, int], ...]
    share: tuple[int, int]
    barrier: tuple[int, int]
    semaphores: tuple[int, ...]
    body: tuple[PlanOperation, ...] = ()
    unit: int = 0
    chunks: int = 0


@dataclass(frozen=True)
class PlanGpu:
    """The thread blocks of a GPU, the ranks that its channels of each type lead to, and the first values of its
    semaphores."""

    blocks: tuple[tuple[PlanOperation, ...], ...]
    peers: Mapping[str, tuple[int, ...]]
    semaphores: tuple[int, ...]


@dataclass(frozen=True)
class PlanFile:
    """What a file says: the collective *kind*, with *inputs* chunks of input for each rank."""

    kind: str
    in_place: bool
    inputs: int
    gpus: tuple[PlanGpu, ...]


def read(path: str) -> PlanFile:
    """Return the plan of the file at *path*. Raises `SimulatorError` with the place of a fault."""
    plan = _parsed(path)
    if plan.collective not in COLLECTIVES:
        raise SimulatorError(f'{path}: collective "{plan.collective}" is not read; there are {", ".join(COLLECTIVES)}')
    kind, ranks = COLLECTIVES[plan.collective], len(plan.gpus)
    inputs = plan.gpus[0].input_chunks
    for number, gpu in enumerate(plan.gpus):
        if gpu.id != number:
            raise SimulatorError(f"{path}: gpus[{number}].id must be {number}, not {gpu.id}")
        if gpu.input_chunks != inputs:
            raise SimulatorError(f"{path}: gpus[{number}].input_chunks is {gpu.input_chunks}, that of gpus[0] {inputs}")
    if not inputs or (kind in DIVIDED and inputs % ranks):
        raise SimulatorError(
            f"{path}: input_chunks is {inputs}, but must be a multiple of the {ranks} ranks, and not 0"
        )
    return PlanFile(kind, plan.inplace, inputs, tuple(_Resolver(path, gpu, ranks).gpu() for gpu in plan.gpus))


def _parsed(path: str) -> _Plan:
    try:
        return _Plan.model_validate(json.loads(read_text(path, LARGEST)))
    except UnreadableFile as error:
        raise SimulatorError(str(error)) from None
    except json.JSONDecodeError as error:
        raise SimulatorError(f"{path}:{error.lineno}:{error.colno}: is no JSON: {error.msg}") from None
    except RecursionError:
        raise SimulatorError(f"{path}: is nested too deeply for an execution plan") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"]).lstrip(".")
        raise SimulatorError(f"{path}: {place or 'the plan'} {reason(first)}") from None


class _Resolver:
    """Resolves the channels and buffers of *gpu* of the file at *path*."""

    def __init__(self, path: str, gpu: _Gpu, ranks: int) -> None:
        self.path, self.given, self.ranks = path, gpu, ranks
        self.peers = {
            kind: tuple(peer for one in gpu.channels if one.channel_type == kind for peer in one.connected_to)
            for kind in ("memory", "port")
        }
        self.switches = [
            (one.buffer_type, tuple(group.ranks))
            for one in gpu.channels
            if one.channel_type == "switch"
            for group in one.rank_groups
        ]

    def gpu(self) -> PlanGpu:
        """Return the GPU with everything resolved."""
        named = [*self.peers["memory"], *self.peers["port"], *(rank for _, group in self.switches for rank in group)]
        named += [buffer.rank for buffer in self.given.remote_buffers]
        if named and max(named) >= self.ranks:
            raise self._fault(f"gpus[{self.given.id}]", f"names rank {max(named)}, but there are {self.ranks}")
        blocks = tuple(map(self._block, self.given.threadblocks))
        return PlanGpu(blocks, self.peers, tuple(one.init_value for one in self.given.semaphores))

    def _fault(self, where: str, message: str) -> SimulatorError:
        return SimulatorError(f"{self.path}: {where}: {message}")

    def _block(self, block: _ThreadBlock) -> tuple[PlanOperation, ...]:
        where = f"gpu {self.given.id}, threadblock {block.id}"
        count = sum(1 + len(one.ops) for one in block.ops)
        if count > MOST_OPERATIONS:
            raise self._fault(where, f"has {count} operations; a thread block of MSCCL++ holds {MOST_OPERATIONS}")
        channels: dict[str, list[int]] = {}
        for one in block.channels:
            channels.setdefault(one.channel_type, []).extend(one.channel_ids)
        for kind, ids in channels.items():
            if len(ids) > MOST_CHANNELS:
                raise self._fault(where, f"has {len(ids)} {kind} channels; a thread block holds {MOST_CHANNELS}")
        buffers: dict[str, list[int]] = {}
        for refs in block.remote_buffer_refs:
            buffers.setdefault(refs.access_channel_type, []).extend(refs.remote_buffer_ids)
        return tuple(self._operations(where, block.ops, channels, buffers))

    def _operations(
        self, where: str, given: Sequence[_Operation], channels: dict[str, list[int]], buffers: dict[str, list[int]]
    ) -> Iterator[PlanOperation]:
        for number, one in enumerate(given):
            here = f"{where}, op {number} ({one.name})"
            body, unit, chunks = tuple[PlanOperation, ...](), 0, 0
            if one.name == "pipeline":
                if one.iter_context is None or any(inner.name == "pipeline" for inner in one.ops):
                    raise self._fault(here, "needs iter_context, and no pipeline inside")
                unit, chunks = one.iter_context.unit_size, one.iter_context.num_chunks
                body = tuple(self._operations(here, one.ops, channels, buffers))
            share = (one.tbg_info.tb_id, one.tbg_info.tbg_size) if one.tbg_info else (0, 1)
            if share[0] >= share[1]:
                raise self._fault(here, f"tbg_info.tb_id is {share[0]} in a group of {share[1]} thread blocks")
            if one.barrier_id >= MOST_BARRIERS or max(one.semaphore_ids, default=-1) >= len(self.given.semaphores):
                raise self._fault(
                    here, f"names a barrier beyond {MOST_BARRIERS}, or a semaphore that the GPU does not have"
                )
            yield PlanOperation(
                here,
                one.name,
                tuple(self._span(here, one, span, channels, buffers) for span in one.src_buff),
                tuple(self._span(here, one, span, channels, buffers) for span in one.dst_buff),
                self._channels(here, one, channels),
                share,
                (one.barrier_id, one.num_threadblocks),
                tuple(one.semaphore_ids),
                body,
                unit,
                chunks,
            )

    def _channels(self, where: str, one: _Operation, channels: dict[str, list[int]]) -> tuple[tuple[str, int], ...]:
        if one.channel_type not in self.peers:
            return ()
        there = channels.get(one.channel_type, [])
        found = [there[place] if place < len(there) else MOST for place in one.channel_ids]
        for place, number in zip(one.channel_ids, found, strict=True):
            if number >= len(self.peers[one.channel_type]):
                raise self._fault(
                    where, f"names {one.channel_type} channel {place}, which its thread block does not have"
                )
        return tuple((one.channel_type, number) for number in found)

    def _span(
        self, where: str, one: _Operation, span: _Chunks, channels: dict[str, list[int]], buffers: dict[str, list[int]]
    ) -> ChunkSpan:
        if span.switch_channel_id is not None:
            there = channels.get("switch", [])
            number = there[span.switch_channel_id] if span.switch_channel_id < len(there) else MOST
            if number >= len(self.switches):
                raise self._fault(where, f"names switch channel {span.switch_channel_id}, which there is not")
            buffer, group = self.switches[number]
            return ChunkSpan(group, buffer, span.index, span.size)
        if span.buffer_id is not None:
            refs = buffers.get(one.channel_type, [])
            number = refs[span.buffer_id] if span.buffer_id < len(refs) else MOST
            if number >= len(self.given.remote_buffers):
                raise self._fault(
                    where,
                    f"names remote buffer {span.buffer_id} over {one.channel_type}, which its thread block has not",
                )
            remote = self.given.remote_buffers[number]
            return ChunkSpan((remote.rank,), remote.type, span.index, span.size)
        if span.type is None:
            raise self._fault(where, "names no buffer: give type, buffer_id or switch_channel_id")
        return ChunkSpan((self.given.id,), span.type, span.index, span.size)
