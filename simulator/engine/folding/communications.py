"""The table of communications: every one that there is, in classes of groups for which the same is asked.

A group class holds the groups of an axis, the messages between two coordinates of it, or the copies of ranks, for one
list of operations. The communications of 12,288 ranks are some forty group classes, each with an array of its ranks. A
communication has a number: that of the first of its group class, plus its place there. A rank takes part in at most
one communication of a group class.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from simulator.hashing import Indices
from simulator.schedule import Collective, Copy, Op, Program, Recv, Schedule, Send
from simulator.schedule.matching import request_of
from simulator.schedule.mesh import Axis

COPIES = "copies"
"""In place of the axis, for copies."""

NONE = -1

_Key = tuple[str, tuple[int, ...], Hashable]
"""(axis, coordinates of sender and receiver, what is asked for, of how many partners)"""


@dataclass(frozen=True, eq=False)
class GroupClass:
    """Communications over *axis*, numbered from *start* on, with the same *ops*: one for each distinct request.

    *ranks*, of shape ``(communications, partners)``, take part: of a message the sender, then the receiver. *ends* are
    the coordinates of these two on the axis.
    """

    axis: str
    ends: tuple[int, ...]
    ops: tuple[Op, ...]
    ranks: Indices
    start: int

    @property
    def numbers(self) -> Indices:
        """The numbers of its communications."""
        return np.arange(self.start, self.start + len(self.ranks))


class CommunicationTable:
    """The communications of *schedule*: collectives axis by axis, then messages and copies."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.program_of = np.array(schedule.program_of, np.int64)
        self._wheres = [_distinct(program) for program in schedule.programs]
        self._ops: dict[_Key, tuple[Op, ...]] = {}
        self._ranks: defaultdict[_Key, list[Indices]] = defaultdict(list)
        self._places = {
            name: (*axis.places(len(self.program_of)), _members(axis)) for name, axis in schedule.mesh.axes.items()
        }
        self._taken: dict[tuple[str, tuple[int, ...]], Indices] = {}
        for name, axis in schedule.mesh.axes.items():
            self._collectives(name, axis)
        for number, found in enumerate(self._wheres):
            for where, ops in found.items():
                self._messages_or_copies(number, where, ops)
        ranks = [_ascending(parts) for parts in self._ranks.values()]
        self._starts = [0, *accumulate(map(len, ranks))]
        keys = zip(self._ranks, ranks, self._starts, strict=False)
        self.group_classes = tuple(GroupClass(*key[:2], self._ops[key], those, start) for key, those, start in keys)

    def __len__(self) -> int:
        return self._starts[-1]

    def group_class(self, number: int) -> GroupClass:
        """The group_class of the communication of that number."""
        return self.group_classes[bisect_right(self._starts, number) - 1]

    @cached_property
    def number_at(self) -> Indices:
        """The communication of each group class that a rank takes part in, or `NONE`: ``(group classes, ranks)``."""
        numbers = np.full((len(self.group_classes), len(self.program_of)), NONE, np.int64)
        for row, group_class in zip(numbers, self.group_classes, strict=True):
            row[group_class.ranks] = group_class.numbers[:, None]
        return numbers

    def number(self, rank: int, op: Op) -> int:
        """That of the communication that *rank* takes part in with *op*."""
        if isinstance(op, Copy):
            return self._one(COPIES, (), rank)
        assert isinstance(op, Collective | Send | Recv)
        if isinstance(op, Collective):
            return self._one(op.over, (), rank)
        own = int(self._places[op.over][1][rank])
        return self._one(op.over, (own, op.peer) if isinstance(op, Send) else (op.peer, own), rank)

    def _one(self, axis: str, ends: tuple[int, ...], rank: int) -> int:
        where = axis, ends
        if where not in self._taken:
            here = [
                number
                for number, group_class in enumerate(self.group_classes)
                if (group_class.axis, group_class.ends) == where
            ]
            self._taken[where] = self.number_at[here].max(axis=0)
        return int(self._taken[where][rank])

    def collectives_of(self, rank: int) -> dict[str, int]:
        """By axis the number of the collectives over it that *rank* takes part in."""
        taken = np.flatnonzero(self.number_at[:, rank] != NONE).tolist()
        own = [(self.group_classes[number], int(self.number_at[number, rank])) for number in taken]
        return {group_class.axis: number for group_class, number in own if isinstance(group_class.ops[0], Collective)}

    def _collectives(self, name: str, axis: Axis) -> None:
        """Groups, group_class by group_class: they ask what the first of their ranks asks."""
        sizes = np.fromiter(map(len, axis.groups), np.int64, len(axis.groups))
        programs = self.program_of[np.fromiter((group[0] for group in axis.groups), np.int64, len(axis.groups))]
        _, first, which = np.unique(sizes * len(self._wheres) + programs, return_index=True, return_inverse=True)
        for kind, number in sorted(enumerate(first.tolist()), key=lambda pair: pair[1]):
            ops = self._wheres[int(programs[number])].get((name,))
            if ops:
                groups = [axis.groups[group] for group in np.flatnonzero(which == kind).tolist()]
                self._add(name, (), ops, np.array(groups, np.int64))

    def _messages_or_copies(self, program: int, where: tuple[Hashable, ...], ops: tuple[Op, ...]) -> None:
        ranks = np.flatnonzero(self.program_of == program)
        match where:
            case ():
                self._add(COPIES, (), ops, ranks[:, None])
            case (str() as axis, int() as peer):
                groups, coordinates, members = self._places[axis]
                for own in np.unique(coordinates[ranks]).tolist():
                    senders = ranks[coordinates[ranks] == own]
                    pairs = np.stack([senders, members[groups[senders], peer]], axis=1)
                    self._add(axis, (own, peer), ops, pairs)

    def _add(self, axis: str, ends: tuple[int, ...], ops: tuple[Op, ...], ranks: Indices) -> None:
        key = axis, ends, (ranks.shape[1], *map(request_of, ops))
        self._ops.setdefault(key, ops)
        self._ranks[key].append(ranks)


def _ascending(parts: Sequence[Indices]) -> Indices:
    """The rows of all *parts* by their first ranks."""
    whole = np.concatenate(parts)
    return whole[np.argsort(whole[:, 0], kind="stable")]


def _members(axis: Axis) -> Indices:
    """By group of *axis* its ranks, filled up with `NONE`."""
    longest = max(map(len, axis.groups), default=0)
    rows = [group if len(group) == longest else (*group, *[NONE] * (longest - len(group))) for group in axis.groups]
    return np.array(rows, np.int64).reshape(len(rows), longest)


def _distinct(program: Program) -> dict[tuple[Hashable, ...], tuple[Op, ...]]:
    """The operations of a program that ask for different things, by axis, by axis and peer, or of copies."""
    found: defaultdict[tuple[Hashable, ...], dict[Hashable, Op]] = defaultdict(dict)
    for op in program.distinct():
        if isinstance(op, Collective):
            found[op.over,].setdefault(request_of(op), op)
        elif isinstance(op, Send):
            found[op.over, op.peer].setdefault(request_of(op), op)
        elif isinstance(op, Copy):
            found[()].setdefault(request_of(op), op)
    return {where: tuple(ops.values()) for where, ops in found.items()}
