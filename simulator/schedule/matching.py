"""Matching: which ops of different ranks belong to one communication.

Only this module knows the rule. Ops that belong together have equal *keys*:

- The n-th collective over an axis on a stream meets the n-th collective over that axis on the stream of the same name
  of every other member of the group.
- The n-th `Send` of an action to a peer meets the n-th `Recv` of that action from the sender, on the same axis. The
  streams may differ.
- A `Copy` has no partner: its key is its own.

Ops are counted in order of the program. Ops of different training steps never meet, so keys do not count steps.
Partners must also have the same *request* (kind, bytes, root, algorithm); `simulator.schedule.check` checks it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from clustersim.simulator.schedule.ops import Collective, Copy, Op, Recv, Send
from clustersim.simulator.schedule.pipeline_order import PLACEHOLDER, Action
from clustersim.simulator.schedule.program import Program

Integers = npt.NDArray[np.int64]

NONE = -1
"""The key and the request of an op that is no communication."""

_NO_MICRO_BATCH = -2
"""The micro-batch of an action that has none; -1 is the `PLACEHOLDER` of templates."""

Request = Hashable
"""What an op requests of the network. Ops with equal requests and equal partners have the same plan."""


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
    """The keys and the requests of all *programs* of a schedule.

    By number of a program:

    - *requests*: one op of a template for each distinct request. Here two ops have the same request if they are equal
      in kind of op, axis, peer, bytes, root, algorithm, target and buffering.
    - *request*: for each op the index of its request, `NONE` for an op that is no communication.
    - *key*: for each op its key, `NONE` for an op that is no communication. Ops that meet have equal keys. No other op
      of the program has that key in the same group (collectives), between the same sender and receiver (messages) or
      on the same rank (copies).

    Keys are numbered from 0 over all programs; *keys* is their number.
    """

    def __init__(self, programs: Iterable[Program]) -> None:
        self.requests: list[tuple[Op, ...]] = []
        self.request: list[Integers] = []
        self._lanes: dict[_Lane, int] = {}
        rows = [np.empty((3, 0), np.int64)]
        for program in programs:
            requests, request = _requests(program)
            self.requests.append(requests)
            self.request.append(request)
            rows.append(self._rows(program, np.flatnonzero(request != NONE)))
        lane, micro_batch, number = meanings = np.concatenate(rows, axis=1)
        packed = _packed(_packed(lane, micro_batch - _NO_MICRO_BATCH), number)
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
        """The meaning of *key*."""
        lane, micro_batch, number = self._meaning[:, key].tolist()
        what, axis, third = self._named[lane]
        if what is Copy:
            return CopyKey(number)
        if what is Collective:
            return CollectiveKey(axis, third, number)
        micro_batch = None if micro_batch == _NO_MICRO_BATCH else micro_batch
        return MessageKey(axis, Action(third[0], third[1], micro_batch) if third else None, number)

    def _rows(self, program: Program, communications: Integers) -> Integers:
        """By communication: its lane, its micro-batch, and its number among the ops that are counted with it.

        *communications*: the indices of the ops. The shape is ``(3, communications)``.
        """
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
        micro_batches = np.where(written == PLACEHOLDER, ops.micro_batches[block], written)
        return np.stack([lanes, micro_batches, _ordinals(_packed(counted, micro_batches - _NO_MICRO_BATCH))])


_Lane = tuple[type[Op], str, Any]
"""Kind of op, axis, and what partners have in common: a stream, or an action without its micro-batch.

A lane and a micro-batch hold the ops that are counted to find the n-th one."""


def _place(op: Op) -> tuple[_Lane | None, int, Hashable]:
    """The lane, the micro-batch and the counter of *op*. Ops of one counter and micro-batch are counted together."""
    lane: _Lane
    match op:
        case Collective():
            lane = Collective, op.over, op.stream
            return lane, _NO_MICRO_BATCH, lane
        case Send() | Recv():
            lane = Send, op.over, op.action and op.action[:2]
            micro_batch = op.action.micro_batch if op.action else None
            return lane, _NO_MICRO_BATCH if micro_batch is None else micro_batch, (lane, op.peer, type(op))
        case Copy():
            lane = Copy, "", ""
            return lane, _NO_MICRO_BATCH, lane
    return None, _NO_MICRO_BATCH, None


def request_of(op: Op) -> Request:
    """The request of *op*."""
    if isinstance(op, Collective):
        return op.over, op.kind, op.nbytes, op.root, op.algorithm, op.per_peer
    if isinstance(op, Copy):
        return op.nbytes, op.source, op.to
    assert isinstance(op, Send | Recv)
    return op.nbytes


def _requests(program: Program) -> tuple[tuple[Op, ...], Integers]:
    """One op for each distinct request of *program*, and for each op the index of its request."""
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
    """A number for each distinct pair of numbers from 0 on; the product of their ranges must fit 64 bits."""
    packed: Integers = first * (second.max(initial=0) + 1) + second
    return packed


def _ordinals(classes: Integers) -> Integers:
    """For each element, the number of elements of the same class before it."""
    order = np.argsort(classes, kind="stable")
    ordered = classes[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    ordinals = np.empty(len(classes), np.int64)
    ordinals[order] = np.arange(len(classes)) - np.repeat(begins, np.diff(begins, append=len(classes)))
    return ordinals
