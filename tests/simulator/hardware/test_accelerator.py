"""An accelerator prices kernels by physical parameters: closed forms of each."""

import csv
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from clustersim.simulator.hardware.accelerator import (
    ATTENTION_COLUMNS,
    SINGLE_ACCESSES,
    Accelerator,
    Software,
)
from clustersim.simulator.hardware.kernel import EXECUTED, Kernel, matmul, measured, memory_bound
from clustersim.topologies import cluster
from clustersim.topologies.catalogue import GPUS, device
from clustersim.workloads.operators.frozen_weights import Quantisation

GPU = Accelerator(
    peak_flops=100e12, memory_bandwidth=1e12, sms=100, matmul_efficiency=0.8, memory_efficiency=0.5,
    attention_efficiency=0.4, attention_backward=0.2, k_half=64,
)  # fmt: skip


def test_a_product_of_whole_waves_runs_at_the_peak_that_its_depth_allows():
    m = n = 2560  # 10 x 20 tiles of 256 x 128: two waves of 100 SMs
    k = 64
    gpu = replace(GPU, memory_bandwidth=inf)
    assert gpu.kernel_seconds(matmul(m, n, k, precision="bf16")) == pytest.approx(2 * 2 * m * n * k / 80e12)


def test_a_memory_bound_kernel_takes_its_bytes_over_the_bandwidth_reached():
    assert GPU.kernel_seconds(memory_bound(1e9)) == pytest.approx(2e-3)


def test_every_kernel_starts_and_ends():
    gpu = replace(GPU, kernel_latency=2e-6)
    assert gpu.kernel_seconds(memory_bound(1e9, launches=3)) == pytest.approx(2e-3 + 6e-6)
    assert gpu.kernel_seconds(memory_bound(1e9, launches=1, operators=4)) == pytest.approx(2e-3 + 10e-6)
    assert gpu.kernel_seconds(memory_bound(0.0, launches=0, operators=4)) == 0.0


def test_small_kernels_on_an_h200_take_as_long_as_measured():
    """bitsandbytes' conversion of the scales of 4 million weights: two kernels, 3.6 us without pauses."""
    table = Path(__file__).parents[3] / "scenarios/published/h200_dequantisation.csv"
    with table.open() as file:
        microseconds = {(row["columns"], row["double"]): float(row["kernel_us"]) for row in csv.DictReader(file)}
    measured_both = microseconds["2048", "true"] - microseconds["2048", "false"]
    both = device(GPUS, "h200").accelerator().kernel_seconds(Quantisation().converted(2048 * 2048, "bf16")[0])
    assert 1e-6 * measured_both < both < 2e-6 * measured_both


@pytest.mark.parametrize(("which", "share"), [("forward", 0.4), ("backward", 0.2)])
def test_fused_attention_has_shares_of_its_own(which, share):
    kernel = Kernel(1.0, 0.0, (96, 4096, 2048, 128), "bf16", attention=which)
    flops = 2 * 96 * 4096 * 2048 * 128
    assert GPU.kernel_seconds(kernel) == pytest.approx(flops / (100e12 * share))


def test_the_slowest_of_many_is_as_slow_as_draws_say():
    gpu = Accelerator(peak_flops=1e12, sms=1, matmul_efficiency=0.5, spread=0.02)
    draws = 1 + 0.02 * np.random.default_rng(0).standard_normal((4000, 256)).max(axis=1)
    slower = gpu.matmul_efficiency / gpu.slowest_of(256).matmul_efficiency
    assert slower == pytest.approx(draws.mean(), rel=1e-3)
    assert gpu.slowest_of(1) == gpu


def test_the_slowest_moves_bytes_as_fast_as_all():
    slowest = Accelerator(memory_bandwidth=1e12, spread=0.05).slowest_of(1000)
    assert slowest.kernel_seconds(memory_bound(1e9)) == 1e-3


def test_small_kernels_take_as_long_as_the_host_needs_to_launch_them():
    kernels = [memory_bound(1.0, launches=3), memory_bound(1.0), measured(1.0)]
    assert GPU.seconds(kernels, Software(launch_seconds=1e-5)) == pytest.approx(1.0 + 4e-5)


def test_what_takes_the_gpu_no_time_is_not_launched_either():
    """Without a bandwidth the traffic of memory is not modelled: nothing but products and given durations counts."""
    gpu, stack = Accelerator(peak_flops=1.0), Software(launch_seconds=1e-5)
    assert gpu.seconds([memory_bound(8.0, launches=3), measured(1.0)], stack) == 1.0
    assert gpu.seconds([memory_bound(8.0), Kernel(flops=2.0)], stack) == pytest.approx(2.0)


def test_what_stands_in_anothers_place_may_be_replaced_in_turn():
    whole = cluster({"preset": "uniform", "gpus": 2, "bandwidth": "1 GB/s", "latency": "0 s", "accelerator": "unit"})
    unit = whole.accelerator("gpu 0")
    fast, faster = replace(unit, peak_flops=2.0), replace(unit, peak_flops=4.0)
    changed = whole.with_accelerators({unit: fast}).with_accelerators({fast: faster})
    assert changed.accelerator("gpu 1") == faster
    assert whole.accelerator("gpu 1") == unit
    assert changed.route("gpu 0", "gpu 1") == whole.route("gpu 0", "gpu 1")


@pytest.mark.parametrize(("which", "gain"), [("forward", 1.5), ("backward", 3.0)])
def test_a_stack_brings_its_own_fused_attention(which: Literal["forward", "backward"], gain: float) -> None:
    gpu = replace(GPU, sms=1, attention_efficiency=0.5, attention_backward=0.25)
    fused = Kernel(8e12, 0.0, (1, 100, 100, 128), "fp32", attention=which)
    product = Kernel(8e12, 0.0, (1, 128, 128, 100), "fp32")
    stack = Software(flash_forward=1.5, flash_backward=3.0)
    assert gpu.seconds([fused]) == pytest.approx(gain * gpu.seconds([fused], stack))
    assert gpu.seconds([product]) == gpu.seconds([product], stack)


@pytest.mark.parametrize(
    ("shape", "slower"),
    [
        ((1, 4096, 50304, 768), 1.0),
        ((1, 4096, 50257, 768), 2.0),
        ((1, 4096, 768, 50257), 2.0),
        ((1, 4095, 768, 768), 1.0),
        ((64, 2048, 2048, 112), 1.0),
        ((64, 2048, 2048, 108), 16.0),
    ],
)
def test_unaligned_rows_cost_tensor_cores(shape: tuple[int, int, int, int], slower: float) -> None:
    """A vocabulary that is not padded halves the speed; batches with such a head size have no tensor cores."""
    batch, m, n, k = shape
    gpu = Accelerator(peak_flops={"bf16": 16e12, "fp32": 1e12}, sms=1)
    kernel = matmul(m, n, k, batch=batch, precision="bf16")
    aligned = Kernel(kernel.flops, kernel.nbytes, kernel.shape, "bf16")
    assert gpu.seconds([kernel]) == pytest.approx(slower * gpu.seconds([aligned]))


def test_unaligned_rows_by_gpu_and_by_software() -> None:
    """A GPU's file has what its kernels for such rows reach; a compiler pads them."""
    gpu = Accelerator(peak_flops={"bf16": 16e12, "fp32": 1e12}, sms=1, unaligned_efficiency=0.2)
    kernel, aligned = (matmul(4096, n, 768, precision="bf16") for n in (50257, 50272))  # 1,571 columns of tiles
    assert gpu.seconds([kernel]) == pytest.approx(5 * gpu.seconds([aligned]))
    assert gpu.seconds([kernel], Software(padded=True)) == gpu.seconds([aligned])


def test_attention_of_cudnn_where_the_gpu_has_it() -> None:
    """The stack asks for it; the GPU has shares for it, or the flash kernels of the stack run."""
    plain = Accelerator(peak_flops=1e12, sms=1, attention_efficiency=0.25, attention_backward=0.125)
    gpu = replace(plain, cudnn_attention_efficiency=0.5, cudnn_attention_backward=0.5)
    stack = Software(flash_forward=1.0, flash_backward=2.0, cudnn_attention=True)
    for which, share in (("forward", 0.25), ("backward", 0.25)):
        kernel = Kernel(1.0, 0.0, (1, 1000, 1000, 500), "fp32", attention=which)  # type: ignore[arg-type]
        assert plain.seconds([kernel], stack) == pytest.approx(1e9 / (share * 1e12))
        assert gpu.seconds([kernel], stack) == pytest.approx(1e9 / (0.5 * 1e12))
        assert gpu.seconds([kernel], replace(stack, cudnn_attention=False)) == plain.seconds([kernel], stack)


def test_a_tile_of_attention_costs_its_start_beside_its_scores() -> None:
    """The share holds at one number of scores a row; with half of them the starts weigh twice as much."""
    gpu = Accelerator(peak_flops=2e13, sms=10, attention_efficiency=0.5, attention_start=4e-6)
    tiles = 8 * 4096 / 128  # heads x rows, of 128 features
    for columns in (ATTENTION_COLUMNS // 2, ATTENTION_COLUMNS, 2 * ATTENTION_COLUMNS):
        kernel = Kernel(1.0, 0.0, (2 * 8, 4096, columns, 128), "bf16", attention="forward")
        scores = 2 * 2 * 8 * 4096 * columns * 128 / 1e13
        starts = tiles * 4e-6 / 10 * (1 - columns / ATTENTION_COLUMNS)
        assert gpu.seconds([kernel]) == pytest.approx(scores + starts)


@pytest.mark.parametrize(("backward", "sizes"), [(1.0, {48: 64, 96: 128, 128: 128}), (2.0, {48: 64, 80: 96, 96: 96})])
def test_heads_are_padded_to_a_size_that_flash_attention_has(backward: float, sizes: dict[int, int]) -> None:
    """The first has kernels for 32, 64 and 128, the second for multiples of 32."""
    gpu = device(GPUS, "a100_80gb").accelerator()
    stack = Software(flash_backward=backward)

    def seconds(head: int, which: str) -> float:
        kernel = Kernel(1.0, 0.0, (EXECUTED[which] * 32, 4096, 2112, head), "bf16", attention=which)  # type: ignore[arg-type]
        return gpu.seconds([kernel], stack)

    for head, padded in sizes.items():
        for which in EXECUTED:
            assert seconds(head, which) == pytest.approx(seconds(padded, which))


# TFLOP/s of causal attention, forward and backward, of 32, 32 and 16 heads of 128 on one H200 with torch 2.11
FLASH = {2048: (279, 214), 8192: (317, 281), 32768: (337, 318)}
CUDNN = {2048: (504, 404), 8192: (608, 532), 32768: (623, 545)}


@pytest.mark.parametrize("cudnn", [False, True])
def test_attention_over_any_length_as_measured(cudnn: bool) -> None:
    """In a step kernels reach 0.916 of what they reach alone, which those of the table are."""
    gpu = device(GPUS, "h200").accelerator()
    stack = Software(flash_backward=2.0, cudnn_attention=cudnn)
    for length, rates in (CUDNN if cudnn else FLASH).items():
        for which, rate in zip(("forward", "backward"), rates, strict=True):
            products = EXECUTED[which]
            shape = (products * 32, length, length // 2 + 32, 128)
            kernel = Kernel(1.0, 0.0, shape, "bf16", attention=which)  # type: ignore[arg-type]
            flops = products * 32 * length * length * 128
            assert flops / gpu.seconds([kernel], stack) == pytest.approx(0.916e12 * rate, rel=0.1)


@pytest.mark.parametrize(("length", "rate"), [(2048, 352), (4096, 354), (8192, 362), (16384, 331)])
def test_flash_attention_2_on_a_b200_is_hardly_faster_than_on_an_h100(length: int, rate: float) -> None:
    """Measured alone without a mask: 128 heads of 128 (meta-pytorch/tritonbench, pull request 171)."""
    products = EXECUTED["forward"]
    kernel = Kernel(1.0, 0.0, (products * 128, length, length, 128), "bf16", attention="forward")
    seconds = device(GPUS, "b200").accelerator().seconds([kernel], Software(flash_backward=2.0))
    assert 2 * products * 128 * length * length * 128 / seconds == pytest.approx(0.916e12 * rate, rel=0.1)


@pytest.mark.parametrize("which", ["forward", "backward"])
def test_kernels_made_for_blackwell_reach_the_share_that_they_reach_on_hopper(
    which: Literal["forward", "backward"],
) -> None:
    """FlashAttention-2, which lacks Blackwell's instructions, does not. Without the start of a tile."""
    kernel = Kernel(1.0, 0.0, (EXECUTED[which] * 32, 8192, 4128, 128), "bf16", attention=which)
    shares = {}
    for name in ("h100", "b200"):
        gpu = replace(device(GPUS, name).accelerator(), attention_start=0.0, attention_backward_start=0.0)
        for made, stack in (("own", Software(flash_forward=1.5, flash_backward=3.0)), ("plain", Software())):
            shares[name, made] = 1 / (gpu.seconds([kernel], stack) * gpu.peak("bf16"))
    assert shares["b200", "own"] == pytest.approx(shares["h100", "own"], rel=1e-3)
    assert shares["b200", "plain"] < 0.6 * shares["h100", "plain"]


@pytest.mark.parametrize(
    ("nbytes", "accesses", "on_h100", "on_h200"),
    [
        pytest.param(4, 0, 740, 1042, id="copy in bf16"),
        pytest.param(6, 2, 329, 352, id="cast from bf16 to fp32"),
        pytest.param(6, 0, 505, 729, id="cast from fp32 to bf16"),
        pytest.param(10, 3, 248, 282, id="sum of fp32 and bf16"),
        pytest.param(4, 2, 397, 414, id="product with a row, bf16"),
        pytest.param(8, 2, 310, 349, id="product with a row, fp32"),
        pytest.param(6, 3, 232, 235, id="product with a row of fp32, bf16"),
        pytest.param(4, 2, 354, 375, id="copy of heads, bf16"),
        pytest.param(4, 2, 384, 413, id="sum with a mask, bf16"),
    ],
)
def test_single_elements_are_bound_by_the_sms(nbytes: int, accesses: int, on_h100: float, on_h200: float) -> None:
    """1e9 elements a second, of 2^28 (on the H100 2^26 of heads and mask), with torch 2.11 on one GPU of each kind."""
    kernel = memory_bound(1e9 * nbytes, accesses=1e9 * accesses)
    for name, seen in (("h100", on_h100), ("h200", on_h200)):
        assert 1 / device(GPUS, name).accelerator().seconds([kernel]) == pytest.approx(seen, rel=0.16)


def test_a_kernel_of_few_blocks_runs_on_as_many_sms() -> None:
    """A batch norm of 64 channels keeps 64 SMs busy, one of 512 all; either is no faster than the memory."""
    gpu = Accelerator(peak_flops=1e15, memory_bandwidth=5e12, sms=128)
    few, many, slow = (
        memory_bound(1e9, precision=precision, blocks=blocks)
        for precision, blocks in (("fp16", 64), ("fp16", 512), ("fp32", 512))
    )
    assert gpu.seconds([few]) == pytest.approx(0.5e9 / (64 * SINGLE_ACCESSES))
    assert gpu.seconds([many]) == pytest.approx(0.5e9 / (128 * SINGLE_ACCESSES))
    assert gpu.seconds([slow]) == pytest.approx(0.25e9 / (128 * SINGLE_ACCESSES))
    assert replace(gpu, memory_bandwidth=1e12).seconds([few]) == pytest.approx(1e-3 * max(1, 0.5 / 0.3456))


def test_the_rows_of_a_weight_gradient_are_its_sides() -> None:
    """The product of a weight gradient runs over samples, which may be any number."""
    assert not matmul(768, 768, 197, precision="bf16").aligned
    assert matmul(768, 768, 197, precision="bf16", rows=(768, 768)).aligned
    assert matmul(64, 12, 12, precision="tf32").aligned and not matmul(64, 12, 12, precision="bf16").aligned


def test_products_in_fp32_and_convolutions_have_efficiencies_of_their_own_without_tf32() -> None:
    """Long products of whole tiles; a convolution in fp32 says tf32, which a V100 does not have."""
    peaks = {"fp32": 1e12, "fp16": 8e12}
    old = Accelerator(peak_flops=peaks, sms=1, matmul_efficiency=0.5, fp32_efficiency=0.8, convolution_efficiency=0.25)
    new = replace(old, peak_flops={**peaks, "tf32": 4e12})

    def rate(gpu: Accelerator, precision: str) -> float:
        kernel = matmul(256, 128, 2**20, precision=precision)
        return kernel.flops / gpu.kernel_seconds(kernel) / gpu.peak(precision)

    assert [rate(old, precision) for precision in ("fp16", "fp32", "tf32")] == pytest.approx([0.5, 0.8, 0.25])
    assert [rate(new, precision) for precision in ("fp16", "fp32", "tf32")] == pytest.approx([0.5, 0.8, 0.5])
    slow = replace(old, spread=0.1).slowest_of(64)
    assert rate(slow, "fp32") / rate(old, "fp32") == pytest.approx(rate(slow, "fp16") / rate(old, "fp16"))


def test_half_depths_are_those_of_the_kind_of_product() -> None:
    gpu = Accelerator(peak_flops={"fp32": 1e12, "fp16": 8e12}, sms=1, k_half=128, fp32_k_half=0, convolution_k_half=64)
    seconds = [gpu.kernel_seconds(matmul(256, 128, 128, precision=p)) * gpu.peak(p) for p in ("fp16", "fp32", "tf32")]
    assert seconds[0] / seconds[1] == pytest.approx(2.0)
    assert seconds[2] / seconds[1] == pytest.approx(1.5)


def test_products_and_attention_run_on_the_sms_that_communication_leaves() -> None:
    """Deep products of whole waves, of attention and of fractions of a wave; copies are as fast as before."""
    gpu = Accelerator(peak_flops={"bf16": 1e15}, memory_bandwidth=3e12, sms=100, tile_side=256, split_latency=1.0)
    busy = Software(communication_sms=20)
    attention = Kernel(1e12, 0.0, (64, 1024, 1024, 64), "bf16", attention="forward")
    copy = memory_bound(1e9)
    assert gpu.kernel_seconds(attention, busy) == pytest.approx(gpu.kernel_seconds(attention) / 0.8)
    assert gpu.kernel_seconds(copy, busy) == gpu.kernel_seconds(copy)
    # 400 tiles of 256 x 128: four waves of 100 SMs, five of 80
    product = matmul(256 * 20, 128 * 20, 4096, precision="bf16")
    assert gpu.kernel_seconds(product, busy) == pytest.approx(gpu.kernel_seconds(product) * 5 / 4)
    # 80 tiles: one wave in both
    small = matmul(256 * 8, 128 * 10, 4096, precision="bf16")
    assert gpu.kernel_seconds(small, busy) == pytest.approx(gpu.kernel_seconds(small))
