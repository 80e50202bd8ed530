"""Times of operators sum to the computing time, whatever shares the GPU; an op's time is divided as it was priced."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.scenarios import Scenario
from clustersim.simulator.analysis import metrics
from clustersim.simulator.analysis.intervals import partition
from clustersim.simulator.analysis.operator_times import BOUNDS, _rows, _seconds, _weights, operator_times
from clustersim.simulator.analysis.timeline import Columns
from clustersim.simulator.hardware.accelerator import Accelerator, Software, smooth_maximum
from clustersim.simulator.hardware.kernel import Kernel, Operation, matmul, measured, memory_bound
from clustersim.simulator.reading.errors import ScheduleError, SimulatorError
from clustersim.simulator.schedule.ops import Compute

PUBLISHED = Path(__file__).parents[3] / "scenarios" / "published"
GPU = Accelerator("gpu", 100e12, 1e12, 80e9, sms=100)


def computing(timeline):
    parts = metrics.breakdown(timeline)
    return sum(parts[name] for name in ("compute", "recompute", "optimizer"))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("hello", {}),
        ("dgx_a100_gpt2_xl_ddp", {}),
        ("dgx_a100_gpt2_xl_ddp", {"training.recompute": "full", "simulation.jitter": 0.05}),
        ("dgx_a100_gpt2_xl_ddp", {"training.recompute": "selective", "software": "fsdp"}),
        ("gpt_6_7b_64a100", {"simulation.stragglers": [{"rank": 3, "slowdown": 1.5}]}),
        ("llama3_8b_fsdp_dgx_h100", {}),
        pytest.param("llama3_8b_131k_32h100", {}, marks=pytest.mark.exhaustive),
        ("mixtral_8x7b_dgx_h100", {}),
        ("naive_vs_ddp", {}),
        pytest.param("zhores_vgg16_parameter_server_vs_ring", {}, marks=pytest.mark.exhaustive),
        pytest.param("tensor_grids", {}, marks=pytest.mark.exhaustive),
        ("t5_11b_32a100", {}),
        ("alexnet_pr_pc", {}),
        ("gpipe_vs_varuna", {}),
        pytest.param(str(PUBLISHED / "pipedream_gnmt8.yaml"), {}, id="pipedream_gnmt8", marks=pytest.mark.exhaustive),
    ],
)
def test_they_sum_to_the_computing_time(name, changes):
    result = Scenario.load(name, changes).run()
    for one in result.runs.values():
        times = operator_times(one.timeline, one.scenario.software)
        assert sum(time.seconds for time in times) == pytest.approx(computing(one.timeline), rel=1e-9)
        assert all(seconds >= 0 for time in times for seconds in time.by_bound)


def test_flops_are_those_of_the_model_and_of_recomputation():
    result = Scenario.load("dgx_a100_gpt2_xl_ddp", {"training.recompute": "full"}).run()
    timeline = result.timeline
    times = operator_times(timeline, result.scenario.software)
    gpus = len(timeline.gpu_ranks)
    again = sum(time.flops for time in times if time.phase == "recompute")
    assert sum(time.flops for time in times) * gpus == pytest.approx(metrics.hardware_flops(timeline.schedule))
    assert (sum(time.flops for time in times) - again) * gpus == pytest.approx(metrics.model_flops(timeline.schedule))


@pytest.mark.exhaustive
def test_every_kernel_of_shipped_scenarios_has_an_operation():
    names = ("dgx_a100_gpt2_xl_ddp", "mixtral_8x7b_dgx_h100", "llama3_8b_131k_32h100", "t5_11b_32a100", "hello",
             "llama3_70b_fp8_64h100", "zhores_resnet50_ddp", "vit_h_14_8a100", "gpt2_xl_zero_zhores", "tensor_grids",
             "naive_vs_ddp", "gpt_6_7b_64a100", "bloom_176b_384a100", "alexnet_pr_pc")  # fmt: skip
    for name in names:
        scenario = Scenario.load(name)
        for one in list(scenario.variants.values()) or [scenario]:
            ops = (op for program in one.schedule().programs for op in program.distinct() if isinstance(op, Compute))
            unnamed = {op.name for op in ops for kernel in op.kernels if kernel.operation is None}
            assert not unnamed, (name, one.name)


times = st.floats(1e-7, 1e-2)
kernels = st.lists(
    st.one_of(
        st.builds(lambda n, k: matmul(n, n, k, precision="bf16"), st.integers(1, 4096), st.integers(1, 4096)),
        st.builds(memory_bound, st.floats(0, 1e9), launches=st.integers(0, 9)),
        st.builds(measured, times),
    ),
    min_size=1,
    max_size=8,
)


@given(kernels, st.floats(0, 1e-4), st.floats(1.5, 8))
def test_parts_of_an_op_are_its_price(several, launch, sharpness):
    software = Software(launch_seconds=launch, sharpness=sharpness)
    rows = _rows(several, GPU, software)
    assert sum(float(row[:4].sum()) for row in rows) == pytest.approx(GPU.seconds(several, software), rel=1e-9)
    for kernel, row in zip(several, rows, strict=True):
        bound = row[:2]
        assert (bound > 0).sum() <= 1  # arithmetic or memory, not both
        if kernel.flops and kernel.seconds is None:
            assert (row[0] > 0) == (GPU.kernel_seconds(kernel) > GPU.memory_seconds(kernel))


@given(st.floats(1e-2, 1), st.floats(1e-2, 1), st.floats(1.5, 8))
def test_shares_are_the_derivatives_of_the_time(gpu, host, sharpness):
    found = _weights(gpu, host, sharpness)
    for place, (more, of) in enumerate((((1, 0), gpu), ((0, 1), host))):
        step = 1e-5 * of
        up, down = (
            smooth_maximum(gpu + sign * more[0] * step, host + sign * more[1] * step, sharpness) for sign in (1, -1)
        )
        assert found[place] == pytest.approx((up - down) / (2 * step), abs=1e-6)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5)), min_size=1, max_size=12), st.floats(0, 5))
def test_a_moment_with_several_computations_is_divided(spans, first):
    """Against the partition of the breakdown, which counts each moment once, and a sum over small intervals."""
    begin = np.array([one[0] for one in spans])
    end = begin + np.array([one[1] for one in spans])
    zero = np.zeros(len(spans), np.int64)
    window = (first, 12.0)
    columns = Columns(zero, zero, begin, begin, end, zero)
    seconds, within = _seconds(columns, np.ones(len(spans), np.bool_), window)
    busy = partition(begin, end, zero, 1, window)[0]
    assert seconds.sum() == pytest.approx(busy, abs=1e-9)
    cuts = np.unique(np.concatenate((begin, end, window)).clip(*window))
    middles, lengths = (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts)
    runs = (begin[:, None] <= middles) & (middles < end[:, None])
    slow = (runs * lengths / np.maximum(runs.sum(axis=0), 1)).sum(axis=1)
    assert seconds == pytest.approx(slow, abs=1e-9)
    assert ((within >= 0) & (within <= 1)).all()


def test_a_bound_is_told():
    ops = [
        matmul(8192, 8192, 8192, precision="bf16"),
        memory_bound(1e9, operation=Operation("copy", "elementwise")),
        Kernel(nbytes=1.0, operation=Operation("tiny", "elementwise")),
    ]
    rows = _rows(ops, GPU, None)
    assert [BOUNDS[int(row[:4].argmax())] for row in rows] == ["compute", "memory", "memory"]
    rows = _rows([ops[2]] * 5, GPU, Software(launch_seconds=1e-5))
    assert [BOUNDS[int(row[:4].argmax())] for row in rows] == ["launch"] * 5


def test_what_cannot_be_told():
    with pytest.raises(ScheduleError, match='gelu is of the unknown class "elemntwise"; there are: product, attention'):
        Operation("gelu", "elemntwise")
    timeline = replace(Scenario.load("hello").run().timeline, cluster=None)
    with pytest.raises(SimulatorError, match="need a simulated timeline"):
        operator_times(timeline)
