"""Replays of traces: closed forms, recorded steps on their own cluster, other GPUs, and what cannot be replayed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios.exchange.exporting.chakra import chakra
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.hardware.kernel import matmul
from clustersim.simulator.reading.errors import ScenarioError, SimulatorError, TraceError
from clustersim.simulator.traces.kineto import kineto
from clustersim.topologies.catalogue import GPUS, device
from tests.scenarios.real_traces.kineto_traces import all_reduce, events, kernel, written

STORED = Path(__file__).parents[1] / "explain" / "traces"
MS, SIZE = 1e-3, 8_000_000
AHEAD = -0.5
"""When a host that is ahead of its GPU launched a kernel, ms."""


def scenario(trace: Path, gpus: int = 8, bandwidth: str = "1 GB/s", **sections: Any) -> Scenario:
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": gpus, "bandwidth": bandwidth, "latency": "0 s"},
            "network": {"transport": "ideal", "algorithms": {"all_reduce": "ring"}},
            "workload": {"trace": [str(trace)]},
            **sections,
        }
    )


def seconds(*args: Any, **sections: Any) -> float:
    return scenario(*args, **sections).run().timeline.step_time


OVERLAPPED = events(
    [
        kernel("gemm a", 0, 10),
        all_reduce(10, 15, SIZE, 2),
        kernel("elementwise b", 10, 10),
        kernel("adam c", 25, 5),
    ],
    [AHEAD] * 4,
)
"""An all-reduce of the result of a beside b; c waits for it."""


@pytest.fixture
def overlapped(tmp_path):
    return written(tmp_path / "overlapped", 2, {0: OVERLAPPED, 1: OVERLAPPED})


@pytest.mark.parametrize(("bandwidth", "transfer"), [("1 GB/s", 8.0), ("400 MB/s", 20.0)])
def test_computation_waits_for_the_collective_and_hides_it(overlapped, bandwidth, transfer):
    """A ring of two takes bytes / bandwidth, from the end of a on; c begins when b and it have ended."""
    assert seconds(overlapped, bandwidth=bandwidth) == pytest.approx((max(20, 10 + transfer) + 5) * MS)


def test_as_measured_the_trace_is_its_own_step(overlapped):
    as_measured = {"trace": [str(overlapped)], "collectives": "measured"}
    assert seconds(overlapped, workload=as_measured) == pytest.approx(30 * MS)


def test_more_replicas_have_a_longer_ring(overlapped):
    """A ring of n moves 2 (n - 1) / n of the bytes."""
    result = scenario(overlapped, bandwidth="400 MB/s", parallelism={"dp": 8}).run()
    assert result.timeline.step_time == pytest.approx((10 + 2 * 7 / 8 * 20 + 5) * MS)
    assert (result.summary()["trace"]["dp"], result.summary()["trace"]["replayed_ranks"]) == (2, 8)


def test_a_rank_without_a_trace_does_what_its_replica_does(tmp_path, overlapped):
    alone = written(tmp_path / "alone", 2, {1: OVERLAPPED})
    assert seconds(alone) == pytest.approx(seconds(overlapped))


def test_the_slower_rank_is_waited_for(tmp_path):
    """Rank 1 computes 5 ms longer, so that the collective of rank 0 lasts as much longer in the trace."""
    early = events([kernel("gemm", 0, 10), all_reduce(10, 13, SIZE, 2), kernel("adam", 23, 5)], [AHEAD] * 3)
    late = events([kernel("gemm", 0, 15), all_reduce(15, 8, SIZE, 2), kernel("adam", 23, 5)], [AHEAD] * 3)
    folder = written(tmp_path / "late", 2, {0: early, 1: late})
    assert seconds(folder) == pytest.approx((15 + 8 + 5) * MS)
    measured = {"trace": [str(folder)], "collectives": "measured"}
    assert seconds(folder, workload=measured) == pytest.approx(28 * MS)


def test_replicas_of_a_tensor_parallel_pair_keep_their_pair(tmp_path):
    """Ranks (0, 1) and (2, 3) are pairs, (0, 2) and (1, 3) replicas; with dp 4 the pairs stay pairs."""
    traces = {}
    for rank in range(4):
        pair = [rank // 2 * 2, rank // 2 * 2 + 1]
        replicas = [rank % 2, rank % 2 + 2]
        inner = all_reduce(10, 8, SIZE, 2, **{"Process Group Name": "tp", "Process Group Ranks": str(pair)})
        outer = all_reduce(28, 8, SIZE, 2, **{"Process Group Ranks": str(replicas)})
        work = [kernel("gemm a", 0, 10), inner, kernel("gemm b", 18, 10), outer, kernel("adam", 36, 1)]
        traces[rank] = events(work, [AHEAD] * 5)
    folder = written(tmp_path / "grid", 4, traces)
    assert seconds(folder) == pytest.approx(37 * MS)
    run = scenario(folder, parallelism={"dp": 4}).run()
    assert run.timeline.step_time == pytest.approx((10 + 8 + 10 + 12 + 1) * MS)
    assert set(run.timeline.schedule.mesh.axes["tp"].groups) == {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert set(run.timeline.schedule.mesh.axes["dp"].groups) == {(0, 2, 4, 6), (1, 3, 5, 7)}


def test_kernels_are_scaled_by_class(tmp_path):
    """A product by the rates of products, another kernel by the bandwidth of the memory."""
    old, new = device(GPUS, "a100_80gb").accelerator(), device(GPUS, "h100").accelerator()
    work = events([kernel("ampere_bf16_gemm", 0, 10), kernel("elementwise", 10, 20)], [AHEAD] * 2)
    folder = written(tmp_path / "one", 1, {0: work}, "NVIDIA A100-SXM4-80GB")
    on = {"preset": "uniform", "gpus": 1, "bandwidth": "1 GB/s", "latency": "0 s", "accelerator": "h100"}
    product = old.peak("bf16") * old.matmul_efficiency / (new.peak("bf16") * new.matmul_efficiency)
    memory = old.memory_bandwidth * old.memory_efficiency / (new.memory_bandwidth * new.memory_efficiency)
    assert seconds(folder, cluster=on) == pytest.approx((10 * product + 20 * memory) * MS)


def test_a_product_with_its_shape_is_scaled_by_its_price(tmp_path):
    old, new = device(GPUS, "a100_80gb").accelerator(), device(GPUS, "h100").accelerator()
    work = events([kernel("gemm", 0, 10)], [-0.5])
    dims = {"Input Dims": [[512, 256], [256, 1024]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 1, "ts": -600, "dur": 300}
    folder = written(tmp_path / "shape", 1, {0: [*work, {**operator, "args": dims}]}, "NVIDIA A100-SXM4-80GB")
    on = {"preset": "uniform", "gpus": 1, "bandwidth": "1 GB/s", "latency": "0 s", "accelerator": "h100"}
    product = matmul(512, 1024, 256, precision="bf16")
    ratio = new.kernel_seconds(product) / old.kernel_seconds(product)
    assert seconds(folder, cluster=on) == pytest.approx(10 * ratio * MS)


def test_a_faster_gpu_waits_for_its_host(tmp_path):
    """The host launches a kernel each 10 ms: faster kernels do not shorten what it takes."""
    work = events([kernel("gemm", 10 * n + 1, 5) for n in range(4)], [10 * n + 0.9 for n in range(4)])
    folder = written(tmp_path / "launches", 1, {0: work}, "NVIDIA A100-SXM4-80GB")
    on = {"preset": "uniform", "gpus": 1, "bandwidth": "1 GB/s", "latency": "0 s", "accelerator": "b200"}
    slow = seconds(folder)
    assert slow == pytest.approx(35 * MS)
    assert 30 * MS < seconds(folder, cluster=on) < slow


RECORDED = Path(__file__).parents[3] / "scenarios" / "traced" / "ddp_sleep"


@pytest.mark.parametrize("path", [STORED / "h100_gpt2_compiled.json.gz", RECORDED, STORED / "pipeline"])
def test_recorded_steps_are_replayed_on_their_own_cluster(path):
    replayed = scenario(path, workload={"trace": [str(path)], "collectives": "measured"}).run()
    assert replayed.timeline.step_time == pytest.approx(replayed.summary()["trace"]["step_time_s"], rel=0.03)


@pytest.fixture(scope="module")
def simulated():
    """A small hybrid step with pipeline, tensor and data parallelism."""
    return Scenario.model_validate(
        {
            "version": 1,
            "name": "small",
            "cluster": {"preset": "dgx_a100_80gb", "nodes": 1},
            "model": {"preset": "gpt2"},
            "training": {"global_batch_size": 8, "micro_batch_size": 1, "precision": "bf16"},
            "parallelism": {"tp": 2, "pp": 2, "dp": 2},
        }
    )


def test_chakra_traces_that_were_exported_are_read_back(simulated, tmp_path):
    """The step differs by the rounding of durations to microseconds, and by kernels that collectives slowed down."""
    export = chakra(simulated)
    for name, content in export.files.items():
        content(tmp_path / name) if callable(content) else (tmp_path / name).write_text(content)
    found = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_a100_80gb", "nodes": 1},
            "workload": {"trace": [str(tmp_path)]},
        }
    ).run()
    assert found.timeline.step_time == pytest.approx(simulated.run().timeline.step_time, rel=0.01)


def test_a_kineto_trace_that_was_exported_is_read_back(tmp_path):
    """Two ranks of DDP: dependencies are found again from times alone."""
    made = Scenario.load("hello").run().timeline
    for rank in range(made.world_size):
        (tmp_path / f"rank{rank}.json").write_bytes(kineto(made, rank))
    workload = {"trace": [str(tmp_path)], "collectives": "measured"}
    assert seconds(tmp_path, workload=workload) == pytest.approx(made.step_time, rel=0.03)


def refused(error: type[SimulatorError], *args: Any, **sections: Any) -> str:
    with pytest.raises(error) as caught:
        scenario(*args, **sections).run()
    return str(caught.value)


def test_dp_must_be_a_multiple(overlapped):
    assert "dp 3 is not a multiple of the 2 replicas" in refused(ScenarioError, overlapped, parallelism={"dp": 3})


def test_a_trace_that_was_cut_off_is_named(tmp_path, overlapped):
    path = overlapped / "rank1.json"
    path.write_text(path.read_text()[:-40])
    assert "rank1.json:1:" in (text := refused(TraceError, overlapped))
    assert "ends early" in text


def test_a_collective_without_its_size_is_named(tmp_path):
    call = all_reduce(10, 5, SIZE, 2)
    bare = (*call[:4], {key: value for key, value in call[4].items() if "nelems" not in key})
    own = events([kernel("gemm", 0, 10), bare], [AHEAD] * 2)
    folder = written(tmp_path / "bare", 2, {0: own, 1: own})
    assert "does not say its size; record with record_shapes=True" in refused(TraceError, folder)


def test_ranks_without_a_trace_and_replica_are_named(tmp_path):
    inner = {"Process Group Name": "tp"}
    own = events([kernel("gemm", 0, 10), all_reduce(10, 5, SIZE, 2, **inner)], [AHEAD] * 2)
    folder = written(tmp_path / "missing", 2, {0: own})
    assert "of the 2 ranks, rank 1 and their replicas have no trace" in refused(TraceError, folder)


def test_a_chakra_trace_that_was_cut_off_is_named(tmp_path, simulated):
    export = chakra(simulated)
    content = export.files["small.0.et"]
    assert callable(content)
    content(tmp_path / "small.0.et")
    whole = (tmp_path / "small.0.et").read_bytes()
    (tmp_path / "small.0.et").write_bytes(whole[: len(whole) // 2])
    assert "small.0.et: ends early" in refused(TraceError, tmp_path)


def test_a_model_does_not_stand_beside_a_trace(overlapped):
    text = refused(ScenarioError, overlapped, model={"preset": "gpt2"})
    assert "model: stands beside workload" in text
    assert "parallelism.tp" in refused(ScenarioError, overlapped, parallelism={"tp": 2})


def test_more_ranks_than_gpus(overlapped):
    text = refused(ScenarioError, overlapped, 4, parallelism={"dp": 8})
    assert "8 ranks of the trace need as many GPUs, but there are 4" in text


def test_a_result_is_written_and_read_again(overlapped, tmp_path):
    from clustersim.scenarios.results.result_files import write

    shutil.copytree(overlapped, tmp_path / "copy")
    result = scenario(tmp_path / "copy").run()
    (tmp_path / "run").mkdir()
    write(result, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["step_time_s"] == result.timeline.step_time
    again = Scenario.load(str(tmp_path / "run")).run()
    assert again.timeline.step_time == result.timeline.step_time


@pytest.mark.exhaustive
def test_the_shipped_trace_takes_longer_with_more_replicas_as_rings_do():
    """Its all-reduces are exposed: a ring of n moves 2 (n - 1) / n of the bytes, so 64 are not far above 4."""
    results = Scenario.load("ddp_gloo_more_replicas").run().variants
    seconds = {name: one.timeline.step_time for name, one in results.items()}
    trace = results["as measured"].summary()["trace"]["step_time_s"]
    assert seconds["as measured"] == pytest.approx(trace, rel=0.03)
    assert seconds["4 replicas"] < seconds["16 replicas"] < seconds["64 replicas"] < 2 * seconds["4 replicas"]
