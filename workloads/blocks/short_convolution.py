"""A gated short convolution, which LFM2 has in place of attention in most layers.

A product makes b, c and x; a causal convolution over a few positions runs on b x, and c scales what it gives, before
the last product (Liquid AI 2025, arXiv:2511.23404, section 2; transformers, models/lfm2/modeling_lfm2.py,
``Lfm2ShortConv.cuda_kernels_forward``, whose convolution is causal_conv1d without an activation).
"""

from __future__ import annotations

from collections.abc import Mapping

from clustersim.simulator.hardware.kernel import Operation
from clustersim.simulator.reading.quantities import Count, Flag
from clustersim.workloads.blocks._block import Block, HiddenStates
from clustersim.workloads.operators.elementwise import Elementwise
from clustersim.workloads.operators.operator import Operator, ParameterTensor, matrix
from clustersim.workloads.operators.recurrent import CausalConvolution

PRODUCT = Operation("gate", "elementwise")


class ShortConvolution(Block):
    """Keys as in transformers' Lfm2Config, there with ``conv_`` before them."""

    kernel: Count = 3
    """Positions of the causal convolution (``conv_L_cache``)."""
    bias: Flag = False
    """The products and the convolution have biases."""

    def counts(self, features: int) -> Mapping[str, int]:
        """The features."""
        return {"features of short_convolution": features}

    def operators(self, hidden: HiddenStates) -> tuple[Operator, ...]:
        """Products of tensors before and behind the convolution, on the features of one rank."""
        own = hidden.features // hidden.ranks
        weights = (matrix(own, self.kernel, hidden=False), *(ParameterTensor(own),) * self.bias)
        # reads two tensors and writes one; backward it reads three and writes two
        product = Elementwise(
            hidden.rows * own,
            3.0 * hidden.width,
            5.0 * hidden.width,
            kept=2.0 * hidden.width,
            precision=hidden.precision,
            operation=PRODUCT,
        )
        return (
            hidden.into(3 * own, bias=self.bias),
            product,
            CausalConvolution(hidden.rows, own, hidden.precision, self.kernel, weights),
            product,
            hidden.out_of(own, bias=self.bias),
        )
