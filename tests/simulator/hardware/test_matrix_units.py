"""Products and attention on systolic arrays, in closed form: padding, the operand that is held, the vector units."""

from itertools import product
from math import ceil, inf
from typing import Literal

import pytest

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.kernel import Kernel, grouped_matmul, matmul
from clustersim.simulator.hardware.matrix_products import padded_flops
from clustersim.topologies.catalogue import GPUS, device

TPU = Accelerator(peak_flops=1e12, memory_bandwidth=inf, matmul_efficiency=0.5, matrix_unit=128, vector_rate=1e10)


def cycles(m: int, n: int, k: int, side: int) -> int:
    """Passes of rows through an array, tile by tile: the tile is k x n, m rows stream; or k x m, and n rows stream."""
    held = [sum(max(8 * ceil(rows / 8), side) for _ in product(range(0, k, side), range(0, cut, side)))
            for rows, cut in ((m, n), (n, m))]  # fmt: skip
    return min(held)


@pytest.mark.parametrize("side", [128, 256])
@pytest.mark.parametrize("shape", [(512, 256, 384), (1000, 100, 50), (1, 4096, 4096), (4096, 1, 130), (65, 65, 65)])
def test_flops_with_padding_are_the_passes_of_rows_through_the_arrays(shape: tuple[int, int, int], side: int) -> None:
    assert padded_flops(matmul(*shape), side) == 2 * side * side * cycles(*shape, side)


def test_products_that_fill_the_arrays_reach_the_share_of_the_peak() -> None:
    assert TPU.kernel_seconds(matmul(1024, 1024, 1024, precision="bf16")) == pytest.approx(2 * 1024**3 / 0.5e12)


def test_products_of_a_group_are_padded_one_by_one() -> None:
    rows = [300, 0, 17]
    group = padded_flops(grouped_matmul(rows, 512, [256] * 3), 128)
    assert group == sum(padded_flops(matmul(m, 512, 256), 128) for m in rows if m)
    depths = [300, 100]
    assert padded_flops(grouped_matmul([64, 64], 512, depths), 128) == sum(
        padded_flops(matmul(64, 512, k), 128) for k in depths
    )


@pytest.mark.parametrize(
    ("which", "executed", "products", "operations"), [("forward", 2, 2, 8), ("backward", 5, 7, 18)]
)
def test_attention_pays_for_whole_blocks_padded_heads_and_operations_on_scores(
    which: Literal["forward", "backward"], executed: int, products: int, operations: int
) -> None:
    # 2,048 queries under a causal mask: 1 to 4 blocks of 512 keys, 1,280 keys in the mean; heads of 64 fill half
    kernel = Kernel(1.0, 0.0, (executed * 3, 2048, 1024 + 64, 64), "bf16", attention=which)
    scores = 3 * 2048 * 1280
    expected = 2 * products * scores * 128 / 0.5e12 + operations * scores / 1e10
    assert TPU.kernel_seconds(kernel) == pytest.approx(expected)


def test_a_window_cuts_blocks_at_both_edges() -> None:
    wide, narrow = (Kernel(1.0, 0.0, (2, 8192, keys, 128), "bf16", attention="forward") for keys in (4096 + 64, 1024))
    assert TPU.kernel_seconds(wide) / TPU.kernel_seconds(narrow) == pytest.approx((4096 + 256) / (1024 + 256))


def test_what_the_catalogue_states_of_tpus() -> None:
    # the vector units are a few percent of the arrays: peak over rate is 32 to 128 FLOPs of products for an operation
    for name in ("tpu_v4", "tpu_v5e", "tpu_v5p", "tpu_v6e", "tpu_v7x"):
        chip = device(GPUS, name).accelerator()
        assert chip.matrix_unit == (256 if name in ("tpu_v6e", "tpu_v7x") else 128)
        assert 30 < chip.peak("bf16") / chip.vector_rate < 130
