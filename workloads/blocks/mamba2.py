"""Mamba-2: a state-space model whose scan runs in chunks, by matrix products (SSD).

Dao and Gu 2024 (arXiv:2405.21060). A product makes z, x, B, C and dt; a causal convolution over a few positions follows
on x, B and C. Head h has a state of head_dim x state_size numbers, S_t = exp(dt_t A) S_(t-1) + dt_t x_t B_t^T, and its
output is y_t = S_t C_t + D x_t; heads of a group share B and C. In a chunk of Q positions this is attention without
softmax, (C B^T masked) x, and between chunks only states pass (section 6).

Kernels are those of state-spaces/mamba (mamba_ssm/ops/triton/ssd_combined.py, ``mamba_split_conv1d_scan_combined``).
The forward pass keeps z, x, B, C and dt ahead of the convolution, and the output before the gate; the backward pass
runs the convolution, the states and C B^T again. States of chunks are in fp32. No efficiency of Triton's kernels is
assumed beside that of products of their shapes.

Tensor parallelism cuts heads and groups, so that what is between the two products needs no exchange (section 8.1;
Megatron-LM, core/ssm/mamba_mixer.py). Context parallelism exchanges positions for heads ahead of the convolution and
behind the scan, whatever attention does; groups that are fewer than ranks are repeated (core/ssm/
mamba_context_parallel.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation, matmul, memory_bound
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.quantities import Count, Flag
from clustersim.simulator.reading.validation import Fault
from clustersim.workloads.blocks._block import Block, HiddenStates, heads_for_positions
from clustersim.workloads.operators.attentions.context_parallel import ContextCut
from clustersim.workloads.operators.elementwise import rms_norm
from clustersim.workloads.operators.operator import Operator, ParameterTensor, matrix, parameter_tensors
from clustersim.workloads.operators.recurrent import CausalConvolution

FP32 = BYTES["fp32"]
SCAN = Operation("state passing", "elementwise", "scan")


class Mamba2(Block):
    """Keys as in transformers' Mamba2Config."""

    state_size: Count = 128
    """Numbers of a head's state for each of its features (N)."""
    num_heads: Count | None = None
    """Heads; by default expand times hidden_size / head_dim."""
    head_dim: Count = 64
    """Features of a head (P)."""
    expand: Count = 2
    """Inner features for each of hidden_size, where num_heads is not given."""
    n_groups: Count = 8
    """Groups of heads with the same B and C; tensor-parallel ranks must divide them."""
    conv_kernel: Count = 4
    """Positions of the causal convolution."""
    chunk_size: Count = 256
    """Positions of a chunk of the scan (Q): longer ones need fewer states and more products."""
    use_conv_bias: Flag = True
    """The convolution has a bias."""
    gated_norm: Flag = True
    """A norm of each group stands behind the gate (``mamba_rms_norm`` of Falcon-H1)."""

    def heads(self, features: int) -> int:
        """All heads. Raises `Fault` if head_dim does not divide the inner features."""
        inner = self.expand * features
        if self.num_heads is None and inner % self.head_dim:
            raise Fault("head_dim", f"{self.head_dim} does not divide expand x hidden_size = {inner}; give num_heads")
        return self.num_heads or inner // self.head_dim

    def counts(self, features: int) -> Mapping[str, int]:
        """Heads and groups."""
        heads = self.heads(features)
        if heads % self.n_groups:
            raise Fault("n_groups", f"{self.n_groups} does not divide the {heads} heads")
        return {"heads of mamba2": heads, "groups of mamba2": self.n_groups}

    def context_fault(self, hidden: HiddenStates, context: ContextCut) -> str:
        """Ranks must divide the heads of a tensor-parallel rank, and its groups, or be a multiple of them."""
        heads, groups = self.heads(hidden.features) // hidden.ranks, self.n_groups // hidden.ranks
        if heads % context.ranks:
            return f"its {heads} heads of mamba2 are exchanged for positions, and the ranks do not divide them"
        fits = groups % context.ranks == 0 or context.ranks % groups == 0
        return "" if fits else f"it is no divisor or multiple of the {groups} groups of mamba2"

    def operators(self, hidden: HiddenStates) -> tuple[Operator, ...]:
        """One product in, the convolution and the scan, a norm over the features of each group, one product out."""
        heads, groups = self.heads(hidden.features) // hidden.ranks, self.n_groups // hidden.ranks
        inner, shared = heads * self.head_dim, groups * self.state_size
        parts = hidden.context.ranks
        repeated = max(1, parts // groups)
        scan = StateSpaceScan(
            hidden.whole_length,
            heads // parts,
            groups * repeated // parts,
            self.head_dim,
            self.state_size,
            self.chunk_size,
            hidden.precision,
            # dt_bias, A_log, D; a rank of context parallelism holds all, and uses those of its heads
            parameter_tensors(heads, heads, heads),
        )
        channels = inner + 2 * shared
        convolution = CausalConvolution(
            hidden.whole_length,
            (inner + 2 * shared * repeated) // parts,
            hidden.precision,
            self.conv_kernel,
            (matrix(channels, self.conv_kernel, hidden=False), *(ParameterTensor(channels),) * self.use_conv_bias),
            again=True,
        )
        given = (inner, inner, shared * repeated, shared * repeated, heads)
        return (
            hidden.into(2 * inner + 2 * shared + heads),
            *heads_for_positions((convolution, scan), given, (inner,), hidden),
            *(rms_norm(hidden.rows, inner, hidden.precision),) * self.gated_norm,
            hidden.out_of(inner),
        )


@dataclass(frozen=True)
class StateSpaceScan(Operator):
    """The scan of *heads* in *groups* over *length* positions, in chunks of *chunk*, with its gate.

    FLOPs are model FLOPs, of whole squares of a chunk and without what the backward pass computes again; shapes are
    what runs: tiles above the diagonal of a chunk are left out.
    """

    length: int
    heads: int
    groups: int
    head_size: int
    state: int
    chunk: int
    precision: str = "fp32"
    parameters: tuple[ParameterTensor, ...] = ()

    @property
    def operation(self) -> Operation:
        """Beside its products it passes states on."""
        return SCAN

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """As given."""
        return self.parameters

    @property
    def side(self) -> int:
        """Positions of a chunk; of a sequence that is shorter, all."""
        return min(self.chunk, self.length)

    @property
    def chunks(self) -> int:
        """Chunks of a sequence."""
        return ceil(self.length / self.side)

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """Decays, the states of each chunk, their passing, C B^T, and the output with its gate."""
        x, shared, steps, states, square = self._bytes(samples)
        passed = states * BYTES[self.precision] / FP32
        return (
            memory_bound(3 * steps, precision=self.precision),
            self._state_product(samples, x + shared + 2 * steps + states),
            memory_bound(states + passed, precision=self.precision),
            self._group_product(samples, 2 * shared + square),
            self._of_chunk(samples, square + steps),
            # z is read, the output is written with and without it
            self._state_product(samples, 4 * x + shared + steps + passed),
        )

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """Decays, states and C B^T again; the gate; then two gradients of each product, and those of the decays."""
        x, shared, steps, states, square = self._bytes(samples)
        passed = states * BYTES[self.precision] / FP32
        return (
            memory_bound(3 * steps + 5 * x, precision=self.precision, launches=2),
            memory_bound(2 * (states + passed) + passed, precision=self.precision, launches=2),
            # states again, and their gradient
            self._state_product(samples, 2 * (x + shared + 2 * steps + states), runs=2),
            # of x and of C; of B
            self._state_product(samples, x + 2 * shared + 2 * passed, counts=2, runs=2),
            self._state_product(samples, x + shared + passed),
            # x: C B^T transposed
            self._of_chunk(samples, 3 * x + square + steps),
            # C B^T and its decays have the same product of the gradient and x, computed twice
            self._of_chunk(samples, 4 * x + 2 * square, runs=2),
            # C B^T again, and the gradients of both
            self._group_product(samples, 6 * shared + 3 * square, counts=2, runs=3),
            memory_bound(4 * steps, precision=self.precision),
        )

    def kept_bytes(self, samples: int) -> float:
        """dt, z and the output without its gate; x, B and C are kept by the convolution."""
        per_position = self.heads + 2 * self.heads * self.head_size
        return float(samples * self.length * per_position * BYTES[self.precision])

    def transient_bytes(self, phase: str, samples: int) -> float:
        """The states of all chunks in fp32, and C B^T; backward, the gradients of both too."""
        *_, states, square = self._bytes(samples)
        return (states + square) * (1 if phase == "F" else 2)

    def _bytes(self, samples: int) -> tuple[float, float, float, float, float]:
        """Bytes of x, of B, of dt in fp32, of the states in fp32 and of C B^T in fp32."""
        width, positions = BYTES[self.precision], samples * self.length
        return (
            float(positions * self.heads * self.head_size * width),
            float(positions * self.groups * self.state * width),
            float(positions * self.heads * FP32),
            float(samples * self.chunks * self.heads * self.head_size * self.state * FP32),
            float(samples * self.chunks * self.groups * self.side**2 * FP32),
        )

    def _state_product(self, samples: int, nbytes: float, *, counts: int = 1, runs: int = 1) -> Kernel:
        """Products of chunk x state x head size, for each head and chunk. *counts* of *runs* are model FLOPs."""
        batch = samples * self.heads * self.chunks
        return self._product(batch, (self.side, self.state, self.head_size), nbytes, counts, runs)

    def _group_product(self, samples: int, nbytes: float, *, counts: int = 1, runs: int = 1) -> Kernel:
        """Products of chunk x chunk x state, for each group and chunk."""
        batch = samples * self.groups * self.chunks
        return self._product(batch, (self.side, self.side, self.state), nbytes, counts, runs)

    def _of_chunk(self, samples: int, nbytes: float, *, runs: int = 1) -> Kernel:
        """Products of chunk x head size x chunk, half of which a causal mask leaves; one of *runs* is counted."""
        batch = samples * self.heads * self.chunks
        run = self._product(batch, (self.side, self.head_size, max(1, self.side // 2)), nbytes, 1, runs)
        return replace(run, flops=2.0 * batch * self.side**2 * self.head_size)

    def _product(self, batch: int, sides: tuple[int, int, int], nbytes: float, counts: int, runs: int) -> Kernel:
        one = matmul(*sides, batch=batch * runs, precision=self.precision)
        return replace(one, flops=one.flops * counts / runs, nbytes=nbytes, launches=runs)
