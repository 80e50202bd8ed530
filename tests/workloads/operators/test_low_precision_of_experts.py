"""Products of experts in 8 bits: casts by formula, what comes cast from the dispatch, what is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustersim.simulator.hardware.kernel import Kernel, grouped_matmul
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.architectures.transformer import Transformer, transformer_operators
from clustersim.workloads.operators.experts import ExpertCut
from clustersim.workloads.operators.grouped_linear import GroupedLinear, scaled_groups
from clustersim.workloads.operators.low_precision import RECIPES, LowPrecision
from clustersim.workloads.operators.mixture_of_experts import Mixture

TOKENS = (96.0, 0.0, 160.0)
INPUTS, OUTPUTS = 512, 256
PLAIN = GroupedLinear(len(TOKENS), INPUTS, OUTPUTS, False, "bf16", "dp")
WEIGHTS = len(TOKENS) * INPUTS * OUTPUTS
X, DY = sum(TOKENS) * INPUTS, sum(TOKENS) * OUTPUTS


def moved(kernels: tuple[Kernel, ...]) -> float:
    return sum(kernel.nbytes for kernel in kernels if not kernel.flops)


def cast(low: LowPrecision, elements: float) -> float:
    return moved(low.casts(elements))


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_same_products_in_few_bits_with_a_cast_of_each_operand(recipe: str) -> None:
    low = LowPrecision(recipe)
    made = scaled_groups(PLAIN, low)
    for phase in ("forward", "backward_input", "backward_weights"):
        wide = [kernel for kernel in getattr(PLAIN, phase)(TOKENS) if kernel.flops]
        narrow = [kernel for kernel in getattr(made, phase)(TOKENS) if kernel.flops]
        assert [kernel.flops for kernel in narrow] == [kernel.flops for kernel in wide]
        assert {kernel.precision for kernel in narrow} == {RECIPES[recipe].product}
    assert moved(made.forward(TOKENS)) == pytest.approx(cast(low, X) + cast(low, WEIGHTS))
    assert moved(made.backward_input(TOKENS)) == pytest.approx(cast(low, DY))
    assert moved(made.backward_weights(TOKENS)) == 0
    assert made.kept_bytes(TOKENS) == X * low.element_bytes
    assert [tensor.count for tensor in made.tensors] == [tensor.count for tensor in PLAIN.tensors]
    assert {tensor.copy_bytes for tensor in made.tensors} == {low.weight_bytes}


def test_what_comes_cast_is_only_copied_for_the_weight_gradient() -> None:
    """A pass that reads 8 bits and their scales, and writes as much: 2 (1 + 4/128) bytes an element."""
    low = LowPrecision("blockwise")
    made = scaled_groups(PLAIN, low, input_cast=True, gradient_cast=True)
    assert moved(made.forward(TOKENS)) == pytest.approx(2 * (1 + 4 / 128) * X + cast(low, WEIGHTS))
    assert moved(made.backward_input(TOKENS)) == pytest.approx(2 * (1 + 4 / 128) * DY)


def test_casts_that_are_not_kept_are_made_again() -> None:
    low = LowPrecision("blockwise", keeps_casts=False)
    made = scaled_groups(PLAIN, low)
    one = moved(low.casts(1.0, products=1))
    assert moved(made.forward(TOKENS)) == pytest.approx(one * (X + WEIGHTS))
    assert moved(made.backward_input(TOKENS)) == pytest.approx(one * WEIGHTS + cast(low, DY))
    assert moved(made.backward_weights(TOKENS)) == pytest.approx(one * X, rel=0.5)
    assert made.kept_bytes(TOKENS) == 2 * X


def test_experts_without_tokens_launch_nothing() -> None:
    made = scaled_groups(PLAIN, LowPrecision())
    for phase in ("forward", "backward_input", "backward_weights"):
        assert getattr(made, phase)((0.0, 0.0, 0.0)) == ()


def test_a_grouped_product_of_8_bits_moves_half_the_operands_and_the_whole_result() -> None:
    wide, narrow = (
        grouped_matmul((64.0, 64.0), 32, (128.0, 128.0), precision=precision, result="bf16")
        for precision in ("bf16", "fp8")
    )
    assert wide.nbytes - narrow.nbytes == 2 * (64 * 128 + 128 * 32)


def deepseek(low: LowPrecision | None, *, sent_fp8: bool) -> tuple[Mixture, tuple[Kernel, ...]]:
    """The experts of a rank of 64, and the forward kernels of the layer that has them."""
    made = model("deepseek_v3", "bf16")
    assert isinstance(made, Transformer)
    assert made.shape.experts is not None
    experts = replace(made.shape.experts, cut=ExpertCut(64, "ep", sent_fp8=sent_fp8))
    operators = transformer_operators(replace(made.shape, experts=experts, low=low), sparse=0)
    (mixture,) = (one for one in operators if isinstance(one, Mixture))
    return mixture, tuple(kernel for one in operators for kernel in one.forward(1))


def test_all_products_of_a_layer_but_those_of_the_router_and_of_attention() -> None:
    """Latent attention has five: both down, both up, output; a shared expert two; the experts two."""
    _, kernels = deepseek(LowPrecision("blockwise"), sent_fp8=True)
    products = [kernel for kernel in kernels if kernel.flops and not kernel.attention]
    assert [kernel.precision for kernel in products].count("fp8") == 5 + 2 + 2
    (router,) = (kernel for kernel in products if kernel.precision != "fp8")
    assert router.shape is not None
    assert router.shape[2] == 256


def test_tokens_sent_in_8_bits_are_not_cast_again_by_blockwise_products() -> None:
    rows, hidden, topk = 4096, 7168, 8
    copies, each = rows * topk, 1 + 4 / 128
    wide, cast_once = (moved(deepseek(LowPrecision("blockwise"), sent_fp8=sent)[1]) for sent in (False, True))
    # sent in 16 bits: permuted, sorted, cast in both directions; in 8 bits: cast, permuted, sorted, copied
    before = hidden * (2 * (rows + copies) + 4 * copies + copies * (2 + 2 * each))
    after = hidden * (rows * (2 + each) + each * (rows + copies) + 2 * each * copies + 2 * each * copies)
    assert wide - cast_once == pytest.approx(before - after)


def test_experts_keep_8_bits() -> None:
    rows, hidden, topk, width = 4096, 7168, 8, 2048
    wide, narrow = (deepseek(low, sent_fp8=True)[0].kept_bytes(1) for low in (None, LowPrecision("blockwise")))
    copies, saved = rows * topk, 2 - (1 + 4 / 128)
    # the shared expert's input is one tensor with the router's only as long as it is not cast
    shared = rows * (width * saved - hidden * (1 + 4 / 128))
    assert wide - narrow == pytest.approx(copies * (hidden + width) * saved + shared)
