"""Batch-level overlap: the exchanges of tokens of one micro-batch run beside the computation of another.

A forward and a backward of two micro-batches run together. Their computations alternate, and each exchange runs beside
the computation of the other micro-batch (DeepSeek-AI 2024, "DeepSeek-V3", arXiv:2412.19437, section 3.2.1; Megatron-LM,
``--overlap-moe-expert-parallel-comm``). An order that pairs them itself, such as DualPipeV, keeps its pairs. Others get
pairs by one more forward before the first backward, as Megatron-LM has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from simulator.errors import ScheduleError
from simulator.schedule import Collective, Compute, Op, Program, Schedule
from simulator.schedule.mesh import family
from simulator.schedule.order import Action, Order
from workloads.gradients.reduce import actions

STREAM = "compute"


def paired(order: Order) -> Order:
    """*order* with pairs of a forward and a backward that run together.

    Raises `ScheduleError` for an order that has neither pairs nor whole backwards only.

    >>> print(paired(Order.parse("0F0,0B0,0F1,0B1,0F2,0B2")).csv(), end="")
    0F0,(0F1;0B0)OVERLAP_F_B,(0F2;0B1)OVERLAP_F_B,0B2
    """
    if order.overlapped:
        return order
    if any(action.phase not in "FB" for row in order.rows for action in row):
        raise ScheduleError("pairs of a forward and a whole backward: take interleaved, dual_pipe_v, or no pipeline")
    rows = [_paired(row) for row in order.rows]
    pairs = frozenset(pair for _, pairs in rows for pair in pairs)
    return replace(order, rows=tuple(row for row, _ in rows), overlapped=pairs)


def _paired(row: Sequence[Action]) -> tuple[tuple[Action, ...], list[Action]]:
    forwards = [action for action in row if action.phase == "F"]
    backwards = [action for action in row if action.phase == "B"]
    first = next((n for n, action in enumerate(row) if action.phase == "B"), len(row))
    alone = min(len(forwards), first + 1)
    pairs = list(zip(forwards[alone:], backwards, strict=False))
    rest = backwards[len(pairs) :]
    return (*forwards[:alone], *(action for pair in pairs for action in pair), *rest), [pair[0] for pair in pairs]


def woven(schedule: Schedule, pairs: Collection[Action], over: str) -> Schedule:
    """*schedule* with the ops of each pair woven: forwards *pairs*, each with the next backward of its program.

    All-to-alls over axes of the family *over* get a stream of their own. Where parameters are gathered layer by layer
    (FSDP, ZeRO-3), a gather stands ahead of the layer that needs it, whatever the action: there the two run one after
    the other, as they stand.
    """
    return schedule.map_programs(lambda program: _woven(program, frozenset(pairs), over))


def _woven(program: Program, pairs: frozenset[Action], over: str) -> Program:
    ops = list(program.ops)
    if not any(_exchanges(op, over) for op in program.distinct()):
        return program
    blocks = [block for block, _ in actions(program, "FBIW")]
    if len(set(blocks)) < len(blocks):
        return program
    places = _places(ops)
    made: list[Op] = []
    done = 0
    for action, (begin, end) in places.items():
        if action not in pairs:
            continue
        partner = next((other for other, (first, _) in places.items() if other.phase == "B" and first > end), None)
        if partner is None or begin < done:
            continue
        last = places[partner][1] + 1
        made += [*ops[done:begin], *_together(ops[begin:last], partner, over)]
        done = last
    return replace(program, ops=(*made, *ops[done:]))


def _places(ops: Sequence[Op]) -> dict[Action, tuple[int, int]]:
    """The indices of the first and the last op on the stream of computation, by action, in order of issue."""
    found: dict[Action, tuple[int, int]] = {}
    for index, op in enumerate(ops):
        if op.action and op.stream == STREAM and op.layer and isinstance(op, Compute | Collective):
            found[op.action] = found.get(op.action, (index, index))[0], index
    return found


def _together(ops: Sequence[Op], backward: Action, over: str) -> Iterator[Op]:
    """The ops of a forward and of *backward*, unit by unit in turn.

    Receives of the backward are issued first. What it recomputes belongs to it.
    """
    its = {backward, backward._replace(phase="R")}
    first = next(place for place, op in enumerate(ops) if op.action in its and op.stream == STREAM)
    needed = set(next(op for op in ops if op.action == backward and op.stream == STREAM).after)
    early = [op for op in ops[:first] if op.name in needed and op.stream != STREAM]
    yield from early
    issued = {id(op) for op in early}
    two = [op for op in ops[:first] if id(op) not in issued], ops[first:]
    turns = [list(_units(one, over)) for one in two]
    for turn in range(max(map(len, turns))):
        for units in turns:
            if turn < len(units):
                yield from units[turn]


def _units(ops: Sequence[Op], over: str) -> Iterator[list[Op]]:
    """*ops* cut before each computation that waits for an exchange. An exchange that blocks gets its own stream."""
    unit: list[Op] = []
    computed: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    beside: set[str] = set()
    for op in ops:
        if _exchanges(op, over) and op.stream == STREAM:
            unit.append(replace(op, stream=over, after=(*op.after, *computed, *awaited)))
            awaited = (op.name,)
        elif op.stream == STREAM:
            if awaited or not beside.isdisjoint(op.after):
                yield unit
                unit = []
            unit.append(replace(op, after=(*op.after, *awaited)) if awaited else op)
            computed, awaited = (op.name,), ()
        else:
            unit.append(op)
            beside.update((op.name,) if _exchanges(op, over) else ())
    yield unit


def _exchanges(op: Op, over: str) -> bool:
    return isinstance(op, Collective) and op.kind == "all_to_all" and family(op.over) == over
