"""The table of all communications of a schedule, in classes of groups with the same requests.

A group class has either groups of an axis, or the messages between two coordinates of an axis, or the copies of ranks;
all of them have the same list of ops. The communications of 12,288 ranks are some forty group classes, each with an
array of ranks. Communications are numbered, one group class after the other. A rank takes part in at most one
communication of a group class.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from clustersim.simulator.hardware.hashing import Indices, distinct
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.schedule.matching import request_of
from clustersim.simulator.schedule.mesh import Axis
from clustersim.simulator.schedule.ops import Collective, Copy, Op, Recv, Send
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule

COPIES = "copies"
"""Used as the name of the axis of copies."""

NONE = -1

_Key = tuple[str, tuple[int, ...], Hashable]
"""(axis, coordinates of sender and receiver, number of partners and requests)"""


@dataclass(frozen=True, eq=False)
class GroupClass:
    """Communications over *axis* with the same *ops*, numbered from *start* on.

    *ops* has one op for each distinct request. *ranks*, of shape ``(communications, partners)``: the partners, of a
    message the sender, then the receiver. *ends*: the coordinates of sender and receiver on the axis; empty for
    collectives and copies.
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
    """The communications of *schedule*: the collectives of one axis after the other, then messages and copies."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.program_of = schedule.program_numbers
        self._distinct_ops = [_distinct(program) for program in schedule.programs]
        self._ops: dict[_Key, tuple[Op, ...]] = {}
        self._ranks: defaultdict[_Key, list[Indices]] = defaultdict(list)
        self._places = {
            name: (*axis.places(len(self.program_of)), axis.members) for name, axis in schedule.mesh.axes.items()
        }
        self._number_of: dict[tuple[str, tuple[int, ...]], NDArray[np.int32]] = {}
        for name, axis in schedule.mesh.axes.items():
            self._collectives(name, axis)
        for number, found in enumerate(self._distinct_ops):
            self._messages_and_copies(number, found)
        ranks = [_ascending(parts) for parts in self._ranks.values()]
        self._starts = [0, *accumulate(map(len, ranks))]
        keys = zip(self._ranks, ranks, self._starts, strict=False)
        self.group_classes = tuple(GroupClass(*key[:2], self._ops[key], those, start) for key, those, start in keys)

    def reduced(self, rows: Sequence[Indices]) -> CommunicationTable:
        """The table with *rows* alone of each of its group classes, numbered anew."""
        other = copy(self)
        other._number_of = {}
        other._starts = [0, *accumulate(map(len, rows))]
        parts = zip(self.group_classes, rows, other._starts, strict=False)
        other.group_classes = tuple(replace(one, ranks=one.ranks[own], start=start) for one, own, start in parts)
        return other

    def __len__(self) -> int:
        return self._starts[-1]

    def group_class(self, number: int) -> GroupClass:
        """The group class of communication *number*."""
        return self.group_classes[bisect_right(self._starts, number) - 1]

    def number(self, rank: int, op: Op) -> int:
        """The number of the communication in which *rank* takes part by *op*."""
        if isinstance(op, Copy):
            return self._number(COPIES, (), rank)
        assert isinstance(op, Collective | Send | Recv)
        if isinstance(op, Collective):
            return self._number(op.over, (), rank)
        own = int(self._places[op.over][1][rank])
        return self._number(op.over, (own, op.peer) if isinstance(op, Send) else (op.peer, own), rank)

    def _number(self, axis: str, ends: tuple[int, ...], rank: int) -> int:
        """The number of the communication over *axis*, between the coordinates *ends*, in which *rank* takes part."""
        over = axis, ends
        if over not in self._number_of:
            numbers = np.full(len(self.program_of), NONE, np.int32)
            for one in self.group_classes:
                if (one.axis, one.ends) == over:
                    numbers[one.ranks] = one.numbers[:, None]
            self._number_of[over] = numbers
        return int(self._number_of[over][rank])

    def _collectives(self, name: str, axis: Axis) -> None:
        """Add the groups of an axis by group class. All members of a group have the requests of its first rank."""
        if not len(axis.groups):
            return
        sizes = axis.lengths
        programs = self.program_of[axis.members[:, 0]]
        _, first, which = np.unique(sizes * len(self._distinct_ops) + programs, return_index=True, return_inverse=True)
        for kind, number in sorted(enumerate(first.tolist()), key=lambda pair: pair[1]):
            ops = self._distinct_ops[int(programs[number])].get((name,))
            if ops:
                groups = np.flatnonzero(which == kind)
                self._add(name, (), ops, axis.members[groups, : sizes[groups[0]]])

    def _messages_and_copies(self, program: int, found: Mapping[tuple[Hashable, ...], tuple[Op, ...]]) -> None:
        """Add the messages and copies *found* (by a key of `_distinct`) of the ranks of *program*."""
        ranks = self.schedule.ranks_of(program)
        for over, ops in found.items():
            match over:
                case ():
                    self._add(COPIES, (), ops, ranks[:, None])
                case (str() as axis, int() as peer):
                    groups, coordinates, members = self._places[axis]
                    at = coordinates[ranks]
                    for own in distinct(at).tolist():
                        senders = ranks[at == own]
                        pairs = np.stack([senders, members[groups[senders], peer]], axis=1)
                        self._add(axis, (own, peer), ops, pairs)

    def _add(self, axis: str, ends: tuple[int, ...], ops: tuple[Op, ...], ranks: Indices) -> None:
        key = axis, ends, (ranks.shape[1], *map(request_of, ops))
        self._ops.setdefault(key, ops)
        self._ranks[key].append(ranks)


def _ascending(parts: Sequence[Indices]) -> Indices:
    """The rows of all *parts*, in order of their first ranks."""
    whole = np.concatenate(parts) if len(parts) > 1 else parts[0]
    first = whole[:, 0]
    return whole if (first[1:] >= first[:-1]).all() else whole[np.argsort(first, kind="stable")]


def _distinct(program: Program) -> dict[tuple[Hashable, ...], tuple[Op, ...]]:
    """The ops of a program with distinct requests: by (axis,), by (axis, peer) of sends, by () of copies."""
    found: defaultdict[tuple[Hashable, ...], dict[Hashable, Op]] = defaultdict(dict)
    for op in program.distinct():
        if isinstance(op, Collective):
            found[op.over,].setdefault(request_of(op), op)
        elif isinstance(op, Send):
            found[op.over, op.peer].setdefault(request_of(op), op)
        elif isinstance(op, Copy):
            found[()].setdefault(request_of(op), op)
    return {over: tuple(ops.values()) for over, ops in found.items()}
