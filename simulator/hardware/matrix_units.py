"""Arithmetic of matrix products and fused attention on TPUs: systolic arrays, and vector units beside them.

A systolic array of *side* x *side* holds a tile of one operand and streams the rows of the other through it, so that
operands are padded to multiples of *side* in two dimensions; the next tile is loaded while *side* rows stream, so that
fewer rows take as long (Austin et al. 2025, "How to Scale Your Model", part 2 and its appendix on systolic arrays; 128,
from TPU v6e on 256). Either operand may be the one that is held. Rows stream in groups of eight (Google Cloud, "Cloud
TPU performance guide").
"""

from __future__ import annotations

from math import ceil, prod

from clustersim.simulator.hardware.kernel import EXECUTED, Kernel

SUBLANES = 8
"""Rows that a vector register holds."""

BLOCK = 512
"""Queries and keys of a block of attention: MaxText, base.yml (sa_block_q, sa_block_kv). Blocks that a mask cuts are
computed whole."""

PRODUCTS = {"forward": 2, "backward": 7}
"""Products of attention for each score: backward one kernel makes the gradients of keys and values, another that of
queries, and each recomputes scores and their gradients (JAX, pallas/ops/tpu/splash_attention/
splash_attention_kernel.py; MaxText, base.yml, sa_use_fused_bwd_kernel is false)."""

SCORE_OPERATIONS = {"forward": 8, "backward": 18}
"""Operations of the vector units for each score, counted in the same kernels: compare, combine and select for the mask,
the difference to the maximum and the factor of the exponential; forward maximum, sum and rounding; in each of the two
backward kernels a difference, a product and two roundings. The exponential itself has a unit of its own."""


def padded_flops(kernel: Kernel, side: int) -> float:
    """Return the FLOPs of the product *kernel* on arrays of *side*, padding included.

    >>> from clustersim.simulator.hardware.kernel import matmul
    >>> padded_flops(matmul(256, 128, 128), 128) / (2 * 256 * 128 * 128)
    1.0
    >>> padded_flops(matmul(256, 64, 64), 128) / (2 * 256 * 64 * 64), padded_flops(matmul(8, 512, 512), 128) / (
    ...     2 * 8 * 512 * 512)
    (4.0, 16.0)
    """
    assert kernel.shape is not None
    batch, m, n, k = kernel.shape
    if kernel.rows:
        return 2.0 * sum(_faces(rows, n, side) for rows in kernel.rows) * _whole(k, side)
    depth = sum(_whole(one, side) for one in kernel.depths) if kernel.depths else batch * _whole(k, side)
    return 2.0 * _faces(m, n, side) * depth


def attention_seconds(kernel: Kernel, rate: float, side: int, vector_rate: float) -> float:
    """Return the seconds of fused attention with products at *rate* (FLOP/s) and *vector_rate* operations a second.

    The time of the vector units adds to that of the products, which wait for the scores and give them.
    """
    assert kernel.shape is not None
    batch, rows, columns, depth = kernel.shape
    # one edge of the mask cuts half a block a row in the mean, the two edges of a window a whole one
    edges = 2 if 2 * columns < rows else 1
    columns = min(_whole(columns, BLOCK // 2) + (edges - 1) * BLOCK // 2, max(rows, columns))
    scores = prod((batch, rows, columns)) / EXECUTED[kernel.attention]
    products = 2.0 * scores * PRODUCTS[kernel.attention] * _whole(depth, side) / rate
    return products + (scores * SCORE_OPERATIONS[kernel.attention] / vector_rate if vector_rate else 0.0)


def _faces(m: int, n: int, side: int) -> int:
    """Return the elements of an m x n result with its padding: one side streams, the other is held."""
    return min(_streamed(m, side) * _whole(n, side), _whole(m, side) * _streamed(n, side))


def _whole(size: int, side: int) -> int:
    """Return *size* padded to a multiple of *side*."""
    return ceil(size / side) * side


def _streamed(rows: int, side: int) -> int:
    """Return for how many rows *rows* stream, 0 for none."""
    return max(_whole(rows, SUBLANES), side) if rows else 0
