"""Batch-level overlap: the exchanges of tokens of one micro-batch run beside the computation of another.

A forward and a backward of two micro-batches run together. Their computations alternate, and each exchange runs beside
the computation of the other micro-batch (DeepSeek-AI 2024, "DeepSeek-V3", arXiv:2412.19437, section 3.2.1; Megatron-LM,
``--overlap-moe-expert-parallel-comm``). An order that pairs them itself, such as DualPipeV, keeps its pairs. Others get
pairs by one more forward before the first backward, as Megatron-LM has it. `workloads.parallelism.pairs` puts the ops
of a pair beside each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.errors import ScheduleError
from simulator.schedule.order import Action, Order


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
