"""Hyper-connections: several residual streams, from which each block takes a mixture, and to which it adds its result.

Xie et al. 2025, "mHC" (arXiv:2512.24880), and DeepSeek-V4: a product of all streams of a position makes the weights of
the mixture, of the result in each stream, and of the streams among themselves, whose matrix Sinkhorn's iterations make
doubly stochastic. Kernels are taken as fused: one before a block and one behind it, beside the product.
"""

from __future__ import annotations

from clustersim.simulator.hardware.kernel import BYTES, Operation
from clustersim.workloads.operators.elementwise import Elementwise
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.operator import Operator
from clustersim.workloads.operators.parameter import parameter_tensors

MIXED, ADDED = Operation("mixture of streams", "elementwise"), Operation("sum of streams", "elementwise")


def mixed(rows: int, hidden: int, streams: int, precision: str, *, last: bool = False) -> tuple[Operator, ...]:
    """What a block takes of *streams*; *last*: the head, behind which there are no streams.

    >>> sum(tensor.count for one in mixed(1, 4096, 4, "bf16") for tensor in one.tensors) == 24 * 4 * 4096 + 24 + 3
    True
    """
    weights = streams if last else (2 + streams) * streams
    wide = streams * hidden
    width = BYTES[precision]
    # the biases and scales of the weights; all streams are read and one is written, backward both are read and written
    learned = parameter_tensors(weights, 1 if last else 3)
    moved = (1.0 + 1.0 / streams) * width
    return (
        Linear(rows, wide, weights, False, precision, hidden=False),
        Elementwise(rows * wide, moved, 2.0 * width + moved, parameters=learned, precision=precision, operation=MIXED),
    )


def added(rows: int, hidden: int, streams: int, precision: str) -> Operator:
    """The streams among themselves, and the result of a block in each; it keeps that result."""
    width, one = BYTES[precision], BYTES[precision] / streams
    wide = rows * streams * hidden
    return Elementwise(wide, 2.0 * width + one, 3.0 * width + 2 * one, kept=one, precision=precision, operation=ADDED)
