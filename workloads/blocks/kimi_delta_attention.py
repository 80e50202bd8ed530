"""Kimi delta attention: a gated delta net whose state forgets each feature of a key at a rate of its own.

Kimi team 2025, "Kimi Linear" (arXiv:2510.26692, section 3). Decays and gates are made by way of head_dim features
(low rank). The scan is priced as that of the gated delta net, with a decay for each feature of a key
(`workloads.blocks.gated_delta_net`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clustersim.simulator.reading.quantities import Count
from clustersim.workloads.blocks._block import Block, HiddenStates
from clustersim.workloads.blocks.gated_delta_net import DeltaRule
from clustersim.workloads.operators.elementwise import rms_norm
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.operator import Operator, matrix, parameter_tensors
from clustersim.workloads.operators.recurrent import CausalConvolution
from clustersim.workloads.operators.sharded import column_parallel, norm_of_heads, on_the_sequence


class KimiDeltaAttention(Block):
    """Keys as in transformers' KimiLinearConfig, there with ``linear_`` before them."""

    num_heads: Count = 32
    """Heads of queries, keys, values and states."""
    head_dim: Count = 128
    """Features of a query, of a key and of a value."""
    conv_kernel: Count = 4
    """Positions of the causal convolution."""
    chunk_size: Count = 64
    """Positions of a chunk; 64 by default, as in flash-linear-attention."""

    def counts(self, features: int) -> Mapping[str, int]:
        """Heads."""
        return {"heads of kimi_delta_attention": self.num_heads}

    def operators(self, hidden: HiddenStates) -> tuple[Operator, ...]:
        """The convolution, decays and gates, the rule, and a gated norm of each head between the products."""
        heads, size, rows, precision = self.num_heads // hidden.ranks, self.head_dim, hidden.rows, hidden.precision
        inner, own = heads * size, rows // hidden.cut.sequence_shards
        small = on_the_sequence(
            Linear(own, hidden.features, 2 * size, False, precision, splits=(size,) * 2), hidden.cut
        )
        wide = Linear(rows, size, inner, False, precision, kept_share=hidden.kept_share)
        weights = (matrix(3 * inner, self.conv_kernel, hidden=False),)
        rule = DeltaRule(
            rows, heads, size, size, self.chunk_size, precision, parameter_tensors(inner, heads)  # dt_bias, A_log
        )  # fmt: skip
        # o and the gate are read, one is written; backward these and the gradient are read, two are written
        norm = replace(
            rms_norm(rows * heads, size, precision),
            forwards=3.0 * hidden.width,
            backwards=5.0 * hidden.width,
            weights=0.0,
            kept=2.0 * hidden.width,
        )
        return (
            hidden.into(3 * inner + heads, splits=(inner, inner, inner, heads)),
            small,
            column_parallel(wide, hidden.cut),
            column_parallel(wide, hidden.cut),
            CausalConvolution(rows, 3 * inner, precision, self.conv_kernel, weights),
            rule,
            norm_of_heads(norm, hidden.cut),
            hidden.out_of(inner),
        )
