"""Check rules: what must hold for a schedule before it is simulated. An error shows the program with the op marked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import NoReturn

from simulator.schedule import COLLECTIVES, Block, Collective, Compute, Delay, Op, Program, Recv, Schedule, Send
from simulator.schedule.check_partners import check_partners
from simulator.schedule.mesh import NOWHERE, Axis
from simulator.schedule.order import Action


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
    """Raise unless names are unique and `after` names earlier ops. Names within a template are compared once."""
    own = {id(ops): [op.name for op in ops] for ops, _ in program.templates()}
    outside = {id(ops): _names_outside(ops) for ops, _ in program.templates()}
    seen: set[str] = set()
    for block in program.blocks:
        names = block.names(own[id(block.ops)])
        count = len(seen)
        seen.update(names)
        if len(seen) < count + len(names) or not seen.issuperset(block.names(outside[id(block.ops)])):
            _report_name(program)
    if any(_looks_forward(ops) for ops, _ in program.templates()):
        _report_name(program)


def _names_outside(ops: Sequence[Op]) -> list[str]:
    """The names that ops of a template wait for and that are not names of its own ops."""
    return list({name for op in ops for name in op.after} - {op.name for op in ops})


def _looks_forward(ops: Sequence[Op]) -> bool:
    """True if an op of a template waits for itself or for a later op of it."""
    places = {op.name: place for place, op in enumerate(ops)}
    return any(places.get(name, -1) >= place for place, op in enumerate(ops) for name in op.after)


def _report_name(program: Program) -> NoReturn:
    """Raise the error of the first op of *program* with a wrong name."""
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


_BEFORE = {"R": "F", "B": "F", "I": "F", "W": "I"}
"""The phase that must precede a phase of the same stage and micro-batch."""


def _check_phases(program: Program) -> None:
    """Raise unless the phases of each stage, micro-batch and layer are in order.

    Of all micro-batches with the same sequence of templates, one is checked.
    """
    blocks = program.blocks
    of: dict[int | None, list[int]] = defaultdict(list)
    for number, block in enumerate(blocks):
        of[block.micro_batch].append(number)
    if any(_place(blocks[number], op) for number in of[None] for op in blocks[number].ops):
        # ops without a template may be of any micro-batch
        of = {None: list(range(len(blocks)))}
    distinct = {tuple(id(blocks[number].ops) for number in numbers): numbers for numbers in of.values()}
    starts = [0, *accumulate(len(block.ops) for block in blocks)]
    for numbers in distinct.values():
        placed = (
            (starts[number] + place, _place(blocks[number], op))
            for number in numbers
            for place, op in enumerate(blocks[number].ops)
        )
        _check_order(program, [(index, place) for index, place in placed if place])


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


def _place(block: Block, op: Op) -> tuple[Action, str | None] | None:
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
    if not any(op.at_server is not None for op in program.distinct()):
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


def _wrong_axis(schedule: Schedule, op: Op, ranks: Sequence[int], places: dict[str, tuple[int | None, int]]) -> str:
    """What is wrong with the axis or a coordinate of *op*; empty if nothing. *places*: by axis, as `_places` has it."""
    if isinstance(op, Collective) and op.kind not in COLLECTIVES:
        return f"{op.kind} is not a collective; there are {', '.join(COLLECTIVES)}"
    if not isinstance(op, Collective | Send | Recv):
        return ""
    if op.over not in schedule.mesh.axes:
        return f"no axis {op.over}; the mesh has {', '.join(schedule.mesh.axes)}"
    if op.over not in places:
        places[op.over] = _places(schedule.mesh.axes[op.over], ranks)
    missing, size = places[op.over]
    if missing is not None:
        return f"rank {missing} runs it, but is not on the axis {op.over}"
    coordinate = op.root if isinstance(op, Collective) else op.peer
    if not 0 <= coordinate < size:
        return f"coordinate {coordinate} is not on the axis {op.over} of {size}"
    return ""


def _places(axis: Axis, ranks: Sequence[int]) -> tuple[int | None, int]:
    """The first of *ranks* that is not on *axis*, None if all are; and the size of the smallest of their groups."""
    numbers = axis.places(max(ranks, default=-1) + 1)[0, list(ranks)]
    nowhere = numbers == NOWHERE
    missing = ranks[int(nowhere.argmax())] if nowhere.any() else None
    return missing, int(min(axis.lengths[numbers[~nowhere]], default=0))
