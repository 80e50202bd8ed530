"""Traces recorded here (`tests.benchmarks.explain.recording`) and on an H100, against figures from the raw events."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from clustersim.scenarios.explain.report import run_report
from clustersim.scenarios.real_traces.breakdown import busy, stretches
from clustersim.scenarios.real_traces.kernels_and_communications import (
    ATTENTION,
    OTHER,
    PRODUCT,
    kernel_class,
    longest,
    sizes,
)
from clustersim.scenarios.real_traces.pieces_of_work import HOST, PHASES, Piece, kernel_kind
from clustersim.scenarios.real_traces.run import run_of

TRACES = Path(__file__).parent / "traces"
RECORDED = Path(__file__).parents[3] / "scenarios" / "traced" / "ddp_sleep"
MICRO = 1e-6


def raw(path):
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def marked(events, chosen, begin, cells):
    """One cell for each microsecond from *begin* on: True where one of the *chosen* events runs."""
    grid = np.zeros(cells, bool)
    for event in events:
        if chosen(event):
            first, last = (round(event["ts"] + more - begin) for more in (0, event["dur"]))
            grid[max(first, 0) : max(last, 0)] = True
    return grid


def step_of(events, number):
    step = next(event for event in events if event["name"] == f"ProfilerStep#{number}")
    return step["ts"], step["dur"]


@pytest.fixture(scope="module")
def ddp():
    return run_of([RECORDED])


def test_step_and_computation_are_those_of_the_raw_events(ddp):
    for trace in ddp.traces:
        events = raw(RECORDED / f"rank{trace.rank}.json.gz")
        numbers = [step.number for step in trace.steps]
        spans = [step_of(events, number) for number in numbers]
        assert trace.step_time == pytest.approx(sum(duration for _, duration in spans) / len(spans) * MICRO)
        computing = sum(
            marked(events, lambda event: event["name"].startswith(("aten::", "detach")), begin, round(duration)).sum()
            for begin, duration in spans
        )
        parts = ddp.breakdowns[trace.rank]
        assert sum(parts.values()) == pytest.approx(trace.step_time)
        assert busy(parts) == pytest.approx(computing / len(spans) * MICRO, rel=0.02)


def test_exposed_communication_and_waits_are_those_of_the_raw_events(ddp):
    for trace in ddp.traces:
        events = raw(RECORDED / f"rank{trace.rank}.json.gz")
        exposed = 0
        for step in trace.steps:
            begin, duration = step_of(events, step.number)
            cells = round(duration)
            busy_cells = marked(events, lambda event: event["name"].startswith(("aten::", "detach")), begin, cells)
            exposed += (
                marked(events, lambda event: event["name"] == "gloo:all_reduce", begin, cells) & ~busy_cells
            ).sum()
        parts = ddp.breakdowns[trace.rank]
        with_waits = parts["all_reduce"] + parts.get("waiting", 0.0)
        assert with_waits == pytest.approx(exposed / len(trace.steps) * MICRO, abs=3e-4)


def test_collectives_have_the_bytes_of_the_gradients(ddp):
    found = sizes(ddp.traces)
    # embedding and head of 2,048 x 256, four layers of 12 h^2 + 13 h parameters, in fp32
    parameters = 2 * 2048 * 256 + 4 * (12 * 256**2 + 13 * 256)
    assert sum(one.per_step * one.call.nbytes for one in found) == pytest.approx(4 * parameters)
    assert {one.call.kind for one in found} == {"all_reduce"}
    assert {one.call.ranks for one in found} == {4}


def test_the_rank_that_sleeps_is_the_slowest_because_of_its_host(ddp):
    # rank 0 slept 28 ms in each step
    assert ddp.late.rank == 0
    assert next(iter(ddp.late.because)) == HOST
    assert ddp.late.because[HOST] == pytest.approx(0.028, rel=0.2)


def test_a_wait_is_what_the_rank_has_more_than_the_last_one(ddp):
    lengths = {trace.rank: [piece for piece in trace.measured() if piece.call] for trace in ddp.traces}
    for members in zip(*lengths.values(), strict=True):
        shortest = min(piece.seconds for piece in members)
        assert [piece.wait for piece in members] == pytest.approx([piece.seconds - shortest for piece in members])


def test_a_pipeline_waits_for_its_messages():
    run = run_of([TRACES / "pipeline"])
    # four micro-batches of 2 x 128 x 256 numbers, forward and back
    found = {one.call.kind: one for one in sizes(run.traces)}
    assert {kind: one.call.nbytes for kind, one in found.items()} == {"send": 262144, "recv": 262144}
    assert {kind: one.per_step for kind, one in found.items()} == {"send": 4, "recv": 4}
    for rank, parts in run.breakdowns.items():
        assert sum(parts.values()) == pytest.approx(run.traces[rank].step_time)
    # the second stage has the head and its loss: it computes longer, and the first waits for it
    assert run.late.rank == 1
    assert run.breakdowns[0]["waiting"] > run.breakdowns[1]["waiting"]


def test_a_gpu_waits_for_its_host():
    path = TRACES / "h100_gpt2_compiled.json.gz"
    run, events = run_of([path]), raw(path)
    assert run.traces[0].device == "NVIDIA H100 80GB HBM3"
    # the first of the two steps is left out; the second ends with its last kernel
    marks = sorted(e["ts"] for e in events if e["name"].startswith("ProfilerStep"))
    launches = {e["args"]["correlation"]: e["ts"] for e in events if e["cat"].startswith("cuda_")}
    kernels = [e for e in events if e["cat"] in ("kernel", "gpu_memset", "gpu_memcpy")]
    ends = [
        max(e["ts"] + e["dur"] for e in kernels if (launches[e["args"]["correlation"]] >= marks[1]) == later)
        for later in (False, True)
    ]
    assert run.step_time == pytest.approx((ends[1] - ends[0]) * MICRO, rel=0.01)
    cells = round(ends[1] - ends[0])
    busy_cells = marked(kernels, lambda event: event["cat"] == "kernel", ends[0], cells).sum()
    assert busy(run.parts) == pytest.approx(busy_cells * MICRO, rel=0.03)
    assert run.parts[HOST] / run.step_time == pytest.approx(0.49, abs=0.01)


def test_launch_bound_stretches_sum_to_the_idle_time_of_the_host():
    run = run_of([TRACES / "h100_gpt2_compiled.json.gz"])
    found = stretches(run.traces[0])
    assert sum(seconds for seconds, _ in found) == pytest.approx(run.parts[HOST], rel=0.02)
    assert "launch-bound: the GPU of rank 0 waits for its host" in run_report(run)


def test_products_of_gpt2_have_its_shapes():
    rows = longest(run_of([TRACES / "h100_gpt2_compiled.json.gz"]).traces)
    counts = {row.name: row.per_step for row in rows if row.phase == "forward"}
    # twelve layers; 8 x 1,024 tokens, hidden size 768; torch.compile pads the vocabulary of 50,257 to 50,264
    assert counts["addmm 8192 x 2304 x 768"] == 12
    assert counts["addmm 8192 x 3072 x 768"] == 12
    assert counts["mm 8192 x 50264 x 768"] == 1
    assert {row.phase for row in rows} == {*PHASES} - {"compute"}


KERNELS = {
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": "all_reduce",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_gather",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce_scatter",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "send_recv",
    "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)": "broadcast",
    "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)": "other",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float> >(int)": None,
    "ampere_sgemm_128x64_nn": None,
}
"""Names of kernels in the traces that HolisticTraceAnalysis ships (tests/data), and the kind of communication."""


@pytest.mark.parametrize(("name", "kind"), KERNELS.items())
def test_kernels_of_public_traces(name, kind):
    assert kernel_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "op", "of"),
    [
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>", "aten::mm", PRODUCT),
        ("nvjet_sm90_tst_192x192_64x4_1x2_h_bz_coopB_bias_TNN", "aten::addmm", PRODUCT),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma", "aten::_cudnn_attention_forward", ATTENTION),
        ("triton_per_fused__to_copy_add_native_layer_norm", "triton_per_fused", OTHER),
    ],
)
def test_classes_of_kernels(name, op, of):
    assert kernel_class(Piece(name, "forward", "7", 0.0, 1.0, op=op)) == of
