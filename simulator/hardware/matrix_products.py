"""Seconds of the arithmetic of matrix products: on GPUs by tiles, waves over the SMs, filling of a tile, and division
along the depth; on TPUs by systolic arrays, with vector units beside them for fused attention.

A product is divided into tiles, which the streaming multiprocessors (SMs) compute in waves; a last wave that is not
full costs as much as a full one (NVIDIA, "Matrix Multiplication Background User's Guide"). A tile loads its operands
again for each step along k, so that small tiles are bound by these loads; before its first step and after its last it
costs as much as some more steps. A library takes the fastest tile. One function serves the simulator, which prices one
product at a time, and the fit to measured products (`scenarios.accuracy.products`), which prices thousands.

Arithmetic of matrix products and fused attention on TPUs: systolic arrays, and vector units beside them.

A systolic array of *side* x *side* holds a tile of one operand and streams the rows of the other through it, so that
operands are padded to multiples of *side* in two dimensions; the next tile is loaded while *side* rows stream, so that
fewer rows take as long (Austin et al. 2025, "How to Scale Your Model", part 2 and its appendix on systolic arrays; 128,
from TPU v6e on 256). Either operand may be the one that is held. Rows stream in groups of eight (Google Cloud, "Cloud
TPU performance guide").
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, prod, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustersim.simulator.hardware.kernel import EXECUTED, Kernel
from clustersim.simulator.reading.dataclass import dataclass

TILES = ((256, 128), (128, 128), (128, 64), (64, 64), (128, 32), (64, 32))
"""(m, n) of output tiles of a matrix library, each also transposed (NVIDIA's guide, section "Tile Quantization")."""

SPLITS = (1, 2, 3, 4, 6, 8, 16, 32)
"""Parts along k into which a product with few tiles is divided, so that more SMs take part (split-K)."""

SPLIT_DEPTH = 128
"""The least k of a part. CUTLASS ("Efficient GEMM in CUDA", section "Parallelized Reductions") divides products with
small m and n and large k, without a number: four inner steps of 32."""

CANDIDATES = np.array(
    [(*tile, split) for rows, columns in TILES for tile in {(rows, columns), (columns, rows)} for split in SPLITS]
)
"""(m, n, parts along k) of all ways to compute a product (candidates x 3)."""

TILE_M, TILE_N, PARTS = CANDIDATES.T.astype(float)

NORMAL = NormalDist()

SPREADS = 5.0
"""Standard deviations beyond which no count is expected: one in three million is."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tiling:
    """How products run on a GPU.

    - *k_half*: what a tile costs beside its steps along k, in such steps: the depth of half speed.
    - *side*: side of a square tile (elements) whose loads take as long as its arithmetic; smaller tiles are bound by
      loads, in proportion (0: loads are free).
    - *split*: seconds that the reduction of a product divided along k takes.
    - *latency*: seconds of a kernel without work: its start and its end.
    - *overlap* q: arithmetic a and memory traffic b of a product take (a^q + b^q)^(1/q).
    """

    k_half: float = 0.0
    side: float = 0.0
    split: float = 0.0
    latency: float = 0.0
    overlap: float = float("inf")


def arithmetic_seconds(
    down: Numbers, n: Any, k: Any, *, rate: Any, sms: int, tiling: Tiling, deepest: float | None = None
) -> Numbers:
    """Return the seconds of the fastest candidate (leading shape of the arguments).

    *down*: tiles along m by candidate (... x candidates); *n*, *k* and *rate*, the FLOP/s of all SMs, with a last axis
    of 1 or as numbers. *deepest*: the largest k of products of unequal depth; *k* is their mean. Their tiles take
    turns, and the deepest bounds the launch.
    """
    tiles = down * np.ceil(n / TILE_N)
    multiply = 2.0 * TILE_M * TILE_N * sms / rate  # one step along k of a tile
    step = multiply * np.maximum(1.0, tiling.side * (0.5 / TILE_M + 0.5 / TILE_N))
    if deepest is not None:
        waves = np.ceil(tiles / sms)
        seconds = np.maximum(waves * k, deepest) * step + waves * tiling.k_half * multiply
        return np.asarray(np.where(PARTS > 1, np.inf, seconds).min(axis=-1))
    waves = np.ceil(tiles * PARTS / sms)
    seconds = waves * (np.ceil(k / PARTS) * step + tiling.k_half * multiply) + np.where(PARTS > 1, tiling.split, 0.0)
    return np.asarray(np.where((PARTS > 1) & (k < SPLIT_DEPTH * PARTS), np.inf, seconds).min(axis=-1))


def tiles_down(m: Any, batch: Any = 1) -> Numbers:
    """Return the tiles along *m* (with a last axis of 1, or a number) by candidate, of *batch* equal products."""
    return np.asarray(batch * np.ceil(m / TILE_M))


@lru_cache(maxsize=100_000)
def one_product(
    shape: tuple[int, int, int, int],
    rate: float,
    sms: int,
    tiling: Tiling,
    rows: tuple[int, ...] = (),
    depths: tuple[int, ...] = (),
    random_rows: bool = False,
) -> float:
    """Return the seconds of the arithmetic of one launch of *shape* (batch, m, n, k).

    *rows*: m of each product, if unequal ones share the launch: its tiles are one sequence of waves; *depths*: k of
    each. *random_rows*: as `expected_tiles_down` has them.
    """
    batch, m, n, k = shape
    if random_rows:
        down = (
            batch * expected_tiles_down(m) if not rows else np.sum([expected_tiles_down(one) for one in rows], axis=0)
        )
    else:
        down = tiles_down(m, batch) if not rows else _sum_down(rows)
    deepest = float(max(depths)) if depths else None
    return float(arithmetic_seconds(down, n, k, rate=rate, sms=sms, tiling=tiling, deepest=deepest))


@lru_cache(maxsize=10_000)
def expected_tiles_down(mean: float) -> Numbers:
    """Return the expected tiles along m by candidate, if m is a count of tokens with that *mean*.

    Each of many tokens chooses an expert with a small probability, so that the count is Poisson's, here normal with a
    variance of *mean*. The sum of P(m > k tile) over all k is the mean of its tiles: half a tile more than *mean* fills
    where counts spread over more than a tile, whole tiles where they do not.

    >>> expected_tiles_down(1024.0)[:3].round(2).tolist(), tiles_down(1024)[:3].tolist()
    ([8.5, 8.5, 8.5], [8.0, 8.0, 8.0])
    """
    if not mean:
        return np.zeros(len(TILE_M))
    deviation = sqrt(mean)
    found = []
    for tile in TILE_M.tolist():
        surely = int(max(0.0, mean - SPREADS * deviation) // tile)
        last = int((mean + SPREADS * deviation) // tile)
        found.append(surely + sum(NORMAL.cdf((mean - k * tile) / deviation) for k in range(surely, last + 1)))
    return np.array(found)


def _sum_down(rows: Sequence[int]) -> Numbers:
    return np.asarray(tiles_down(np.array(rows, float)[:, None]).sum(axis=0))


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
