"""Grouped products by formula, and tiles of unequal ones; saved activations; loads of layers."""

from __future__ import annotations

import csv
from dataclasses import replace
from itertools import combinations, pairwise
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.hardware.accelerator import OPERATOR_SECONDS, Accelerator, Software
from clustersim.simulator.hardware.kernel import grouped_matmul, matmul, memory_bound
from clustersim.simulator.hardware.matrix_products import TILE_M, expected_tiles_down
from clustersim.topologies.catalogue import GPUS, device
from clustersim.workloads.architectures.shape import Embedding, Mlp, Norm, SelfAttention, Shape
from clustersim.workloads.architectures.transformer import transformer_operators
from clustersim.workloads.operators.elementwise import Saved
from clustersim.workloads.operators.expert_routing import domain_shares, unpermuted
from clustersim.workloads.operators.experts import ExpertCut, Experts, read_load, zipf
from clustersim.workloads.operators.grouped_linear import GroupedLinear
from clustersim.workloads.operators.mixture_of_experts import Mixture

GPU = Accelerator(peak_flops={"bf16": 1e15, "fp32": 1e14}, memory_bandwidth=3e12, sms=132, k_half=100)


def seconds(*rows: float) -> float:
    """The products of experts with so many tokens."""
    return GPU.kernel_seconds(grouped_matmul(rows, 4096, [2048.0] * len(rows), precision="bf16"))


def test_equal_products_are_a_batched_one() -> None:
    rows = [512.0] * 8
    grouped, batched = (
        grouped_matmul(rows, 96, [64.0] * 8, precision="bf16"),
        matmul(512, 96, 64, batch=8, precision="bf16"),
    )
    assert replace(grouped, products=0) == batched
    assert grouped.products == 8
    weights = grouped_matmul([96.0] * 8, 64, rows, precision="bf16", rows=(96, 64))
    assert replace(weights, products=0) == matmul(96, 64, 512, batch=8, precision="bf16", rows=(96, 64))


@given(st.lists(st.integers(0, 5000), min_size=2, max_size=12).filter(any))
def test_flops_are_those_of_all_products(rows: list[int]) -> None:
    kernel = grouped_matmul(rows, 96, [64.0] * len(rows), precision="bf16")
    assert kernel.flops == 2 * 96 * 64 * sum(rows)
    assert kernel.nbytes == 2 * sum(m * 64 + 64 * 96 + m * 96 for m in rows if m)
    weights = grouped_matmul([96.0] * len(rows), 64, rows, precision="bf16")
    assert weights.flops == kernel.flops


def test_experts_on_an_h200_take_as_long_as_measured() -> None:
    """Products of 8 to 128 experts with means of drawn rows, and sums of their results in place, in bf16."""
    gpu = device(GPUS, "h200").accelerator()
    with (Path(__file__).parents[3] / "scenarios/published/h200_experts.csv").open() as file:
        table = list(csv.DictReader(file))
    errors = []
    for row in table:
        experts, rows, inputs, outputs = (int(row[key]) for key in ("experts", "rows", "inputs", "outputs"))
        grouped = GroupedLinear(experts, inputs, outputs, False, "bf16", "dp", random_rows=True)
        tokens = (rows / experts,) * experts
        kernels = {
            "forward": grouped.forward(tokens),
            "input gradient": grouped.backward_input(tokens),
            "weight gradient": grouped.backward_weights(tokens),
            "scatter_add": unpermuted(0, rows, inputs, "bf16", fused=False)[1:],
        }[row["operation"]]
        errors.append(gpu.seconds(kernels) / (1e-6 * float(row["us"])) - 1)
    assert np.abs(errors).max() < 0.18
    assert np.abs(errors).mean() < 0.07


def test_rows_that_do_not_fill_a_tile_cost_a_whole_one() -> None:
    """An expert with one token more than a tile computes another tile; as many tokens in few experts are faster."""
    assert seconds(*[513.0] * 64) > 1.05 * seconds(*[512.0] * 64)
    assert seconds(*[8.0] * 64, *[0.0] * 64) > 3 * seconds(512.0, *[0.0] * 127)


@pytest.mark.parametrize("mean", [40.0, 500.0, 1024.0, 5000.0])
def test_tiles_of_random_rows_are_the_mean_over_draws(mean: float) -> None:
    """Counts of tokens are drawn, and their whole tiles counted."""
    rows = np.random.default_rng(0).poisson(mean, 20_000)
    drawn = np.array([np.ceil(rows / tile).mean() for tile in TILE_M])
    assert expected_tiles_down(mean) == pytest.approx(drawn, rel=0.02)


def test_the_host_launches_the_products_of_experts_one_by_one() -> None:
    """Transformer Engine loops over experts; small operators of the router cost the host as torch's do."""
    software = Software(launch_seconds=50e-6, product_seconds=30e-6)
    kernel = grouped_matmul([4.0, 4.0, 0.0], 8, [8.0] * 3)
    assert software.host_seconds([kernel]) == pytest.approx(50e-6 + 2 * 30e-6)
    assert software.host_seconds([memory_bound(8.0, operators=5)]) == pytest.approx(50e-6 + 5 * OPERATOR_SECONDS)
    assert Software().host_seconds([kernel]) == 0.0


def test_bytes_of_permutation_and_counts() -> None:
    """k copies of each token are written and read; ranks gather as many counts as there are experts and ranks."""
    s, h, e, k, ranks = 128, 64, 8, 2, 4
    made = mixture(Experts(e, k, 96, cut=ExpertCut(ranks=ranks)))
    first, second, *_ = made.segments("F", 1)
    assert [(one.kind, one.nbytes) for one in first.after] == [("all_gather", 8 * e * ranks)]
    assert [kernel.nbytes for kernel in second.kernels] == [2 * (1 + k) * s * h]
    assert [(one.kind, one.nbytes) for one in second.after] == [("all_to_all", 2 * k * s * h)]
    padded = mixture(Experts(e, k, 96, capacity_factor=1.0, padded=True, cut=ExpertCut(ranks=ranks)))
    assert all(one.kind != "all_gather" for segment in padded.segments("F", 1) for one in segment.exchanges)


def test_experts_may_keep_their_inputs_in_8_bits() -> None:
    """Copies, both halves and their product are an element and a 32nd each, in place of two bytes."""
    s, h, f, e, k = 128, 64, 96, 8, 2
    wide, narrow = (mixture(Experts(e, k, f), saved=Saved(experts_fp8=fp8)).kept_bytes(1) for fp8 in (False, True))
    assert wide - narrow == pytest.approx(k * s * (h + 3 * f) * (2 - 33 / 32))


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=16), st.integers(0, 15), st.integers(1, 4096))
def test_more_tokens_are_never_faster(rows: list[int], which: int, more: int) -> None:
    fuller = list(rows)
    fuller[which % len(rows)] += more
    assert seconds(*fuller) >= seconds(*rows)


def mixture(experts: Experts, **more: object) -> Mixture:
    shape = Shape(
        *(1, 64, 128, 100),
        SelfAttention(4, 4, kind="flash", bias=False),
        Mlp(256, "swiglu", bias=False),
        Norm("rmsnorm"),
        Embedding(positions="rope"),
        experts,
        dropout=False,
        precision="bf16",
        **more,  # type: ignore[arg-type]
    )
    return next(one for one in transformer_operators(shape, sparse=0) if isinstance(one, Mixture))


@pytest.mark.parametrize("samples", [1, 3])
def test_kept_bytes_are_the_formula(samples: int) -> None:
    """The input, copies for the experts, two halves, their product; scores and their map."""
    s, h, f, e, k = 128 * samples, 64, 96, 8, 2
    kept = mixture(Experts(e, k, f)).kept_bytes(samples)
    assert kept == 2 * (s * h + k * s * h + 2 * k * s * f + k * s * f) + 5 * s * e
    shared = mixture(Experts(e, k, f, shared=48)).kept_bytes(samples)
    assert shared - kept == 2 * (2 * s * 48 + s * 48)


def test_the_backward_pass_has_twice_the_flops() -> None:
    block = mixture(Experts(8, 2, 96, shared=48, shared_gate=True))
    forward = sum(kernel.flops for kernel in block.forward(2))
    assert sum(kernel.flops for kernel in (*block.backward_input(2), *block.backward_weights(2))) == 2 * forward


@given(st.integers(1, 64), st.floats(0, 5), st.data())
def test_shares_of_zipf_are_possible(experts: int, exponent: float, data: st.DataObject) -> None:
    """They add up, fall, and none is above what topk different experts leave."""
    topk = data.draw(st.integers(1, experts))
    shares = zipf(experts, exponent, topk)
    assert sum(shares) == pytest.approx(1)
    assert all(one >= two - 1e-12 for one, two in pairwise(shares))
    assert max(shares) <= 1 / topk + 1e-9


def test_layers_may_have_loads_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "loads.csv"
    path.write_text("layer,expert,tokens\n0,0,3\n0,1,1\n1,0,2\n1,1,2\n")
    assert read_load(path, 2, 1, 2) == ((0.75, 0.25), (0.5, 0.5))
    experts = Experts(2, 1, 8, loads=((0.75, 0.25), (0.5, 0.5)))
    assert experts.tokens(0, 100) == (75, 25)
    assert experts.tokens(1, 100) == (50, 50)
    assert not experts.balanced


def test_shares_of_domains_by_brute_force() -> None:
    """All choices of 3 of 8 experts, in 2 of 4 groups, on 2 domains."""
    experts = Experts(8, 3, 1, groups=4, chosen_groups=2)
    hits, choices = 0.0, 0.0
    for groups in combinations(range(4), 2):
        inside = [expert for expert in range(8) if expert // 2 in groups]
        for chosen in combinations(inside, 3):
            hits += any(expert < 4 for expert in chosen)
            choices += 1
    assert domain_shares(experts, (1.0,) * 8, 2) == pytest.approx((hits / choices,) * 2)


def test_capacity_drops_and_pads() -> None:
    experts = Experts(4, 1, 8, capacity_factor=1.5, loads=((0.5, 0.25, 0.25, 0.0),))
    assert experts.tokens(0, 100) == (ceil(37.5), 25, 25, 0)
    padded = Experts(4, 1, 8, capacity_factor=1.5, padded=True, loads=((0.5, 0.25, 0.25, 0.0),))
    assert padded.tokens(0, 100) == (38,) * 4
