"""Gated delta net: linear attention whose state forgets, and is corrected by what it predicts wrongly.

Yang, Kautz and Hatamizadeh 2024 (arXiv:2412.06464). A product makes queries, keys, values and the gate z, and two
numbers a head, a (decay) and b (strength); a causal convolution follows on queries, keys and values. A head has a state
of key_head_dim x value_head_dim numbers, S_t = a_t S_(t-1) (1 - b_t k_t k_t^T) + b_t v_t k_t^T. Qwen3-Next has it in
three of four layers.

The scan runs in chunks of Q positions (section 3.3; flash-linear-attention, fla/ops/gated_delta_rule/chunk.py): K K^T
of a chunk, its triangular inverse, w and u from that, the states of the chunks one after the other, and the output. The
backward pass computes w, u, the states and Q K^T again.

Tensor parallelism cuts the heads (Megatron-LM, core/ssm/gated_delta_net.py). Context parallelism exchanges positions
for heads, as for Mamba-2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.quantities import Count
from clustersim.simulator.reading.validation import Fault
from clustersim.workloads.blocks._block import Block, HiddenStates, heads_for_positions
from clustersim.workloads.operators.attentions.context_parallel import ContextCut
from clustersim.workloads.operators.elementwise import rms_norm
from clustersim.workloads.operators.operator import Operator, ParameterTensor, matrix, parameter_tensors
from clustersim.workloads.operators.recurrent import CausalConvolution, ChunkedScan
from clustersim.workloads.operators.sharded import norm_of_heads

FP32 = BYTES["fp32"]
RULE = Operation("decay and inverse", "elementwise", "delta rule")


class GatedDeltaNet(Block):
    """Keys as in transformers' Qwen3NextConfig, there with ``linear_`` before them."""

    num_key_heads: Count = 16
    """Heads of queries and keys."""
    num_value_heads: Count = 32
    """Heads of values and of states; a multiple of num_key_heads."""
    key_head_dim: Count = 128
    """Features of a query and of a key."""
    value_head_dim: Count = 128
    """Features of a value."""
    conv_kernel: Count = 4
    """Positions of the causal convolution."""
    chunk_size: Count = 64
    """Positions of a chunk; 64 by default, as in flash-linear-attention."""

    def counts(self, features: int) -> Mapping[str, int]:
        """Heads of keys and of values."""
        if self.num_value_heads % self.num_key_heads:
            raise Fault(
                "num_value_heads", f"{self.num_value_heads} is no multiple of num_key_heads = {self.num_key_heads}"
            )
        return {
            "key heads of gated_delta_net": self.num_key_heads,
            "value heads of gated_delta_net": self.num_value_heads,
        }

    def context_fault(self, hidden: HiddenStates, context: ContextCut) -> str:
        """Ranks must divide the heads of a tensor-parallel rank."""
        heads = self.num_key_heads // hidden.ranks
        if heads % context.ranks == 0:
            return ""
        return f"its {heads} key heads of gated_delta_net are exchanged for positions, and the ranks do not divide them"

    def operators(self, hidden: HiddenStates) -> tuple[Operator, ...]:
        """The convolution, the rule, and a gated norm of each head between the products."""
        heads, parts = self.num_value_heads // hidden.ranks, hidden.context.ranks
        keys = self.num_key_heads // hidden.ranks * self.key_head_dim
        values = heads * self.value_head_dim
        channels = 2 * keys + values
        weights = (matrix(channels, self.conv_kernel, hidden=False),)
        convolution = CausalConvolution(
            hidden.whole_length, channels // parts, hidden.precision, self.conv_kernel, weights
        )
        rule = DeltaRule(
            hidden.whole_length,
            heads // parts,
            self.key_head_dim,
            self.value_head_dim,
            self.chunk_size,
            hidden.precision,
            parameter_tensors(heads, heads),  # dt_bias, A_log
        )
        # o and z are read, one is written; backward o, z and the gradient are read, two are written
        norm = replace(
            rms_norm(hidden.rows * heads, self.value_head_dim, hidden.precision),
            forwards=3.0 * hidden.width,
            backwards=5.0 * hidden.width,
            weights=0.0,
            kept=2.0 * hidden.width,
        )
        made = 2 * keys + 2 * values
        return (
            hidden.into(made + 2 * heads, splits=(made, 2 * heads)),
            *heads_for_positions((convolution, rule), (keys, keys, values, heads, heads), (values,), hidden),
            norm_of_heads(norm, hidden.cut),
            hidden.out_of(values),
        )


@dataclass(frozen=True)
class DeltaRule(ChunkedScan):
    """The rule of *heads* over *length* positions, in chunks of *chunk*; keys are repeated for each head."""

    parameters: tuple[ParameterTensor, ...] = ()

    @property
    def operation(self) -> Operation:
        """Beside its products there are decays, norms of queries and keys, and inverses."""
        return RULE

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """As given."""
        return self.parameters

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """K K^T, its inverse, w and u; the states in turn; the output from the states and from the chunk."""
        keys, values, square, states = self.bytes(samples)
        return (
            # norms of queries and keys; the inverse in place
            self.memory(4 * keys + 2 * square, 4),
            self.squares(samples, self.key, 2 * keys + 2 * square, counts=2, runs=2),
            self.squares(samples, self.value, 2 * values + square),
            self.states(samples, 2 * keys + 2 * values + states, counts=2, runs=2),
            self.chunks(samples, keys + values + states),
            self.squares(samples, self.key, 2 * keys),
            self.squares(samples, self.value, 2 * values),
        )

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """w, u, states and Q K^T again; two gradients of each product; those of norms, decays and the inverse."""
        keys, values, square, states = self.bytes(samples)
        return (
            self.memory(6 * keys + 4 * square, 5),
            # three products forward, two of them again
            self.squares(samples, self.key, 12 * keys + 6 * square, counts=6, runs=8),
            # two products forward, one of them again
            self.squares(samples, self.value, 10 * values + 3 * square, counts=4, runs=5),
            # states again, then their gradients, from the last chunk to the first
            self.states(samples, 4 * (keys + values) + 2 * states, counts=2, runs=4),
            # of what multiplies states: queries, w, keys and values
            self.chunks(samples, 4 * (keys + values) + 2 * states, counts=4),
        )

    def kept_bytes(self, samples: int) -> float:
        """Queries, keys and values, the inverses, a and b."""
        keys, values, square, _ = self.bytes(samples)
        return 2 * keys + values + square + 2.0 * samples * self.length * self.heads * FP32

    def transient_bytes(self, phase: str, samples: int) -> float:
        """w, u and the states of all chunks; backward, the gradients too."""
        keys, values, _, states = self.bytes(samples)
        return (keys + values + states) * (1 if phase == "F" else 2)
