"""Pairs of a forward and a backward that run together: the all-to-alls of each run beside the computation of the other.

DualPipe pairs the two so that a rank computes while tokens are on their way to experts: dispatch and combine of one
micro-batch run beside attention and experts of the other (DeepSeek-AI, arXiv:2412.19437, section 3.2.1, figure 4). The
parts between all-to-alls are issued in turn, the backward's first, since it begins with an exchange. The results of
both are sent when both are done (deepseek-ai/DualPipe, dualpipe.py, ``_forward_backward_chunk``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, zip_longest
from operator import itemgetter

import numpy as np

from simulator.schedule import Collective, Compute, Op, Program, Schedule
from simulator.schedule.order import Action, Order
from simulator.schedule.program import TemplatedOps
from workloads.gradients.reduce import actions

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
    rows = list(actions(program, "FBIW"))
    if len({number for number, _ in rows}) < len(rows):
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
