"""A forward and a backward of two micro-batches run together: orders with such pairs, and the ops of a pair.

Their computations alternate, and each exchange runs beside the computation of the other micro-batch: dispatch and
combine of one beside attention and experts of the other (DeepSeek-AI 2024, "DeepSeek-V3", arXiv:2412.19437, section
3.2.1, figure 4; Megatron-LM, ``--overlap-moe-expert-parallel-comm``). The parts between all-to-alls are issued in turn,
the backward's first, since it begins with an exchange. The results of both are sent when both are done
(deepseek-ai/DualPipe, dualpipe.py, ``_forward_backward_chunk``).

An order that pairs them itself, such as DualPipeV, keeps its pairs. Others get pairs by one more forward before the
first backward, as Megatron-LM has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from operator import itemgetter

import numpy as np

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.ops import Collective, Compute, Op
from clustersim.simulator.schedule.pipeline_order import Action, Order
from clustersim.simulator.schedule.program import Program, TemplatedOps
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.workloads.data_parallel.gradients import actions


def paired(order: Order) -> Order:
    """*order* with pairs of a forward and a backward that run together.

    Raises `ScheduleError` for an order that has neither pairs nor whole backwards only.

    >>> print(paired(Order.parse("0F0,0B0,0F1,0B1,0F2,0B2")).csv(), end="")
    0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2
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


MAIN = "compute"
"""The stream of computations, and of exchanges that block."""

Parts = tuple[tuple[Op, ...], ...]
"""The ops of a block: one part for each turn, and last what waits until both blocks of a pair are done."""


def in_pairs(schedule: Schedule, order: Order) -> Schedule:
    """*schedule* with the forwards that *order* overlaps beside the backwards that follow them.

    Applied after all passes that add ops. Where parameters are gathered layer by layer (FSDP, ZeRO-3), a gather stands
    ahead of the layer that needs it, whatever the action: there the two run one after the other, as they stand.
    """
    if not order.overlapped:
        return schedule
    return schedule.map_programs(lambda program: _in_pairs(program, order))


def _in_pairs(program: Program, order: Order) -> Program:
    ops = program.templated
    if any(map(_gathers_parameters, program.distinct())):
        return program
    pair_of = _pairs(program, order)
    parts: dict[int, Parts] = {}
    templates: dict[object, tuple[Op, ...]] = dict(enumerate(ops.templates))
    blocks: list[tuple[object, int]] = []
    for number, template in enumerate(ops.which.tolist()):
        if number in pair_of.values():
            continue
        if number not in pair_of:
            blocks.append((template, number))
            continue
        two = number, pair_of[number]
        for own in (int(ops.which[block]) for block in two):
            if own not in parts:
                parts[own] = _parts(ops.templates[own], f"{_action(ops.templates[own])}.joined")
                templates |= {(own, turn): part for turn, part in enumerate(parts[own])}
        blocks += _in_turn([(int(ops.which[block]), block, len(parts[int(ops.which[block])])) for block in two])
    place = {name: index for index, name in enumerate(templates)}
    which = np.array([place[name] for name, _ in blocks], np.int64)
    micro_batches = ops.micro_batches[np.array([block for _, block in blocks], np.int64)]
    return program.with_templated_ops(TemplatedOps.from_columns(list(templates.values()), which, micro_batches))


def _gathers_parameters(op: Op) -> bool:
    """True if *op* gathers parameters for a pass; a gather within a layer belongs to that layer."""
    return (
        isinstance(op, Collective)
        and op.kind == "all_gather"
        and bool(op.action and op.action.phase in "FRBI" and op.layer is None)
    )


def _pairs(program: Program, order: Order) -> dict[int, int]:
    """By the number of a backward's block, that of the forward that runs beside it."""
    rows = list(actions(program, "FB"))
    return {backward: forward for (forward, action), (backward, _) in pairwise(rows) if action in order.overlapped}


def _in_turn(two: list[tuple[int, int, int]]) -> Iterator[tuple[object, int]]:
    """(template, block) of the parts of a pair, given as (template, block, number of parts), in turn.

    The ends are last, in the order of the blocks: their messages meet others that stand in this order.
    """
    turns = ([((template, turn), block) for turn in range(count - 1)] for template, block, count in two)
    for both in zip_longest(*turns):
        yield from (one for one in both if one)
    yield from (((template, count - 1), block) for template, block, count in sorted(two, key=itemgetter(1)))


def _parts(ops: tuple[Op, ...], joined: str) -> Parts:
    """*ops* with their blocking all-to-alls on streams of their own, cut where a computation waits for any all-to-all.

    The last part begins with an empty computation *joined*, for which everything after the last computation waits.
    """
    parts: list[list[Op]] = [[]]
    last, waits, beside = "", list[str](), set[str]()
    final = max(place for place, op in enumerate(ops) if op.stream == MAIN)
    for place, op in enumerate(ops[: final + 1]):
        if last and isinstance(op, Collective) and op.kind == "all_to_all" and op.stream == MAIN and place < final:
            parts[-1].append(replace(op, stream=op.over, after=(*op.after, last)))
            waits.append(op.name)
            continue
        if op.stream == MAIN:
            if waits or not beside.isdisjoint(op.after):
                parts.append([])
            parts[-1].append(replace(op, after=(*op.after, *waits)) if waits else op)
            waits.clear()
            last = op.name
        else:
            parts[-1].append(op)
            beside.update((op.name,) if isinstance(op, Collective) and op.kind == "all_to_all" else ())
    end = Compute(name=joined, kernels=())
    tail = [replace(op, after=tuple(joined if name == last else name for name in op.after)) for op in ops[final + 1 :]]
    return (*map(tuple, parts), (end, *tail))


def _action(ops: tuple[Op, ...]) -> Action:
    """The action that *ops* compute."""
    return next(op.action for op in ops if isinstance(op, Compute) and op.action and op.action.phase in "FB")
