"""The time of a product's arithmetic: closed forms of waves, depth, loads and division along k; brute force."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.kernel import grouped_matmul, matmul
from clustersim.simulator.hardware.matrix_products import (
    SPLIT_DEPTH,
    SPLITS,
    TILES,
    Tiling,
    arithmetic_seconds,
    one_product,
    tiles_down,
)

RATE, SMS = 100e12, 100


def seconds(m: int, n: int, k: int, tiling: Tiling | None = None, batch: int = 1) -> float:
    return one_product((batch, m, n, k), RATE, SMS, tiling or Tiling())


def test_the_last_wave_costs_as_much_as_a_full_one() -> None:
    whole = seconds(2560, 1280, 4096)  # 10 x 10 tiles of 256 x 128
    assert whole == pytest.approx(2 * 2560 * 1280 * 4096 / RATE)
    large = Tiling(side=256, split=1.0)  # smaller tiles and parts are slower
    assert seconds(2560, 1281, 4096, large) == pytest.approx(2 * seconds(2560, 1280, 4096, large))


def test_a_tile_costs_its_half_depth_beside_its_steps() -> None:
    deep = Tiling(k_half=512)
    assert seconds(2560, 1280, 512, deep) == pytest.approx(2 * seconds(2560, 1280, 512))
    assert seconds(2560, 1280, 1536, deep) == pytest.approx(4 / 3 * seconds(2560, 1280, 1536))


def test_small_tiles_are_bound_by_the_loads_of_their_operands() -> None:
    # one tile of 64 x 64 on each SM: of half the side whose loads are as long as its arithmetic
    assert seconds(64 * 10, 64 * 10, 128, Tiling(side=128)) == pytest.approx(2 * seconds(64 * 10, 64 * 10, 128))
    # large tiles are not
    assert seconds(2560, 1280, 512, Tiling(side=128)) == seconds(2560, 1280, 512)


def test_a_deep_product_of_few_tiles_is_divided_along_its_depth() -> None:
    one = seconds(128, 256, 32768)
    assert one == pytest.approx(2 * 128 * 256 * 32768 / RATE, rel=0.1)  # not a hundred times as long
    # unless the reduction costs more: 16 tiles of 64 x 32, of which each SM computes one
    assert seconds(128, 256, 32768, Tiling(split=1e-3)) == pytest.approx(100 / 16 * 2 * 128 * 256 * 32768 / RATE)
    assert seconds(128, 256, SPLIT_DEPTH) == seconds(128, 256, SPLIT_DEPTH, Tiling(split=1.0))


@pytest.mark.parametrize(("m", "n", "k"), [(4097, 640, 3000), (100, 77, 12345), (8192, 50304, 768), (64, 65536, 40)])
def test_the_fastest_candidate_is_that_of_a_search_one_by_one(m: int, n: int, k: int) -> None:
    tiling = Tiling(k_half=90, side=110, split=3e-6)
    best = float("inf")
    for rows, columns in TILES:
        for tile_m, tile_n in ((rows, columns), (columns, rows)):
            for parts in SPLITS:
                if parts > 1 and k < parts * SPLIT_DEPTH:
                    continue
                waves = ceil(ceil(m / tile_m) * ceil(n / tile_n) * parts / SMS)
                loads = max(1.0, tiling.side * (1 / tile_m + 1 / tile_n) / 2)
                step = 2 * tile_m * tile_n / (RATE / SMS)
                one = waves * (ceil(k / parts) * loads + tiling.k_half) * step
                best = min(best, one + (tiling.split if parts > 1 else 0))
    assert seconds(m, n, k, tiling) == pytest.approx(best)


def test_many_products_at_once_are_priced_as_one_by_one() -> None:
    sides = np.random.default_rng(0).integers(1, 9000, (50, 3)).astype(float)
    tiling = Tiling(k_half=90, side=110, split=3e-6)
    together = arithmetic_seconds(
        tiles_down(sides[:, :1]), sides[:, 1:2], sides[:, 2:], rate=RATE, sms=SMS, tiling=tiling
    )
    assert together == pytest.approx([seconds(int(m), int(n), int(k), tiling) for m, n, k in sides])


def test_a_kernel_adds_its_start_and_overlaps_arithmetic_with_memory() -> None:
    gpu = Accelerator(peak_flops=RATE, memory_bandwidth=1e12, sms=SMS)
    kernel = matmul(2560, 1280, 512, precision="bf16")
    arithmetic, memory = kernel.flops / RATE, kernel.nbytes / 1e12
    assert gpu.kernel_seconds(kernel) == pytest.approx(max(arithmetic, memory))
    smooth = replace(gpu, overlap=2.0, kernel_latency=3e-6)
    assert smooth.kernel_seconds(kernel) == pytest.approx((arithmetic**2 + memory**2) ** 0.5 + 3e-6)


def test_products_alone_run_faster_than_in_a_step_by_the_burst() -> None:
    gpu = Accelerator(
        peak_flops={"bf16": 1e12, "fp8": 2e12}, sms=1, matmul_efficiency=0.6, low_precision_efficiency=0.5, burst=1.2
    )
    for precision in ("bf16", "fp8"):
        kernel = matmul(256, 128, 4096, precision=precision)
        assert gpu.kernel_seconds(kernel) == pytest.approx(1.2 * gpu.alone().kernel_seconds(kernel))
    half, eighth = (matmul(256, 128, 4096, precision=one) for one in ("bf16", "fp8"))
    assert gpu.kernel_seconds(half) / gpu.kernel_seconds(eighth) == pytest.approx(2 * 0.5 / 0.6)


def test_products_of_unequal_rows_share_waves() -> None:
    gpu = Accelerator(peak_flops=RATE, sms=SMS)
    equal, unequal = grouped_matmul([256.0] * 10, 1280, [4096] * 10), grouped_matmul([512.0] * 5, 1280, [4096] * 5)
    assert gpu.kernel_seconds(equal) == gpu.kernel_seconds(unequal)


@pytest.mark.parametrize("half", [0.0, 64.0])
def test_products_of_unequal_depth_take_their_mean_or_the_deepest(half: float) -> None:
    """In one wave the deepest product bounds them; many take turns, as long as products of their mean depth."""
    tiling = Tiling(k_half=half, split=1.0)  # so that none is divided along its depth

    def grouped(batch: int, *depths: int) -> float:
        return one_product((batch, 128, 128, sum(depths) // len(depths)), RATE, SMS, tiling, depths=depths)

    assert grouped(10, *[512] * 10) == pytest.approx(seconds(128, 128, 512, tiling, batch=10))
    assert grouped(1000, 1024, 0) == pytest.approx(seconds(128, 128, 512, tiling, batch=1000))
    # one tile of the smallest on each SM: a step for each element of the deepest, and half a depth
    smallest = min(TILES)
    step = 2 * smallest[0] * smallest[1] * SMS / RATE
    deep = one_product((SMS, *smallest, 10), RATE, SMS, tiling, depths=(5000, *[0] * 499))
    assert deep == pytest.approx((5000 + half) * step)
