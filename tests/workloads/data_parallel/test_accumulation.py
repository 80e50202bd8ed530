"""Adding up the gradients of micro-batches is traffic of the backward pass, by parameters and micro-batches."""

from __future__ import annotations

import pytest

from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.schedule.ops import Compute
from clustersim.workloads.architectures.shape import Mlp, SelfAttention, Shape
from clustersim.workloads.architectures.transformer import transformer
from clustersim.workloads.data_parallel.gradients import (
    accumulated,
    accumulated_bytes,
    accumulated_in_products,
    fused_bytes,
)
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.operators.stages import stages_of
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b
from clustersim.workloads.pipelines.zero_bubble_h1 import zero_bubble_h1

MODEL = transformer(Shape(4, 64, 64, 512, SelfAttention(8, 8), Mlp(256)))


@pytest.mark.parametrize(
    ("how", "precision", "gradients", "expected"),
    [
        ("fused", "bf16", "fp32", 4 / 8),  # the buffer is set to zero once a step
        ("fused", "bf16", "bf16", 0.0),
        ("added", "bf16", "fp32", 2 + 4 + 4 + 4 / 8),  # read the gradient, read and write the sum
        ("cast", "bf16", "fp32", (2 + 4) + (4 + 4 + 4) + 4 / 8),
        ("cast", "fp16", "fp16", 6 * 7 / 8),  # the first micro-batch adds nothing
        ("added", "fp32", "fp32", 12 * 7 / 8),
        ("autocast", "bf16", "fp32", (4 + 2) + (2 + 4) + 12 * 7 / 8),
    ],
)
def test_bytes_for_each_parameter(how: str, precision: str, gradients: str, expected: float) -> None:
    assert accumulated_bytes(how, precision, gradients, 8) == expected


def test_one_micro_batch_of_equal_types_adds_nothing() -> None:
    assert accumulated_bytes("cast", "fp16", "fp16", 1) == 0.0


@pytest.mark.parametrize("order", [one_f_one_b(2, 6), zero_bubble_h1(2, 6)])
def test_the_whole_schedule_passes_over_all_gradients_once_for_each_micro_batch(order) -> None:
    schedule = compute(MODEL, order, micro_batch_size=1, stages=stages_of(MODEL, 2))
    added = accumulated(schedule, MODEL, 10.0)

    def traffic(schedule) -> float:
        ops = [op for program in schedule.programs for op in program.ops if isinstance(op, Compute)]
        return sum(kernel.nbytes for op in ops for kernel in op.kernels)

    assert traffic(added) - traffic(schedule) == pytest.approx(6 * 10.0 * sum(one.parameters for one in MODEL.layers))
    assert accumulated(schedule, MODEL, 0.0) is schedule


@pytest.mark.parametrize("order", [one_f_one_b(2, 6), zero_bubble_h1(2, 6)])
def test_products_that_add_to_a_sum_in_fp32_pass_over_each_weight_once_for_each_micro_batch(order) -> None:
    """They read 4 and write 4 bytes of an element of each matrix in place of 2, in the products of weights alone."""
    schedule = compute(MODEL, order, micro_batch_size=1, stages=stages_of(MODEL, 2))
    added = accumulated_in_products(schedule, fused_bytes("fused", "bf16", "fp32"))

    def kernels(schedule) -> list[Kernel]:
        ops = (op for program in schedule.programs for op in program.ops if isinstance(op, Compute))
        return [kernel for op in ops for kernel in op.kernels]

    pairs = list(zip(kernels(schedule), kernels(added), strict=True))
    assert all(before == after for before, after in pairs if not before.of_weights)
    layer = 64 * (3 * 64 + 64 + 2 * 256)  # queries, keys and values; their output; the two products of the MLP
    matrices = 4 * layer + 64 * 512  # and the logits
    assert sum(after.nbytes - before.nbytes for before, after in pairs) == 6 * 6.0 * matrices
    assert accumulated_in_products(schedule, fused_bytes("added", "bf16", "fp32")) is schedule
