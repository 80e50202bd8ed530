"""Positions for heads: all-to-alls around an attention that has all positions of some heads."""

from __future__ import annotations

from simulator.kernel import BYTES
from simulator.operation import Operation
from workloads.context.cut import Context
from workloads.operators.elementwise import Elementwise
from workloads.operators.operator import Operator
from workloads.operators.segment import Exchange
from workloads.operators.sharded import ShardedOperator

PACKING = Operation("packing by receiver", "elementwise", "attention")


def positions_for_heads(
    inner: tuple[Operator, ...], context: Context, sizes: tuple[int, int, int, int], precision: str
) -> tuple[Operator, ...]:
    """*inner*, the attention of all positions of a part of the heads, with the all-to-alls around it.

    *sizes* of one rank before the exchange: positions, heads, key and value heads, head size. There is an all-to-all
    for queries, for keys, for values and for the output, and the gradients go the other way. Each tensor is copied
    once in the order of its receivers (Transformer Engine, context_parallel.py, flash_attn_a2a_communicate).
    """
    length, heads, groups, head_size = sizes
    width = BYTES[precision]
    queries, keys = (
        Exchange("all_to_all", float(length * count * head_size * width), context.over) for count in (heads, groups)
    )
    into, out = (queries, keys, keys), (queries,)
    first, *others = inner
    first = _around(first, "F", into, "I")
    *others, last = first, *others
    made = (*others, _around(last, "I", out, "F"))
    packed, unpacked = (
        Elementwise(length * count * head_size, 2 * width, 2 * width, precision=precision, operation=PACKING)
        for count in (heads + 2 * groups, heads)
    )
    return (packed, *made, unpacked)


def _around(operator: Operator, before: str, exchanges: tuple[Exchange, ...], after: str) -> Operator:
    """*operator* with *exchanges* ahead of it in the phase *before*, and behind it in the phase *after*."""
    return ShardedOperator(
        operator,
        operator.tensors,
        before=tuple((before, one) for one in exchanges),
        after=tuple((after, one) for one in exchanges),
    )
