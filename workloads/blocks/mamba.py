"""Mamba: a state-space model whose scan runs position by position, in one kernel.

Gu and Dao 2023 (arXiv:2312.00752). A product makes x and z; a causal convolution follows on x. Of its output another
product makes dt, B and C, and a third widens dt to the inner features. Each feature has a state of state_size numbers.
Jamba (Lieber et al. 2024, arXiv:2403.19887, section 6.4) adds norms of dt, B and C.

Kernels are those of transformers (models/jamba/modeling_jamba.py, ``cuda_kernels_forward``): causal_conv1d_fn and
selective_scan_fn. The scan runs in fp32 without tensor cores; its FLOPs are those of its authors.

Tensor parallelism cuts the inner features. dt, B and C are sums over all of them, so that there is a further, small
all-reduce in either pass, which Mamba-2 has not (Dao and Gu 2024, arXiv:2405.21060, section 8.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from clustersim.simulator.hardware.kernel import BYTES, Kernel, Operation
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.quantities import Count, Flag
from clustersim.workloads.blocks._block import Block, HiddenStates
from clustersim.workloads.operators.elementwise import rms_norm
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.operator import (
    Exchange,
    Operator,
    ParameterTensor,
    fuses,
    matrix,
    parameter_tensors,
)
from clustersim.workloads.operators.recurrent import CausalConvolution
from clustersim.workloads.operators.sharded import ShardedOperator

SCAN = Operation("selective scan", "elementwise")

SCAN_FLOPS = 9
"""FLOPs for each number of the state and each position (state-spaces/mamba, issue 110: 9 B L D N)."""

FEATURES_OF_A_RANK = 16
"""Hidden features for each feature of dt (transformers, MambaConfig: ``time_step_rank`` is ceil(hidden_size / 16))."""


class Mamba(Block):
    """Keys as in transformers' MambaConfig."""

    state_size: Count = 16
    """Numbers of the state of each inner feature (N)."""
    expand: Count = 2
    """Inner features for each of hidden_size."""
    conv_kernel: Count = 4
    """Positions of the causal convolution."""
    time_step_rank: Count | None = None
    """Features from which dt is made; by default hidden_size / 16, rounded up."""
    use_conv_bias: Flag = True
    """The convolution has a bias."""
    inner_norms: Flag = False
    """RMS norms of dt, B and C, as in Jamba."""

    def counts(self, features: int) -> Mapping[str, int]:
        """The inner features."""
        return {"inner features of mamba": self.expand * features}

    def operators(self, hidden: HiddenStates) -> tuple[Operator, ...]:
        """The convolution and the scan between the products, on the inner features of one rank."""
        inner, rows, precision = self.expand * hidden.features // hidden.ranks, hidden.rows, hidden.precision
        rank = self.time_step_rank or ceil(hidden.features / FEATURES_OF_A_RANK)
        bias = (ParameterTensor(inner),) * self.use_conv_bias
        weights = (matrix(inner, self.conv_kernel, hidden=False), *bias)
        small = rank + 2 * self.state_size
        norms = replace(
            rms_norm(rows, small, precision, fused=fuses(hidden.fused, "rms_norm")),
            parameters=parameter_tensors(rank, self.state_size, self.state_size),
        )
        return (
            hidden.into(2 * inner),
            CausalConvolution(rows, inner, precision, self.conv_kernel, weights),
            _summed(Linear(rows, inner, small, False, precision), hidden),
            *(norms,) * self.inner_norms,
            Linear(rows, rank, inner, True, precision),
            SelectiveScan(rows, inner, self.state_size, precision),
            hidden.out_of(inner),
        )


def _summed(product: Linear, hidden: HiddenStates) -> Operator:
    """*product* of the inner features of a rank: its output, and the gradient of that, are summed over all ranks."""
    if hidden.ranks == 1:
        return product
    nbytes = float(product.rows * product.outputs * hidden.width)
    exchange = Exchange("all_reduce", nbytes, hidden.cut.over)
    return ShardedOperator(product, product.tensors, before=(("I", exchange),), after=(("F", exchange),))


@dataclass(frozen=True)
class SelectiveScan(Operator):
    """The scan of *features* with *state* numbers each over *length* positions, and its gate, in one kernel."""

    length: int
    features: int
    state: int
    precision: str = "fp32"

    @property
    def operation(self) -> Operation:
        """One kernel in each pass."""
        return SCAN

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """A_log and D."""
        return (matrix(self.features, self.state, hidden=False), ParameterTensor(self.features))

    def forward(self, samples: int) -> tuple[Kernel, ...]:
        """Reads x, dt, z, B and C; writes the output with and without its gate."""
        return (self._kernel(samples, 5, 2, 1),)

    def backward_input(self, samples: int) -> tuple[Kernel, ...]:
        """Reads these, the output and its gradient; writes the gradients of x, dt, z, B and C."""
        return (self._kernel(samples, 8, 4, 2),)

    def kept_bytes(self, samples: int) -> float:
        """dt, z, the output without its gate, B and C; the product that makes dt keeps x."""
        return float(samples * self.length * (3 * self.features + 2 * self.state) * BYTES[self.precision])

    def _kernel(self, samples: int, wide: int, narrow: int, passes: int) -> Kernel:
        positions = samples * self.length
        flops = float(SCAN_FLOPS * passes * positions * self.features * self.state)
        nbytes = float(positions * (wide * self.features + narrow * self.state) * BYTES[self.precision])
        return Kernel(flops, nbytes, None, "fp32", operation=SCAN)
