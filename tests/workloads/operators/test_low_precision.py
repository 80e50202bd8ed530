"""Casts of each recipe in closed form, products in few bits, what ranks hold and gather, and bad input."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.kernel import Kernel, matmul
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.ops import Collective
from clustersim.topologies.catalogue import GPUS, IN_STEPS, device
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.architectures.transformer import Transformer
from clustersim.workloads.operators.linear import Linear
from clustersim.workloads.operators.low_precision import RECIPES, LowPrecision, ScaledLinear, scaled
from clustersim.workloads.operators.sharded import Cut, column_parallel, row_parallel

DATA = Path(__file__).parents[3] / "../shared/data"

BYTES = {  # of an element that is cast: read in 16 bits, written along and across
    "delayed": 2 + 2 * 1,
    "tensorwise": 2 + 2 + 2 * 1,
    "rowwise": 2 + 2 + 2 * 1,
    "blockwise": 2 + 2 * (1 + 4 / 128),
    "mxfp8": 2 + 2 * (1 + 1 / 32),
    "nvfp4": 2 + 2 + 2 * (0.5 + 1 / 16),
    "channelwise": 2 + 2 + 2 * 1,
}


def moved(kernels: tuple[Kernel, ...]) -> float:
    return sum(kernel.nbytes for kernel in kernels if not kernel.flops)


@pytest.mark.parametrize("recipe", RECIPES)
def test_bytes_of_a_cast(recipe: str) -> None:
    assert moved(LowPrecision(recipe).casts(4096)) == pytest.approx(4096 * BYTES[recipe], rel=1e-12)


def test_gpus_that_take_both_layouts_save_the_transposed_copy_of_a_tensor_but_not_of_blocks() -> None:
    assert moved(LowPrecision("delayed", transposes=False).casts(4096)) == 4096 * 3
    for recipe in ("blockwise", "mxfp8", "nvfp4"):
        both = LowPrecision(recipe, transposes=False)
        assert both.casts(64) == LowPrecision(recipe).casts(64)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("keeps", [True, False])
def test_a_linear_map_casts_each_operand_where_it_is_needed(recipe: str, keeps: bool) -> None:
    rows, inputs, outputs, samples = 128, 256, 512, 3
    low = LowPrecision(recipe, keeps_casts=keeps)
    made = scaled(Linear(rows, inputs, outputs, bias=False, precision="bf16"), low)
    x, dy, weight = samples * rows * inputs, samples * rows * outputs, inputs * outputs
    both = BYTES[recipe]
    once = both - low.element_bytes  # for one product: written in one direction
    assert moved(made.forward(samples)) == pytest.approx((both if keeps else once) * (x + weight))
    assert moved(made.backward_input(samples)) == pytest.approx(both * dy + (0 if keeps else once * weight))
    assert moved(made.backward_weights(samples)) == pytest.approx(0 if keeps else once * x)
    kept = low.element_bytes if keeps else 2
    assert made.kept_bytes(samples) == x * kept


@pytest.mark.parametrize("keeps", [True, False])
def test_stored_weights_are_only_transposed(keeps: bool) -> None:
    plain = Linear(128, 256, 512, bias=False, precision="bf16")
    low = LowPrecision("delayed", keeps_casts=keeps, stored=True, weight_casts=0.25 if keeps else 1.0)
    made, weight = scaled(plain, low), 256 * 512
    own = [moved(made.forward(1)) - moved(low.casts(128 * 256, products=2 if keeps else 1))]
    own.append(moved(made.backward_input(1)) - moved(low.casts(128 * 512)))
    assert own == ([0.25 * 2 * weight, 0] if keeps else [0, 2 * weight])


@pytest.mark.parametrize("recipe", RECIPES)
def test_products_count_the_same_flops_and_have_the_precision_of_the_recipe(recipe: str) -> None:
    plain = Linear(128, 256, 512, precision="bf16")
    made = scaled(plain, LowPrecision(recipe))
    for phase in ("forward", "backward_input", "backward_weights"):
        wide = [kernel for kernel in getattr(plain, phase)(3) if kernel.flops]
        narrow = [kernel for kernel in getattr(made, phase)(3) if kernel.flops]
        assert [kernel.flops for kernel in narrow] == [kernel.flops for kernel in wide]
        assert {kernel.precision for kernel in narrow} == {RECIPES[recipe].product}
    assert [tensor.count for tensor in made.tensors] == [tensor.count for tensor in plain.tensors]


def test_a_product_of_8_bits_moves_half_the_operands_and_the_whole_result() -> None:
    assert matmul(64, 32, 128, precision="fp8", result="bf16").nbytes == 64 * 128 + 128 * 32 + 2 * 64 * 32


def test_products_reach_the_same_share_of_their_peak_at_twice_the_depth() -> None:
    # 8,192 x 8,192 tiles in whole waves: seconds are proportional to (k + k_half) / peak
    gpu = Accelerator(peak_flops={"bf16": 1e12, "fp8": 2e12}, sms=1, k_half=100, matmul_efficiency=0.5)
    wide, narrow = (gpu.seconds([matmul(256, 128, k, precision=p)]) for k, p in ((1000, "bf16"), (2000, "fp8")))
    assert wide == narrow == pytest.approx(2 * 256 * 128 * 1100 / 0.5e12)


MEASURED = [  # (m, n, k, TFLOP/s in fp8) on an H100 SXM with torch 2.11, means of repeated products
    (8192, 4096, 1024, 1055),
    (16384, 8192, 2048, 1211),
    (8192, 16384, 4096, 1340),
    (8192, 28672, 2048, 1204),
    (16384, 8192, 8192, 1356),
    (4096, 8192, 32768, 1390),
]


@pytest.mark.parametrize(("m", "n", "k", "tflops"), MEASURED)
def test_products_of_the_h100_in_8_bits_that_nothing_is_fitted_to(m: int, n: int, k: int, tflops: float) -> None:
    seconds = IN_STEPS * device(GPUS, "h100").accelerator().seconds([matmul(m, n, k, precision="fp8", result="bf16")])
    assert 2 * m * n * k / seconds / 1e12 == pytest.approx(tflops, rel=0.12)


def test_sequence_parallel_ranks_cast_a_shard_and_gather_8_bits() -> None:
    cut, low = Cut("tp", 4, sequence=True), LowPrecision("tensorwise")
    first = scaled(Linear(128, 256, 512, False, "bf16", kept_share=4), low, input_shards=4)
    second = scaled(Linear(128, 64, 256, False, "bf16"), low, gradient_shards=4)
    x = 128 * 256
    # amax and cast of a shard, then a transposed copy of what is gathered
    assert moved(first.forward(1)) - moved(low.casts(256 * 512)) == x / 4 * (2 + 2 + 1) + 2 * x
    assert moved(second.backward_input(1)) == x / 4 * (2 + 2 + 1) + 2 * x
    (gather,) = column_parallel(first, cut).segments("F", 1)[0].before
    (scatter,) = column_parallel(first, cut).segments("I", 1)[-1].after
    assert (gather.kind, gather.nbytes, scatter.kind, scatter.nbytes) == ("all_gather", x, "reduce_scatter", 2 * x)
    (gradient,) = row_parallel(second, cut).segments("I", 1)[0].before
    assert (gradient.kind, gradient.nbytes) == ("all_gather", x)


def test_only_the_linear_maps_of_layers_change() -> None:
    plain = model("llama3_8b", "bf16")
    assert isinstance(plain, Transformer)
    made = plain.in_low_precision(LowPrecision())
    assert (made.parameters, made.flops()) == (plain.parameters, plain.flops())
    assert made.layers[-1].forward(1) == plain.layers[-1].forward(1)
    kernels = [kernel for kernel in made.layers[1].forward(1) if kernel.flops]
    assert [kernel.precision for kernel in kernels if not kernel.attention] == ["fp8"] * 4
    assert {kernel.precision for kernel in kernels if kernel.attention} == {"bf16"}


@pytest.mark.parametrize(
    ("name", "layer", "count"),
    [("t5_small", "encoder layer 2", 4), ("t5_small", "decoder layer 2", 7), ("vit_b_16", "layer 3", 4)],
)
def test_every_architecture_has_them(name: str, layer: str, count: int) -> None:
    made = model(name, "bf16")
    assert isinstance(made, Transformer)
    low = made.in_low_precision(LowPrecision())
    (own,) = [one for one in low.layers if one.name == layer]
    products = [kernel.precision for kernel in own.forward(1) if kernel.flops]
    assert (products.count("fp8"), type(low)) == (count, type(made))
    assert low.parameters == made.parameters


def scenario(precision: Any, data: Mapping[str, Any], software: str = "megatron_core", gpu: str = "h100") -> Scenario:
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_h100", "nodes": 1, "node": {"accelerator": gpu}},
            "model": {"preset": "llama3_2_1b", "seq_length": 1024, "attention": "flash"},
            "training": {"global_batch_size": 16, "micro_batch_size": 1, "precision": precision},
            "parallelism": {"data": data},
            "software": software,
        }
    )


LINEAR = 16 * (2048 * (2048 + 2 * 512) + 2048 * 2048 + 3 * 2048 * 8192)
"""Weights of the linear maps of Llama 3.2 1B."""


@pytest.mark.parametrize(
    ("precision", "more"),
    [
        ({"matmul": "fp8"}, 2),
        ({"matmul": "fp8", "parameters": "fp8"}, 0),
        ({"matmul": "fp8", "recipe": "blockwise"}, 2 * (1 + 4 / 128)),
    ],
)
def test_weights_in_memory(precision: Mapping[str, str], more: float) -> None:
    # Hopper holds 8 bits in both layouts, beside 16 bits or in their place
    plain, low = (scenario(one, {"method": "zero", "stage": 1}).schedule() for one in ("bf16", precision))
    resident = [schedule.programs[0].resident["parameters"] for schedule in (plain, low)]
    assert resident[1] - resident[0] == pytest.approx(more * LINEAR)


@pytest.mark.parametrize("method", [{"method": "fsdp"}, {"method": "zero", "stage": 1}, {"method": "zero", "stage": 3}])
def test_parameters_gathered_in_8_bits(method: Mapping[str, Any]) -> None:
    def gathered(precision: Any) -> float:
        ops = scenario(precision, method, "fsdp_compile").schedule().programs[0].ops
        found = [op for op in ops if isinstance(op, Collective) and op.kind == "all_gather"]
        return sum(op.nbytes for op in found)

    plain = gathered("bf16")
    assert gathered({"matmul": "fp8"}) == plain
    whole = model("llama3_2_1b").parameters
    ratio = (2 * whole - LINEAR) / (2 * whole)
    assert gathered({"matmul": "fp8", "parameters": "fp8"}) / plain == pytest.approx(ratio, rel=2e-2)


def test_transformer_engine_casts_weights_once_a_step_and_torchao_in_each_pass() -> None:
    once = scenario({"matmul": "fp8"}, {"method": "ddp"}).model
    again = scenario({"matmul": "fp8"}, {"method": "ddp"}, "ddp_compile").model
    shapes = [one.shape.low for one in (once, again) if isinstance(one, Transformer)]
    assert [low.weight_casts for low in shapes if low] == [1 / 2, 1]  # two micro-batches on each rank


def step_time(made: Scenario) -> float:
    return float(made.run().summary()["step_time_s"])


def test_fp8_is_faster_than_bf16_and_fp4_than_fp8() -> None:
    """Of the GPU alone: a host that launches one kernel in 55 us is slower than products of so small a model."""
    seconds = [
        step_time(scenario(one, {"method": "ddp"}, "ideal", gpu="b200"))
        for one in ("bf16", {"matmul": "fp8", "recipe": "mxfp8"}, {"matmul": "fp4"})
    ]
    assert seconds[0] > seconds[1] > seconds[2]


PAIR: tuple[Any, Any] = "bf16", {"matmul": "int8"}


def test_integers_are_faster_than_bf16_by_less_than_their_peak() -> None:
    """624 for 312 TFLOP/s on an A100; casts and what is no linear map stay."""
    bf16, int8 = (step_time(scenario(one, {"method": "ddp"}, "ideal", gpu="a100_80gb")) for one in PAIR)
    assert 1.0 < bf16 / int8 < 2.0


FAULTS = [
    ({"matmul": "fp8"}, "a100_80gb", "a100_80gb has no fp8; it has fp32, tf32, bf16, fp16, int8; these have fp8: b200"),
    ({"matmul": "fp8", "recipe": "mxfp8"}, "h100", "these have mxfp8: b200, b300, gb200, gb300"),
    ({"matmul": "fp4"}, "h200", "these have nvfp4: b200, b300, gb200, gb300"),
    ({"matmul": "int8"}, "b200", "these have int8: a100_40gb, a100_80gb"),
    ({"matmul": "int8", "recipe": "rowwise"}, "h100", "must be channelwise for matmul: int8, not rowwise"),
    ({"matmul": "int8", "parameters": "fp8"}, "h100", "products in int8 have no parameters in fp8"),
    ({"matmul": "fp4", "recipe": "delayed"}, "b200", "must be nvfp4 for matmul: fp4, not delayed"),
    ({"matmul": "fp8", "parameters": "fp16"}, "h100", "must be bf16, as rest, or fp8, not fp16"),
    ({"matmul": "fp4", "parameters": "fp8"}, "b200", "products in fp4 have no parameters in fp8"),
    ("fp8", "h100", "by operator: {matmul: fp8, rest: bf16}"),
    (
        {"matmul": "fp8", "recipe": "rowwise", "parameters": "fp8"},
        "h100",
        "parameters: must be that of rest: parameters are gathered in fp8 with one scale a tensor",
    ),
    ({"recipe": "delayed"}, "h100", "training.precision.matmul: is required"),
]


@pytest.mark.parametrize(("precision", "gpu", "message"), FAULTS)
def test_faults(precision: Any, gpu: str, message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario(precision, {"method": "ddp"}, gpu=gpu).check()
    assert message in str(error.value)


def test_a_convolutional_model_has_no_linear_maps_in_few_bits() -> None:
    made = scenario({"matmul": "fp8"}, {"method": "ddp"})
    with pytest.raises(ScenarioError, match="belongs to a transformer, and resnet50 is not one"):
        made.changed({"model": {"preset": "resnet50"}}, "here")


def test_a_scaled_linear_map_is_one_still() -> None:
    assert isinstance(scaled(Linear(1, 2, 3), LowPrecision()), ScaledLinear)
    assert scaled(Linear(1, 2, 3), None) == Linear(1, 2, 3)


@pytest.mark.skipif(not DATA.is_dir(), reason="the published measurements are not beside this clone")
@pytest.mark.parametrize(("gpu", "row"), [("h100", "H100-SXM"), ("h200", "H200-SXM")])
def test_the_best_products_that_were_published(gpu: str, row: str) -> None:
    rows = csv.DictReader((DATA / "gemm_efficiency.csv").open())
    (best,) = [float(one["achieved_TFLOPs_or_GBps"]) for one in rows if (one["device"], one["dtype"]) == (row, "fp8")]
    product = matmul(16384, 8192, 16384, precision="fp8", result="bf16")
    seconds = IN_STEPS * device(GPUS, gpu).accelerator().seconds([product])
    assert product.flops / seconds / 1e12 == pytest.approx(best, rel=0.08)
