"""Matching: which op meets which.

This module is the one owner of the rule. Partners of a communication find each other by a *key*:

- The n-th collective over an axis on a stream meets the n-th collective over that axis on the stream of the same name
  of every other member of the group.
- The n-th `Send` of an action to a peer meets the n-th `Recv` of that action from the sender, on the same axis. The
  streams may differ.
- A `Copy` has no partner: its key is its own.

Ops are counted in order of the program. Training step s meets training step s: keys do not count steps.
Partners must also ask the same (kind, bytes, root, algorithm): `simulator.schedule.check` reports it where they do not.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.schedule import Schedule
from simulator.schedule.ops import Collective, Copy, Op, Recv, Send
from simulator.schedule.order import PLACEHOLDER, Action
from simulator.schedule.program import Program

Integers = npt.NDArray[np.int64]

NONE = -1
"""In place of a key and of a request, for an op that is no communication."""

_NO_MICRO_BATCH = -2
"""In place of the micro-batch of an action that has none; `PLACEHOLDER` is taken by templates."""

Request = Hashable
"""What tells the plans of two operations between the same partners apart."""


class CollectiveKey(NamedTuple):
    """Number *number* of the collectives over *axis* on *stream*."""

    axis: str
    stream: str
    number: int


class MessageKey(NamedTuple):
    """Number *number* of the messages of *action* over *axis* between a sender and a receiver."""

    axis: str
    action: Action | None
    number: int


class CopyKey(NamedTuple):
    """Number *number* of the copies of a rank."""

    number: int


class Matching:
    """The keys and the requests of all programs of *schedule*.

    By number of a program: *requests*, one op (as its template writes it) for each distinct request; *request*, by op
    the index of its request; *key*, by op its key; both `NONE` for an op that is no communication. Two ops have the
    same request if they ask the same of the same partners: same kind of op, axis, peer, bytes, root, algorithm,
    target, buffering. Ops that meet have equal keys, and no other op of the same program has that key in the same group
    (collectives), between the same sender and receiver (messages) or on the same rank (copies). Keys are numbered from
    0 over all programs, *keys* in all.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.requests: list[tuple[Op, ...]] = []
        self.request: list[Integers] = []
        self._lanes: dict[_Lane, int] = {}
        rows = [np.empty((3, 0), np.int64)]
        for program in schedule.programs:
            requests, request = _requests(program)
            self.requests.append(requests)
            self.request.append(request)
            rows.append(self._rows(program, np.flatnonzero(request != NONE)))
        lane, stamp, number = meanings = np.concatenate(rows, axis=1)
        packed = _packed(_packed(lane, stamp - _NO_MICRO_BATCH), number)
        _, first, keys = np.unique(packed, return_index=True, return_inverse=True)
        self.keys = len(first)
        self._meaning, self._named = meanings[:, first], list(self._lanes)
        self.key: list[Integers] = []
        for request, own in zip(
            self.request, np.split(keys, np.cumsum([len(row[0]) for row in rows[1:]])), strict=False
        ):
            key = np.full(len(request), NONE, np.int64)
            key[request != NONE] = own
            self.key.append(key)

    def meaning(self, key: int) -> CollectiveKey | MessageKey | CopyKey:
        """What *key* stands for."""
        lane, stamp, number = self._meaning[:, key].tolist()
        what, axis, third = self._named[lane]
        if what is Copy:
            return CopyKey(number)
        if what is Collective:
            return CollectiveKey(axis, third, number)
        micro_batch = None if stamp == _NO_MICRO_BATCH else stamp
        return MessageKey(axis, Action(third[0], third[1], micro_batch) if third else None, number)

    def _rows(self, program: Program, communications: Integers) -> Integers:
        """By communication: its lane, its micro-batch, and its number among those of the same counter."""
        counters: dict[Hashable, int] = {}
        columns = []
        for op in _template_ops(program):
            lane, micro_batch, counter = _place(op)
            place = NONE if lane is None else self._lanes.setdefault(lane, len(self._lanes))
            columns.append((place, micro_batch, counters.setdefault(counter, len(counters))))
        ops = program.templated
        of_template = np.array(columns, np.int64).reshape(-1, 3).T
        lanes, written, counted = of_template[:, ops.places[communications]]
        block = np.searchsorted(ops.starts, communications, "right") - 1
        stamps = np.where(written == PLACEHOLDER, ops.micro_batches[block], written)
        return np.stack([lanes, stamps, _ordinals(_packed(counted, stamps - _NO_MICRO_BATCH))])


_Lane = tuple[type[Op], str, Any]
"""Kind of op, axis, and what partners have in common: a stream, or an action without its micro-batch."""


def _place(op: Op) -> tuple[_Lane | None, int, Hashable]:
    """The lane, the micro-batch and the counter of *op*; ops of one counter and micro-batch are counted together."""
    lane: _Lane
    match op:
        case Collective():
            lane = Collective, op.over, op.stream
            return lane, _NO_MICRO_BATCH, lane
        case Send() | Recv():
            lane = Send, op.over, op.action and op.action[:2]
            stamp = op.action.micro_batch if op.action else None
            return lane, _NO_MICRO_BATCH if stamp is None else stamp, (lane, op.peer, type(op))
        case Copy():
            lane = Copy, "", ""
            return lane, _NO_MICRO_BATCH, lane
    return None, _NO_MICRO_BATCH, None


def request_of(op: Op) -> Request:
    """What tells the plans of two operations between the same partners apart."""
    if isinstance(op, Collective):
        return op.over, op.kind, op.nbytes, op.root, op.algorithm, op.per_peer
    if isinstance(op, Copy):
        return op.nbytes, op.to
    assert isinstance(op, Send | Recv)
    return op.nbytes


def _requests(program: Program) -> tuple[tuple[Op, ...], Integers]:
    found: dict[Hashable, int] = {}
    requests: list[Op] = []
    numbers = []
    for op in _template_ops(program):
        number = NONE
        if isinstance(op, Collective | Send | Recv | Copy):
            ends = () if isinstance(op, Collective | Copy) else (op.over, op.peer, isinstance(op, Send) and op.buffered)
            number = found.setdefault((type(op), request_of(op), ends), len(found))
            if number == len(requests):
                requests.append(op)
        numbers.append(number)
    return tuple(requests), np.array(numbers, np.int64)[program.templated.places]


def _template_ops(program: Program) -> Iterator[Op]:
    return (op for template in program.templated.templates for op in template)


def _packed(first: Integers, second: Integers) -> Integers:
    """A number for each distinct pair; both are at least 0, and small enough for the product of their ranges."""
    packed: Integers = first * (second.max(initial=0) + 1) + second
    return packed


def _ordinals(classes: Integers) -> Integers:
    """By place how many of the same class stand before it."""
    order = np.argsort(classes, kind="stable")
    ordered = classes[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    ordinals = np.empty(len(classes), np.int64)
    ordinals[order] = np.arange(len(classes)) - np.repeat(begins, np.diff(begins, append=len(classes)))
    return ordinals
