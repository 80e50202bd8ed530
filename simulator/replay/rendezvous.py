"""A rendezvous identifies one communication for all its partners. A channel is a process group for collectives. Buffers
hold the messages of a stream.

`simulator.schedule.matching` matches ops. A *channel* serves all collectives of one group of an axis on one stream, so
streams do not wait for each other. Tags distinguish messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from clustersim.simulator.analysis.timeline import NO_COMMUNICATION, Integers
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.matching import NONE, CollectiveKey, CopyKey, Matching, MessageKey
from clustersim.simulator.schedule.ops import Collective, Copy, Op, Recv, Send
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.schedule import Schedule

if TYPE_CHECKING:
    import torch


class Channel(NamedTuple):
    """Group number *group* of *axis*, on *stream*."""

    axis: str
    group: int
    stream: str


class CollectiveRendezvous(NamedTuple):
    """Collective number *number* on its *channel*."""

    channel: Channel
    number: int


class MessageRendezvous(NamedTuple):
    """Message number *number* of one *action* from rank *sender* to rank *receiver*, over *axis*."""

    sender: int
    receiver: int
    axis: str
    action: Action | None
    number: int


Rendezvous = CollectiveRendezvous | MessageRendezvous


def rendezvous_of(schedule: Schedule, rank: int) -> list[Rendezvous | None]:
    """Return the rendezvous of each op of *rank*, by its place in the program; None for an op without partners."""
    return _rendezvous_of(schedule, schedule.matching, rank)


def _rendezvous_of(schedule: Schedule, matching: Matching, rank: int) -> list[Rendezvous | None]:
    program = schedule.program_of[rank]
    requests, numbers, keys = matching.requests[program], matching.request[program], matching.key[program]
    return [
        None if key == NONE else _rendezvous(schedule, rank, requests[number], matching.meaning(key))
        for number, key in zip(numbers.tolist(), keys.tolist(), strict=True)
    ]


def communications(schedule: Schedule) -> list[Integers]:
    """Return, by rank, the communication number of each op, by its place in the program; `NO_COMMUNICATION` for others.

    Partners have the same number. Numbers are those of one step, from 0 without gaps.
    """
    numbers: dict[Rendezvous, int] = {}
    of_rank = [rendezvous_of(schedule, rank) for rank in range(schedule.mesh.world_size)]
    return [
        np.array([NO_COMMUNICATION if m is None else numbers.setdefault(m, len(numbers)) for m in each], np.int64)
        for each in of_rank
    ]


def _rendezvous(
    schedule: Schedule, rank: int, op: Op, meaning: CollectiveKey | MessageKey | CopyKey
) -> Rendezvous | None:
    if isinstance(meaning, CopyKey):
        return None
    axis = schedule.mesh.axes[meaning.axis]
    place = axis.place(rank)
    assert place is not None, f"rank {rank} is not on {meaning.axis}: check() reports it"
    group = axis.groups[place[0]]
    if isinstance(meaning, CollectiveKey):
        channel = Channel(meaning.axis, place[0], meaning.stream)
        return CollectiveRendezvous(channel, meaning.number) if len(group) > 1 else None
    assert isinstance(op, Send | Recv)
    pair = (rank, group[op.peer]) if isinstance(op, Send) else (group[op.peer], rank)
    return MessageRendezvous(*pair, meaning.axis, meaning.action, meaning.number)


def _every(schedule: Schedule) -> Iterator[Rendezvous]:
    """The rendezvous of all ranks, rank after rank."""
    matching = schedule.matching
    for rank in range(schedule.mesh.world_size):
        yield from filter(None, _rendezvous_of(schedule, matching, rank))


def channels(schedule: Schedule) -> dict[Channel, tuple[int, ...]]:
    """Return the ranks of every channel, in the same order in every process."""
    found = dict.fromkeys(
        rendezvous.channel for rendezvous in _every(schedule) if isinstance(rendezvous, CollectiveRendezvous)
    )
    return {channel: schedule.mesh.axes[channel.axis].groups[channel.group] for channel in found}


def pairs(schedule: Schedule) -> list[tuple[int, int]]:
    """Return (sender, receiver) of all messages, each pair and direction once, in the same order in every process."""
    messages = (rendezvous for rendezvous in _every(schedule) if isinstance(rendezvous, MessageRendezvous))
    return list(dict.fromkeys((message.sender, message.receiver) for message in messages))


def tags(schedule: Schedule, rank: int) -> Mapping[MessageRendezvous, int]:
    """Return the tags of all messages that *rank* sends or receives, numbered by the sender for each receiver."""
    matching = schedule.matching
    numbers: dict[MessageRendezvous, int] = {}
    mine = [m for m in _rendezvous_of(schedule, matching, rank) if isinstance(m, MessageRendezvous)]
    for sender in dict.fromkeys(message.sender for message in mine):
        count: Counter[int] = Counter()
        for message in _rendezvous_of(schedule, matching, sender):
            if isinstance(message, MessageRendezvous) and message.sender == sender:
                numbers[message] = count[message.receiver]
                count[message.receiver] += 1
    return {message: numbers[message] for message in mine}


ELEMENT = 4
"""Bytes of an element, fp32."""

COPIES = 2
"""Gloo reduces in memory of its own, as large as the vector."""

MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class MessageBuffers:
    """Data are sent from *source* and received into *sink*.

    *host* is memory of the host for copies from and to a GPU.
    """

    source: torch.Tensor
    sink: torch.Tensor
    host: torch.Tensor | None = None


def elements(nbytes: float, parts: int = 1) -> int:
    """Return the elements of each of *parts* equal parts of a vector of *nbytes*: rounded up, at least one.

    >>> elements(10.0), elements(0.0), elements(100.0, 3)
    (3, 1, 9)
    """
    return max(1, ceil(nbytes / ELEMENT / parts))


def required_elements(op: Op, members: int) -> tuple[int, int]:
    """Return the elements of source and of sink that *op* requires in a group of *members* ranks, for any root."""
    if isinstance(op, Collective):
        return _vectors(op, elements(op.nbytes), elements(op.nbytes, members), members)
    if isinstance(op, Send | Recv | Copy):
        n = elements(op.nbytes)
        return 0 if isinstance(op, Recv) else n, n if isinstance(op, Recv) else 0
    return 0, 0


def _vectors(op: Collective, n: int, m: int, members: int) -> tuple[int, int]:
    """The elements of source and sink if the full vector has *n* and a part of it *m*."""
    if sent_directly(op):
        return n, n if op.kind == "broadcast" else n * (members - 1)
    whole = m * members
    parted = {"gather": (m, whole), "scatter": (whole, m), "all_to_all": (whole, whole)}
    parted |= {"all_gather": parted["gather"], "reduce_scatter": parted["scatter"]}
    return parted.get(op.kind, (n, 0))


def sent_directly(op: Collective) -> bool:
    """Whether *op* is executed as messages, because the schedule requests a direct algorithm that no library has."""
    return op.algorithm == "direct" and op.kind in ("broadcast", "reduce")


def longest_buffers(schedule: Schedule, rank: int, ops: Iterable[Op]) -> tuple[int, int]:
    """Return the elements of source and sink that suffice for each of *ops* of *rank* in turn."""
    sizes = [required_elements(op, len(members(schedule, rank, op))) for op in ops]
    return max((source for source, _ in sizes), default=0), max((sink for _, sink in sizes), default=0)


def host_elements(ops: Iterable[Op]) -> int:
    """Return the elements of host memory that the copies among *ops* require."""
    return max((elements(op.nbytes) for op in ops if isinstance(op, Copy)), default=0)


def members(schedule: Schedule, rank: int, op: Op) -> Sequence[int]:
    """Return the group of *rank* on the axis of *op*; (rank,) for an op without an axis."""
    if not isinstance(op, Collective | Send | Recv):
        return (rank,)
    axis = schedule.mesh.axes[op.over]
    place = axis.place(rank)
    assert place is not None, f"rank {rank} is not on {op.over}: check() reports it"
    return axis.groups[place[0]]


def total_bytes(schedule: Schedule) -> float:
    """Return the bytes of the buffers of all ranks together."""
    return float(
        ELEMENT
        * sum(
            sum(longest_buffers(schedule, rank, ops)) + host_elements(ops)
            for rank in range(schedule.mesh.world_size)
            for ops in schedule.program(rank).streams().values()
        )
    )


def available_bytes() -> float:
    """Return the bytes available without swapping (proc(5), MemAvailable); infinite if unknown."""
    if not MEMINFO.exists():
        return float("inf")
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text(encoding="ascii").splitlines())
    return 1024.0 * int(lines["MemAvailable"].split()[0]) if "MemAvailable" in lines else float("inf")


def fitting_scale(schedule: Schedule, available: float) -> float:
    """Return the factor on all communicated bytes with which a replay takes at most half of *available* bytes.

    It is 1, or a half of it, a quarter ...
    """
    factor, needed = 1.0, COPIES * total_bytes(schedule)
    while factor * needed > available / 2:
        factor /= 2
    return factor
