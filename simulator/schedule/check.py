"""Check rules: what must hold for a schedule before it is simulated, for each program and between partners. An error
shows the program with the op marked.

`simulator.schedule.matching` finds the partners. The messages of a group are compared as columns. Single ops are
compared only if the columns differ, to report the first difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from clustersim.simulator.hardware.hashing import distinct, first_places, of_positions
from clustersim.simulator.schedule.dependencies import well_named
from clustersim.simulator.schedule.matching import Integers, Matching, request_of
from clustersim.simulator.schedule.mesh import NOWHERE, Axis
from clustersim.simulator.schedule.ops import COLLECTIVES, Collective, Compute, Delay, Op, Recv, Send
from clustersim.simulator.schedule.pipeline_order import PLACEHOLDER, Action
from clustersim.simulator.schedule.program import OpBlock, Program
from clustersim.simulator.schedule.schedule import Schedule

_Rows = npt.NDArray[np.float64]

_BEFORE = {"R": "F", "B": "F", "I": "F", "W": "I"}
"""The phase that must precede a phase of the same stage and micro-batch."""


def check(schedule: Schedule) -> None:
    """Raise `ScheduleError`, the printed program with the offending op marked, unless all rules hold.

    The rules:

    - Names are unique, and `after` names earlier ops only.
    - The axis, peer and root of a communication exist.
    - The members of a group have the same collectives (kind, bytes, root) in the same order.
    - Every `Send` has a `Recv` of the same size, and the reverse.
    - Of each stage and micro-batch, F precedes R, R precedes B, F precedes B and I, and I precedes W.
    - What is allocated is freed.
    - A delay is finite and not negative. An op with a priority has a server.
    - What holds a server is followed by an op that releases it, before another op of the program holds it.
    """
    for program in schedule.programs:
        _check_names(program)
        _check_phases(program)
        _check_memory(program)
        _check_held(program)
    check_partners(schedule)
    for number, program in enumerate(schedule.programs):
        _check_ops(schedule, number, program)


def _check_names(program: Program) -> None:
    """Raise unless names are unique and `after` names earlier ops."""
    if well_named(program):
        return
    seen: set[str] = set()
    every = {op.name for op in program.ops}
    for index, op in enumerate(program.ops):
        if op.name in seen:
            raise program.violation(index, "another op has the same name")
        for name in op.after:
            if name not in seen:
                why = "comes later" if name in every else "does not exist"
                raise program.violation(index, f"after {name}, which {why}; an op can only wait for earlier ops")
        seen.add(op.name)
    raise AssertionError(program.role)


def _check_phases(program: Program) -> None:
    """Raise unless the phases of each stage, micro-batch and layer are in order.

    Of all micro-batches with the same sequence of templates, one is checked.
    """
    ops = program.templated
    without = distinct(ops.which[ops.micro_batches == PLACEHOLDER]).tolist()
    placed = any(_place(OpBlock(ops.templates[number]), op) for number in without for op in ops.templates[number])
    # ops without a template may be of any micro-batch
    several = [np.arange(len(ops.which))] if placed else ops.of_micro_batches()
    for numbers in {ops.which[numbers].tobytes(): numbers for numbers in several}.values():
        starts, blocks = ops.starts[numbers].tolist(), map(ops.block, numbers.tolist())
        every = (
            (start + number, _place(block, op))
            for start, block in zip(starts, blocks, strict=True)
            for number, op in enumerate(block.ops)
        )
        _check_order(program, [(index, place) for index, place in every if place])


def _check_order(program: Program, placed: Sequence[tuple[int, tuple[Action, str | None]]]) -> None:
    """Raise unless the phases of *placed* are in order: (index of the op, (its action, its layer))."""
    first = {place: index for index, place in reversed(placed)}
    for index, (action, layer) in placed:
        if action.phase not in _BEFORE:
            continue
        for before in [_BEFORE[action.phase]] + (["R"] if action.phase in "BI" else []):
            needed = action._replace(phase=before), layer
            if first.get(needed, -1 if before == "R" else len(program.ops)) > index:
                raise program.violation(index, f"{action.phase} precedes {before} of the same micro-batch")


def _place(block: OpBlock, op: Op) -> tuple[Action, str | None] | None:
    """The action and the layer of *op* of *block*; None unless it is a computation of a micro-batch."""
    if not isinstance(op, Compute) or op.action is None or op.action.phase == "O":
        return None
    return block.action(op.action), op.layer


def _check_memory(program: Program) -> None:
    """Raise unless as many bytes of each category are freed as are allocated, but for rounding."""
    balance: dict[str, float] = defaultdict(float)
    given: dict[str, float] = defaultdict(float)
    for ops, times in program.templates():
        for op in ops:
            for category, nbytes in op.allocates.items():
                balance[category] += times * nbytes
                given[category] += times * nbytes
            for category, nbytes in op.frees.items():
                balance[category] -= times * nbytes
    for category, nbytes in balance.items():
        if abs(nbytes) > 1e-9 * given[category]:
            culprit = max(i for i, op in enumerate(program.ops) if category in op.allocates or category in op.frees)
            raise program.violation(culprit, f"{nbytes:g} B of {category} are allocated and not freed")


def _check_held(program: Program) -> None:
    """Raise unless each op that holds a server has an op after it on its stream that releases the server."""
    if not program.servers():
        return
    holding: dict[tuple[str, str], int] = {}
    for index, op in enumerate(program.ops):
        place = op.stream, op.at_server or ""
        if op.releases is not None:
            if op.releases == getattr(op, "server", None) or holding.pop(place, None) is None:
                raise program.violation(index, f"releases {op.releases}, which no op before it on its stream holds")
        elif isinstance(op, Compute) and op.holds:
            if place in holding:
                raise program.violation(index, f"holds {op.server} twice; an op between must release it")
            holding[place] = index
    for (_, server), index in holding.items():
        raise program.violation(index, f"holds {server}, and no later op of its stream releases it")


def _check_ops(schedule: Schedule, number: int, program: Program) -> None:
    """Raise unless the axis, coordinates, seconds, priority and server of each op are valid."""
    ranks = schedule.ranks_of(number)
    places: dict[str, tuple[int | None, int]] = {}
    for ops, _ in program.templates():
        for place, op in enumerate(ops):
            wrong = _wrong_value(op) or _wrong_axis(schedule, op, ranks, places)
            if wrong:
                first = next(i for i, block in enumerate(program.blocks) if block.ops is ops)
                raise program.violation(sum(len(block.ops) for block in program.blocks[:first]) + place, wrong)


def _wrong_value(op: Op) -> str:
    """What is wrong with the seconds of a delay or the priority of *op*; empty if nothing."""
    if isinstance(op, Delay) and not 0 <= op.seconds < inf:
        return f"a delay of {op.seconds:g} s; it must be finite and not negative"
    if isinstance(op, Compute) and op.holds and op.server is None:
        return "holds a server and names none"
    if isinstance(op, Compute) and op.priority and op.server is None:
        return f"priority {op.priority} without a server; name the server, or leave the priority at 0"
    return ""


def _wrong_axis(schedule: Schedule, op: Op, ranks: Integers, places: dict[str, tuple[int | None, int]]) -> str:
    """What is wrong with the axis or a coordinate of *op*; empty if nothing. *places*: by axis, as `_places` has it."""
    if isinstance(op, Collective) and op.kind not in COLLECTIVES:
        return f"{op.kind} is not a collective; there are {', '.join(COLLECTIVES)}"
    if not isinstance(op, Collective | Send | Recv):
        return ""
    if op.over not in schedule.mesh.axes:
        return f"no axis {op.over}; the mesh has {', '.join(schedule.mesh.axes)}"
    if op.over not in places:
        places[op.over] = _places(schedule.mesh.axes[op.over], ranks, schedule.mesh.world_size)
    missing, size = places[op.over]
    if missing is not None:
        return f"rank {missing} runs it, but is not on the axis {op.over}"
    coordinate = op.root if isinstance(op, Collective) else op.peer
    if not 0 <= coordinate < size:
        return f"coordinate {coordinate} is not on the axis {op.over} of {size}"
    return ""


def _places(axis: Axis, ranks: Integers, world_size: int) -> tuple[int | None, int]:
    """The first of *ranks* that is not on *axis*, None if all are; and the size of the smallest of their groups."""
    if len(ranks) and axis.lengths.sum() == world_size and axis.lengths.min() == axis.lengths.max():
        return None, int(axis.lengths[0])
    numbers = axis.places(int(ranks.max(initial=-1)) + 1)[0][ranks]
    nowhere = numbers == NOWHERE
    missing = int(ranks[nowhere.argmax()]) if nowhere.any() else None
    lengths = axis.lengths[numbers[~nowhere]]
    return missing, int(lengths.min()) if len(lengths) else 0


def check_partners(schedule: Schedule) -> None:
    """Raise `ScheduleError` unless partners agree.

    Of all groups with the same programs in the same positions, one is checked.
    """
    matching = schedule.matching
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
    # a hash of 64 bits is as good as equal
    rows = programs[first_places(of_positions(programs))]
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
