"""Seconds of the arithmetic of matrix products: tiles, waves over the SMs, filling of a tile, and division along k.

A product is divided into tiles, which the streaming multiprocessors (SMs) compute in waves; a last wave that is not
full costs as much as a full one (NVIDIA, "Matrix Multiplication Background User's Guide"). A tile loads its operands
again for each step along k, so that small tiles are bound by these loads; before its first step and after its last it
costs as much as some more steps. A library takes the fastest tile. One function serves the simulator, which prices one
product at a time, and the fit to measured products (`scenarios.accuracy.products`), which prices thousands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
