"""The attention of a rank by its method."""

from __future__ import annotations

from workloads.context.cut import Context
from workloads.context.gathered import GatheredAttention
from workloads.context.ring import RingAttention
from workloads.operators.attention import FlashAttention


def cut_over(attention: FlashAttention, context: Context, *, fused_sum: bool = True) -> FlashAttention:
    """*attention* of one rank's positions as *context* has it: unchanged if the rank has whole sequences.

    *fused_sum*: as `RingAttention` has it.
    """
    if context.ranks == 1:
        return attention
    if context.method == "ring":
        return RingAttention(**vars(attention), context=context, fused_sum=fused_sum)
    return GatheredAttention(**vars(attention), context=context)
