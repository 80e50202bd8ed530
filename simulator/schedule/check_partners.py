"""The check that partners agree: the members of a group in their collectives, and every send with its receive.

`simulator.schedule.matching` finds the partners. The messages of a group are compared as columns. Single ops are
compared only if the columns differ, to report the first difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from simulator.schedule import Schedule
from simulator.schedule.matching import Integers, Matching, request_of
from simulator.schedule.mesh import NOWHERE, Axis
from simulator.schedule.ops import Collective, Op, Recv, Send
from simulator.schedule.program import Program

_Rows = npt.NDArray[np.float64]


def check_partners(schedule: Schedule) -> None:
    """Raise `ScheduleError` unless partners agree.

    Of all groups with the same programs in the same positions, one is checked.
    """
    matching = Matching(schedule)
    for name, axis in schedule.mesh.axes.items():
        numbers = range(len(schedule.programs))
        sends, receives = ([_messages(matching, number, name, kind) for number in numbers] for kind in (Send, Recv))
        talk = any(map(len, (*sends, *receives)))
        for members in _memberships(schedule, axis):
            for member in dict.fromkeys(members[1:]):
                if member != members[0]:
                    _check_collectives(schedule.programs, matching, (members[0], member), name)
            if not talk:
                continue
            sent = _between([sends[program] for program in members])
            received = _between([receives[program] for program in members])[:, [1, 0, 2, 3, 4]]
            if not np.array_equal(_ordered(sent), _ordered(received)):
                _report_message([schedule.programs[program] for program in members], sent, received)


def _memberships(schedule: Schedule, axis: Axis) -> list[tuple[int, ...]]:
    """The programs of the members of each group, by position; once for all groups where they are the same."""
    # the last program stands for the missing members of a shorter group
    programs = np.append(schedule.program_numbers, NOWHERE)[axis.members]
    found = dict.fromkeys(row.tobytes() for row in programs)
    rows = (np.frombuffer(row, programs.dtype) for row in found)
    return [tuple(row[row != NOWHERE].tolist()) for row in rows]


def _check_collectives(programs: Sequence[Program], matching: Matching, pair: tuple[int, int], axis: str) -> None:
    """Raise unless the two programs of *pair* (by number) have the same collectives over *axis*."""
    found = [_collectives(matching, program, axis) for program in pair]
    (mine, my_ops), (theirs, their_ops) = zip((programs[number] for number in pair), found, strict=True)
    for key, (i, request) in my_ops.items():
        if key in their_ops and their_ops[key][1] != request:
            index = their_ops[key][0]
            raise theirs.violation(index, f"does not agree with {mine.role}:\n{mine.printed(i)}\nof its group")
    for program, ops, partner, others in ((mine, my_ops, theirs, their_ops), (theirs, their_ops, mine, my_ops)):
        for key, (i, _) in ops.items():
            if key not in others:
                stream = program.ops[i].stream
                raise program.violation(i, f"{partner.role} of its group has no such collective on stream {stream}")


def _collectives(matching: Matching, program: int, axis: str) -> Mapping[int, tuple[int, object]]:
    """By key: the index and the request of each collective over *axis*, in order of the program."""
    chosen, ops = _ops(matching, program, axis, Collective)
    requests = {number: request_of(op) for number, op in ops.items()}
    keys, numbers = (column[chosen].tolist() for column in (matching.key[program], matching.request[program]))
    found = zip(keys, chosen.tolist(), numbers, strict=True)
    return {key: (index, requests[number]) for key, index, number in found}


def _messages(matching: Matching, program: int, axis: str, kind: type[Send] | type[Recv]) -> _Rows:
    """One row for each message of *kind* over *axis*: peer, key, bytes, index of the op."""
    chosen, ops = _ops(matching, program, axis, kind)
    values = np.zeros((len(matching.requests[program]), 2))
    for number, op in ops.items():
        assert isinstance(op, Send | Recv)
        values[number] = op.peer, op.nbytes
    peer, nbytes = values[matching.request[program][chosen]].T
    return np.stack([peer, matching.key[program][chosen], nbytes, chosen], axis=1)


def _ops(matching: Matching, program: int, axis: str, kind: type[Op]) -> tuple[Integers, Mapping[int, Op]]:
    """The indices of all ops of *kind* over *axis*; and one op for each of their requests, by number of the request."""
    requests = enumerate(matching.requests[program])
    ops = {n: op for n, op in requests if isinstance(op, kind) and getattr(op, "over", None) == axis}
    if not ops:
        return np.zeros(0, np.int64), ops
    # the last element is for ops that are no communication: their request is -1
    meant = np.zeros(len(matching.requests[program]) + 1, np.bool_)
    meant[list(ops)] = True
    return np.flatnonzero(meant[matching.request[program]]), ops


def _between(rows: Sequence[_Rows]) -> _Rows:
    """The rows of all members, each after the coordinate of its member, without rows with a peer outside the group."""
    member = np.repeat(np.arange(len(rows), dtype=np.float64), [len(row) for row in rows])
    found = np.column_stack([member, np.concatenate(rows)])
    return found[found[:, 1] < len(rows)]


def _ordered(rows: _Rows) -> _Rows:
    """The rows sorted by sender, receiver and key, without the indices of the ops."""
    return rows[np.lexsort(rows[:, 2::-1].T)][:, :4]


def _report_message(members: Sequence[Program], sent: _Rows, received: _Rows) -> NoReturn:
    """Raise the error of the first message that lacks its partner or differs from it in size.

    The rows are (sender, receiver, key, bytes, index of the op); senders and receivers are coordinates of *members*.
    """
    sends, receives = ({tuple(row[:3]): (row[3], int(row[4])) for row in rows.tolist()} for rows in (sent, received))
    for message, (nbytes, index) in sends.items():
        sender, receiver = members[int(message[0])], members[int(message[1])]
        if message not in receives:
            raise sender.violation(index, f"{receiver.role}, its peer, has no such receive")
        if receives[message][0] != nbytes:
            raise sender.violation(index, f"{receiver.role}, its peer, receives {receives[message][0]:g} B")
    for message, (_, index) in receives.items():
        if message not in sends:
            sender, receiver = members[int(message[0])], members[int(message[1])]
            raise receiver.violation(index, f"{sender.role}, its peer, has no such send")
    raise AssertionError("the columns of messages differ, but no single message does")
