"""What a stack does to a bucket beside reducing it: passes over its bytes, and launches for its tensors."""

from __future__ import annotations

import pytest

from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.schedule.ops import Compute
from clustersim.workloads.architectures.shape import Mlp, SelfAttention, Shape
from clustersim.workloads.architectures.timed_models import unit_model
from clustersim.workloads.architectures.transformer import transformer
from clustersim.workloads.data_parallel.buckets import BUCKET_COPIES, NO_COPIES, bucket_copies
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.parallelism.ddp import data_parallel
from clustersim.workloads.parallelism.zero import zero
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b
from clustersim.workloads.software_stack import software

MODEL = transformer(Shape(4, 64, 64, 512, SelfAttention(8, 8), Mlp(256)))
TENSORS = sum(len(layer.tensors) for layer in MODEL.layers)


def cost(schedule):
    kernels = [kernel for op in schedule.programs[0].ops if isinstance(op, Compute) for kernel in op.kernels]
    return sum(kernel.nbytes for kernel in kernels), sum(kernel.launches for kernel in kernels)


def added(method, micro_batches=3, **options):
    """(bytes, launches) that the kernels around reductions add."""
    base = compute(MODEL, one_f_one_b(1, micro_batches), micro_batch_size=1)
    (before, launched), (after, launches) = cost(method(base, MODEL, 4)), cost(method(base, MODEL, 4, **options))
    return after - before, launches - launched


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("how", "passes"), [("copies", 4), ("two", 6), ("none", 2)])
def test_the_bytes_of_all_gradients_pass_so_often_once_a_step(how, passes, overlap):
    nbytes, launches = added(data_parallel, overlap=overlap, bucket=50_000.0, around=BUCKET_COPIES[how])
    assert nbytes == pytest.approx(passes * 4 * MODEL.parameters)
    assert launches >= BUCKET_COPIES[how].by_tensor * TENSORS + BUCKET_COPIES[how].by_bucket


def test_stage_two_of_zero_reduces_every_micro_batch():
    two = Software(gradient_buffers="two")
    assert added(zero, 3, stage=1, software=two)[0] == pytest.approx(6 * 4 * MODEL.parameters)
    assert added(zero, 3, stage=2, software=two)[0] == pytest.approx(3 * 6 * 4 * MODEL.parameters)
    assert added(zero, 3, stage=3, software=two) == (0.0, 0)


def test_launches_by_tensor_and_by_bucket():
    two = Software(gradient_buffers="two")
    assert added(zero, 2, stage=1, software=two)[1] == TENSORS + 2  # all gradients are one bucket


def test_measured_durations_contain_them():
    assert bucket_copies(software("ddp"), MODEL) == BUCKET_COPIES["copies"]
    assert bucket_copies(software("ddp"), unit_model(2, 1.0, 2.0)) == NO_COPIES
