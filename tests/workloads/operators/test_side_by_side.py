"""The parallel block and the window: kernels, kept bytes and exchanges against closed forms and brute force."""

from collections import Counter
from dataclasses import replace

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.ops import Collective
from clustersim.workloads.architectures.attention_keys import Window
from clustersim.workloads.architectures.shape import Mlp, SelfAttention, Shape
from clustersim.workloads.architectures.transformer import transformer
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.operators.attentions.core_attention import FlashAttention
from clustersim.workloads.operators.lowering import Overlap
from clustersim.workloads.operators.sharded import WHOLE, Cut
from clustersim.workloads.parallelism.tensor import sharded, tensor_parallel
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b

S, H, A, B = 512, 1024, 16, 3
SERIAL = Shape(4, H, S, 50304, SelfAttention(A, A), Mlp(4 * H), precision="bf16")
PARALLEL = replace(SERIAL, block="parallel")


def test_a_parallel_block_has_one_norm_and_the_same_products() -> None:
    serial, parallel = transformer(SERIAL), transformer(PARALLEL)
    assert serial.parameters - parallel.parameters == 4 * 2 * H
    assert serial.flops(B) == parallel.flops(B)
    shapes = [Counter(k.shape for k in model.layers[1].backward(B) if k.flops) for model in (serial, parallel)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(("cut", "outside"), [(WHOLE, 1), (Cut("tp", 4), 1), (Cut("tp", 4, True), 4)])
def test_it_keeps_one_input_instead_of_two(cut: Cut, outside: int) -> None:
    """Of the s b h (34 + 5 a s / h) bytes an input of a norm (2), one of products (2) and a mask of dropout (1) go."""
    serial, parallel = (transformer(replace(shape, cut=cut)).layers[1] for shape in (SERIAL, PARALLEL))
    assert serial.activation_bytes(B) - parallel.activation_bytes(B) == 5 * S * B * H / outside
    if cut == WHOLE:
        assert parallel.activation_bytes(B) == S * B * H * (29 + 5 * A * S / H)


def test_the_gradient_of_weights_needs_the_shared_input_once() -> None:
    serial, parallel = (transformer(shape).layers[1] for shape in (SERIAL, PARALLEL))
    # in 16 bits: the input of both (h), and the gradient of the output of both (h), are held once, not twice
    assert serial.weight_bytes(B) - parallel.weight_bytes(B) == 2 * (2 * S * B * H)


def test_its_traffic_is_one_norm_and_one_residual_less_and_two_sums_more() -> None:
    def moved(shape: Shape) -> float:
        layer = transformer(shape).layers[1]
        return sum(k.nbytes for k in (*layer.forward(B), *layer.backward(B)) if not k.flops)

    elements, width = S * B * H, 2
    norm, residual, add = (2 + 3 + 2) * width, (3 + 5) * width + 2, 3 * width
    assert moved(SERIAL) - moved(PARALLEL) == elements * (norm + residual - 2 * add)


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
@pytest.mark.parametrize(
    ("sequence", "forward", "backward"),
    [
        (False, {"all_reduce": 1}, {"all_reduce": 1}),
        (True, {"all_gather": 1, "reduce_scatter": 1}, {"all_gather": 2, "reduce_scatter": 1}),
    ],
)
def test_tensor_parallel_ranks_exchange_half_as_often(
    sequence: bool, forward: dict[str, int], backward: dict[str, int], activation: str
) -> None:
    """One all-reduce for each layer and direction (Chowdhery et al. 2022, arXiv:2204.02311, section 2)."""
    for asynchronous in (False, True):
        for share in (0.0, 1.0):
            model = sharded(transformer(replace(PARALLEL, mlp=Mlp(4 * H, activation))), 4, sequence_parallel=sequence)
            overlap = {"tp": Overlap(share, asynchronous)}
            schedule = compute(model, one_f_one_b(1, 1), micro_batch_size=B, overlap=overlap)
            schedule = tensor_parallel(schedule, model, 4)
            ops = [op for op in schedule.programs[0].ops if isinstance(op, Collective) and op.layer == "layer 1"]
            assert {op.nbytes for op in ops} == {2 * S * B * H}
            found = {
                phase: Counter(op.kind for op in ops if op.action and op.action.phase == phase) for phase in ("F", "B")
            }
            assert found == {"F": forward, "B": backward}


def test_partial_gradients_are_those_of_the_norm_and_of_the_biases_of_the_output() -> None:
    model = sharded(transformer(PARALLEL), 4, sequence_parallel=True)
    partial = sum(tensor.count for tensor in model.layers[1].tensors if "tp" in tensor.reduced_over)
    assert partial == 2 * H + 2 * H


@pytest.mark.parametrize("length", [1, 7, 64])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 2, 8, 16, 63, 64, 127, 128, 500])
def test_a_window_computes_the_scores_within_it(length: int, window: int, causal: bool) -> None:
    """Against counting: pairs of positions, where one on the edge of the mask counts half."""

    def weight(row: int, column: int) -> float:
        distance = row - column if causal else abs(row - column)
        reach = window if causal else window / 2
        inside = 1.0 if distance < reach else 0.5 if distance == reach else 0.0
        return inside * ((distance > 0) + 0.5 * (distance == 0)) if causal else inside

    pairs = sum(weight(row, column) for row in range(length) for column in range(length))
    flash = FlashAttention(length, 4, 4, 64, precision="bf16", causal=causal, window=window)
    (kernel,) = flash.forward(1)
    # model FLOPs count the whole square where no window cuts it
    scores = kernel.flops / (2 * 2 * 4 * 64 * length) / (2 if causal else 1)
    # the mean over the rows, in whole scores
    assert scores == pytest.approx(pairs / length, abs=1)


@pytest.mark.parametrize(("causal", "window"), [(True, 0), (False, 0), (True, 1024)])
def test_tiles_that_an_edge_cuts_are_computed_whole(causal: bool, window: int) -> None:
    """Against counting tiles of 64 x 64 of 8,192 positions, but for those that the first rows lack."""
    length, tile = 8192, 64

    def inside(row: int, column: int) -> bool:
        return not (causal and column > row) and not (window and row - column > window // tile)

    tiles = sum(inside(row, column) for row in range(length // tile) for column in range(length // tile))
    (kernel,) = FlashAttention(length, 4, 4, 64, precision="bf16", causal=causal, window=window).forward(1)
    assert kernel.shape is not None
    assert kernel.shape[2] == pytest.approx(tiles * tile**2 / length, rel=0.01)


def test_model_flops_shrink_as_the_scores_do() -> None:
    full, windowed = (
        transformer(replace(SERIAL, attention=SelfAttention(A, A, kind="flash", windows=(Window(w),))))
        for w in (0, 128)
    )
    scores = 4 * B * 4 * S * S * H * 3  # layers x (two products of 2 b s^2 h, and twice that backward)
    assert full.flops(B) - windowed.flops(B) == pytest.approx(scores * (1 - 128 / S) ** 2)
    whole = SelfAttention(A, A, kind="flash", windows=(Window(S),))
    assert transformer(replace(SERIAL, attention=whole)).flops(B) == full.flops(B)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attention_window": 512}, "belongs to attention: flash; unfused kernels compute all scores"),
        ({"head": "masked_lm", "block": "parallel"}, "parallel normalises before the block, but head: masked_lm"),
    ],
)
def test_what_does_not_go_together_is_told(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        Scenario.load("gpt_6_7b_64a100", {f"model.{key}": value for key, value in keys.items()})
