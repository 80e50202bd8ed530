"""A rendezvous identifies one communication for all its partners. A channel is a process group for collectives.

`simulator.schedule.matching` matches ops. A *channel* serves all collectives of one group of an axis on one stream, so
streams do not wait for each other. Tags distinguish messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from clustersim.simulator.analysis.timeline import NO_COMMUNICATION, Integers
from clustersim.simulator.schedule.matching import NONE, CollectiveKey, CopyKey, Matching, MessageKey
from clustersim.simulator.schedule.ops import Op, Recv, Send
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.schedule import Schedule


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
    return _rendezvous_of(schedule, Matching(schedule), rank)


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
    matching = Matching(schedule)
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
    matching = Matching(schedule)
    numbers: dict[MessageRendezvous, int] = {}
    mine = [m for m in _rendezvous_of(schedule, matching, rank) if isinstance(m, MessageRendezvous)]
    for sender in dict.fromkeys(message.sender for message in mine):
        count: Counter[int] = Counter()
        for message in _rendezvous_of(schedule, matching, sender):
            if isinstance(message, MessageRendezvous) and message.sender == sender:
                numbers[message] = count[message.receiver]
                count[message.receiver] += 1
    return {message: numbers[message] for message in mine}
