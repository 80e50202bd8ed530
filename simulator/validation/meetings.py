"""A meeting is one communication as its partners tell it from all others; channels are what meetings need.

The n-th collective over an axis on a stream meets the n-th of each member, a Send the Recv of the same axis, pair and
action (`simulator.schedule`). A *channel* is a process group for all collectives of one group of an axis on one stream,
so that streams do not wait for each other; messages are told apart by tags.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from simulator.order import Action
from simulator.schedule import Collective, Op, Recv, Schedule, Send
from simulator.timeline import NO_COMMUNICATION, Integers


class Channel(NamedTuple):
    """Group number *group* of *axis*, on *stream*."""

    axis: str
    group: int
    stream: str


class Gathering(NamedTuple):
    """The collective that is number *number* on its *channel*."""

    channel: Channel
    number: int


class Message(NamedTuple):
    """From rank *sender* to rank *receiver*, over *axis*: of those of one *action* number *number*."""

    sender: int
    receiver: int
    axis: str
    action: Action | None
    number: int


Meeting = Gathering | Message


def meetings(schedule: Schedule, rank: int) -> list[Meeting | None]:
    """What each op of *rank* takes part in, by its place in the program; None where it needs no partner."""
    counts: Counter[object] = Counter()
    found: list[Meeting | None] = []
    for op in schedule.program(rank).ops:
        name = _name(schedule, rank, op)
        found.append(_numbered(name, counts[name]) if name else None)
        counts[name] += 1
    return found


def communications(schedule: Schedule) -> list[Integers]:
    """By rank the number of the communication of each op, by its place in the program; `NO_COMMUNICATION` for others.

    Partners have the same number; numbers are those of one step, from 0 without gaps.
    """
    numbers: dict[Meeting, int] = {}
    of_rank = [meetings(schedule, rank) for rank in range(schedule.mesh.world_size)]
    return [
        np.array([NO_COMMUNICATION if m is None else numbers.setdefault(m, len(numbers)) for m in each], np.int64)
        for each in of_rank
    ]


_Pair = tuple[int, int, str, Action | None]


def _name(schedule: Schedule, rank: int, op: Op) -> Channel | _Pair | None:
    if not isinstance(op, Collective | Send | Recv):
        return None
    axis = schedule.mesh.axes[op.over]
    place = axis.place(rank)
    assert place is not None, f"rank {rank} is not on {op.over}: Schedule.check() would have told"
    if isinstance(op, Collective):
        return Channel(op.over, place[0], op.stream) if len(axis.groups[place[0]]) > 1 else None
    peer = axis.groups[place[0]][op.peer]
    return (*((rank, peer) if isinstance(op, Send) else (peer, rank)), op.over, op.action)


def _numbered(name: Channel | _Pair, number: int) -> Meeting:
    return Gathering(name, number) if isinstance(name, Channel) else Message(*name, number)


def channels(schedule: Schedule) -> dict[Channel, tuple[int, ...]]:
    """The ranks of every channel; the same order in every process."""
    found: dict[Channel, tuple[int, ...]] = {}
    for rank in range(schedule.mesh.world_size):
        for meeting in meetings(schedule, rank):
            if isinstance(meeting, Gathering):
                found[meeting.channel] = schedule.mesh.axes[meeting.channel.axis].groups[meeting.channel.group]
    return found


def pairs(schedule: Schedule) -> list[tuple[int, int]]:
    """(sender, receiver) of all messages, each pair and direction once; the same order in every process."""
    every = (m for rank in range(schedule.mesh.world_size) for m in meetings(schedule, rank) if isinstance(m, Message))
    return list(dict.fromkeys((message.sender, message.receiver) for message in every))


def tags(schedule: Schedule, rank: int) -> Mapping[Message, int]:
    """The tags of all messages that *rank* sends or receives: numbered along each pair and direction by the sender."""
    numbers: dict[Message, int] = {}
    mine = [m for m in meetings(schedule, rank) if isinstance(m, Message)]
    for sender in dict.fromkeys(message.sender for message in mine):
        count: Counter[int] = Counter()
        for message in meetings(schedule, sender):
            if isinstance(message, Message) and message.sender == sender:
                numbers[message] = count[message.receiver]
                count[message.receiver] += 1
    return {message: numbers[message] for message in mine}
