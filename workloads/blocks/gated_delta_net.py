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
from dataclasses import dataclass, replace
from math import ceil

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, matmul, memory_bound
from clustersim.simulator.reading.quantities import Count
from clustersim.simulator.reading.validation import Fault
from clustersim.workloads.blocks._block import Block, HiddenStates, heads_for_positions
from clustersim.workloads.operators.attentions.context_parallel import Context
from clustersim.workloads.operators.elementwise import rms_norm
from clustersim.workloads.operators.operator import Operator
from clustersim.workloads.operators.parameter import ParameterTensor, matrix, parameter_tensors
from clustersim.workloads.operators.recurrent import CausalConvolution
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

    def context_fault(self, hidden: HiddenStates, context: Context) -> str:
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
class DeltaRule(Operator):
    """The rule of *heads* over *length* positions, in chunks of *chunk*; queries and keys are repeated for each head.

    FLOPs are model FLOPs: whole squares of a chunk, nothing twice. Shapes are what runs.
    """

    length: int
    heads: int
    key: int
    value: int
    chunk: int
    precision: str = "fp32"
    parameters: tuple[ParameterTensor, ...] = ()

    @property
    def operation(self) -> Operation:
        """Beside its products there are decays, norms of queries and keys, and inverses."""
        return RULE

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """As given."""
        return self.parameters

    @property
    def side(self) -> int:
        """Positions of a chunk; of a sequence that is shorter, all."""
        return min(self.chunk, self.length)

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """K K^T, its inverse, w and u; the states in turn; the output from the states and from the chunk."""
        keys, values, square, states = self._bytes(samples)
        return (
            # norms of queries and keys; the inverse in place
            self._memory(4 * keys + 2 * square, 4),
            self._squares(samples, self.key, 2 * keys + 2 * square, counts=2, runs=2),
            self._squares(samples, self.value, 2 * values + square),
            self._states(samples, 2 * keys + 2 * values + states, counts=2, runs=2),
            self._chunks(samples, keys + values + states),
            self._squares(samples, self.key, 2 * keys),
            self._squares(samples, self.value, 2 * values),
        )

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """w, u, states and Q K^T again; two gradients of each product; those of norms, decays and the inverse."""
        keys, values, square, states = self._bytes(samples)
        return (
            self._memory(6 * keys + 4 * square, 5),
            # three products forward, two of them again
            self._squares(samples, self.key, 12 * keys + 6 * square, counts=6, runs=8),
            # two products forward, one of them again
            self._squares(samples, self.value, 10 * values + 3 * square, counts=4, runs=5),
            # states again, then their gradients, from the last chunk to the first
            self._states(samples, 4 * (keys + values) + 2 * states, counts=2, runs=4),
            # of what multiplies states: queries, w, keys and values
            self._chunks(samples, 4 * (keys + values) + 2 * states, counts=4),
        )

    def kept_bytes(self, samples: int) -> float:
        """Queries, keys and values, the inverses, a and b."""
        keys, values, square, _ = self._bytes(samples)
        return 2 * keys + values + square + 2.0 * samples * self.length * self.heads * FP32

    def transient_bytes(self, phase: str, samples: int) -> float:
        """w, u and the states of all chunks; backward, the gradients too."""
        keys, values, _, states = self._bytes(samples)
        return (keys + values + states) * (1 if phase == "F" else 2)

    def _bytes(self, samples: int) -> tuple[float, float, float, float]:
        """Bytes of keys, of values, of squares of chunks, and of states of chunks."""
        positions, width = samples * self.heads * self.length, BYTES[self.precision]
        chunks = samples * self.heads * ceil(self.length / self.side)
        return (
            float(positions * self.key * width),
            float(positions * self.value * width),
            float(chunks * self.side**2 * width),
            float(chunks * self.key * self.value * width),
        )

    def _memory(self, nbytes: float, launches: int) -> Kernel:
        return memory_bound(nbytes, precision=self.precision, launches=launches)

    def _squares(self, samples: int, depth: int, nbytes: float, *, counts: int = 1, runs: int = 1) -> Kernel:
        """Products of chunk x chunk x *depth*, for each head and chunk. *counts* of *runs* are model FLOPs."""
        batch = samples * self.heads * ceil(self.length / self.side)
        return self._product((batch * runs, self.side, self.side, depth), nbytes, counts, runs)

    def _chunks(self, samples: int, nbytes: float, *, counts: int = 1) -> Kernel:
        """Products of chunk x value x key, for each head and chunk."""
        batch = samples * self.heads * ceil(self.length / self.side)
        return self._product((batch * counts, self.side, self.value, self.key), nbytes, counts, counts)

    def _states(self, samples: int, nbytes: float, *, counts: int, runs: int) -> Kernel:
        """Products of key x value x position, for each head: chunks run one after the other, heads side by side."""
        return self._product(
            (samples * self.heads, self.key, self.value, runs * self.length), nbytes, counts, runs, launches=runs // 2
        )

    def _product(
        self, shape: tuple[int, int, int, int], nbytes: float, counts: int, runs: int, launches: int = 0
    ) -> Kernel:
        batch, m, n, k = shape
        one = matmul(m, n, k, batch=batch, precision=self.precision)
        return replace(one, flops=one.flops * counts / runs, nbytes=nbytes, launches=launches or runs)
