"""Attention and Mamba-2 side by side: both read one normed hidden state, and what they give is added (Falcon-H1).

Zuo et al. 2025, "Falcon-H1" (arXiv:2507.22448, section 2.2); transformers, models/falcon_h1/modeling_falcon_h1.py,
``FalconH1DecoderLayer``. They run one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from clustersim.workloads.blocks._block import Block, HiddenStates
from clustersim.workloads.blocks.grouped_attention import GroupedAttention
from clustersim.workloads.blocks.mamba2 import Mamba2
from clustersim.workloads.operators.attentions.context_parallel import ContextCut
from clustersim.workloads.operators.elementwise import residual
from clustersim.workloads.operators.operator import Operator
from clustersim.workloads.operators.sharded import on_the_sequence


class AttentionBesideMamba2(Block):
    """Keys of both."""

    attention: GroupedAttention = Field(default_factory=GroupedAttention)
    """Keys of grouped_attention."""
    mamba2: Mamba2 = Field(default_factory=Mamba2)
    """Keys of mamba2."""

    def counts(self, features: int) -> Mapping[str, int]:
        """Those of both."""
        return {**self.attention.counts(features), **self.mamba2.counts(features)}

    def context_fault(self, hidden: HiddenStates, context: ContextCut) -> str:
        """What hinders either."""
        return self.attention.context_fault(hidden, context) or self.mamba2.context_fault(hidden, context)

    def operators(self, hidden: HiddenStates) -> tuple[Operator, ...]:
        """Those of both, and the sum of what they give; the gradients that meet at their input are added, too."""
        elements = hidden.rows * hidden.features // hidden.cut.sequence_shards
        both = residual(elements, hidden.precision, hidden.precision, drop=False)
        return (
            *self.mamba2.operators(hidden),
            *self.attention.operators(hidden),
            on_the_sequence(both, hidden.cut),
        )
