"""Kineto traces: what HolisticTraceAnalysis (HTA) computes from them is what the simulation has.

HTA's rules are written out here. Where a Python with HTA is named by ``CLUSTERSIM_HTA_PYTHON``, or HTA is installed
beside clustersim, HTA itself must agree too (0.5.0 does).
"""

import importlib.util
import json
import os
import subprocess
import sys
from itertools import pairwise

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.exchange.export import write
from clustersim.scenarios.exchange.exporting.kineto import kineto
from clustersim.simulator.analysis.metrics import rank_breakdown

PYTHON = os.environ.get("CLUSTERSIM_HTA_PYTHON", sys.executable if importlib.util.find_spec("hta") else "")

ANALYSE = """
import json, sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_dir=sys.argv[1])
print(json.dumps({
    "overlap": found.get_comm_comp_overlap(visualize=False).to_dict("records"),
    "temporal": found.get_temporal_breakdown(visualize=False).to_dict("records"),
    "idle": found.get_idle_time_breakdown(ranks=[0], visualize=False)[0].to_dict("records"),
}, default=float))
"""

SCENARIOS = {
    "hello": [],
    "gpt_6_7b_64a100": [
        "cluster.nodes=1", "parallelism.dp=2", "parallelism.tp=2", "parallelism.pp=2", "training.global_batch_size=16",
    ],
    "llama3_8b_fsdp_dgx_h100": ["cluster.nodes=1", "training.global_batch_size=16"],
}  # fmt: skip


@pytest.fixture(scope="module", params=SCENARIOS)
def exported(request, tmp_path_factory):
    scenario = Scenario.load(request.param, options=SCENARIOS[request.param])
    folder = tmp_path_factory.mktemp(request.param)
    paths = write(kineto(scenario), folder)
    traces = {int(path.stem.removeprefix("rank")): json.loads(path.read_text()) for path in paths}
    return scenario.run().timeline, folder, traces


def kernels(trace):
    return [event for event in trace["traceEvents"] if event.get("cat") in ("kernel", "gpu_memcpy")]


def union(events):
    """The merged intervals of *events*."""
    merged = []
    for begin, end in sorted((event["ts"], event["ts"] + event["dur"]) for event in events):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def length(intervals):
    return sum(end - begin for begin, end in intervals)


def is_communication(event):
    return event["name"].startswith("nccl")


def temporal(trace):
    """HTA's get_temporal_breakdown: idle, compute and other time (us) from the first kernel to the last."""
    everything = union(kernels(trace))
    whole = everything[-1][1] - everything[0][0]
    compute = length(union([e for e in kernels(trace) if e["cat"] == "kernel" and not is_communication(e)]))
    return whole - length(everything), compute, length(everything) - compute


def idle_of_host(trace, stream):
    """HTA's get_idle_time_breakdown: gaps (us) of *stream* before a kernel that was launched in the gap."""
    launches = {e["args"]["correlation"]: e["ts"] for e in trace["traceEvents"] if e.get("cat") == "cuda_runtime"}
    own = sorted((e for e in kernels(trace) if e["args"]["stream"] == stream), key=lambda e: e["ts"])
    return sum(
        after["ts"] - before["ts"] - before["dur"]
        for before, after in pairwise(own)
        if launches[after["args"]["correlation"]] > before["ts"] + before["dur"]
    )


def parts(timeline, rank):
    """Our idle, compute and other time (us), without what lies before the first kernel and behind the last one."""
    found = {name: seconds * 1e6 for name, seconds in rank_breakdown(timeline, rank).items()}
    compute = found["compute"] + found["recompute"] + found["optimizer"]
    idle = found["bubble"] + found.get("host", 0.0)
    spans = [span for span in timeline.spans(rank) if type(span.op).__name__ != "Delay"]
    ends = min(span.begin for span in spans), max(span.end for span in spans)
    idle -= (ends[0] + timeline.step_time - ends[1]) * 1e6
    return idle, compute, sum(found.values()) - compute - found["bubble"] - found.get("host", 0.0)


def close(value):
    return pytest.approx(value, rel=0.01, abs=3)


def test_the_temporal_breakdown_is_ours(exported):
    timeline, _, traces = exported
    assert sorted(traces) == list(timeline.gpu_ranks)
    for rank, trace in traces.items():
        assert temporal(trace) == close(parts(timeline, rank))


def test_every_kernel_has_a_launch_before_it_and_kernels_of_a_stream_do_not_overlap(exported):
    for trace in exported[2].values():
        launches = {e["args"]["correlation"]: e for e in trace["traceEvents"] if e.get("cat") == "cuda_runtime"}
        assert len(launches) == len(kernels(trace))
        for kernel in kernels(trace):
            assert launches[kernel["args"]["correlation"]]["ts"] <= kernel["ts"]
            assert launches[kernel["args"]["correlation"]]["ts"] >= 0
        streams = {e["args"]["stream"] for e in kernels(trace)}
        for stream in streams:
            own = sorted((e["ts"], e["ts"] + e["dur"]) for e in kernels(trace) if e["args"]["stream"] == stream)
            assert all(before[1] <= after[0] for before, after in pairwise(own))


def test_idle_time_of_the_host_is_that_of_the_delays(exported):
    timeline, _, traces = exported
    for rank, trace in traces.items():
        spans = [span for span in timeline.spans(rank) if type(span.op).__name__ == "Delay"]
        last = max(event["ts"] + event["dur"] for event in kernels(trace))
        lead = min(event["ts"] for event in kernels(trace)) - round(min(s.begin for s in timeline.spans(rank)) * 1e6)
        inside = sum((span.end - span.begin) * 1e6 for span in spans if span.end * 1e6 + lead <= last)
        assert sum(idle_of_host(trace, s) for s in {e["args"]["stream"] for e in kernels(trace)}) == close(inside)


def test_the_head_names_rank_and_world(exported):
    timeline, folder, _ = exported
    # HTA looks for this text in the lines of the file
    assert f'"rank": 1, "world_size": {timeline.world_size}' in (folder / "rank1.json").read_text()


@pytest.mark.skipif(
    not PYTHON,
    reason="HolisticTraceAnalysis is not installed; python -m venv hta && hta/bin/pip install HolisticTraceAnalysis, "
    "then CLUSTERSIM_HTA_PYTHON=hta/bin/python",
)
def test_hta_agrees(exported):
    timeline, folder, traces = exported
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [PYTHON, "-c", ANALYSE, str(folder)], capture_output=True, text=True, check=True, env=environment
    )
    found = json.loads(done.stdout.splitlines()[-1])
    for row in found["temporal"]:
        idle, compute, other = parts(timeline, int(row["rank"]))
        assert row["idle_time(us)"] == close(idle)
        assert row["compute_time(us)"] == close(compute)
        assert row["non_compute_time(us)"] == close(other)
    for row in found["overlap"]:
        trace = traces[int(row["rank"])]
        communicates = union([e for e in kernels(trace) if is_communication(e)])
        exposed = sum(
            seconds for name, seconds in rank_breakdown(timeline, int(row["rank"])).items() if "exposed" in name
        )
        ours = 100 * (1 - exposed * 1e6 / length(communicates))
        assert row["comp_comm_overlap_pctg"] == pytest.approx(ours, abs=1.0)
    of_host = sum(row["idle_time"] for row in found["idle"] if row["idle_category"] == "host_wait")
    assert of_host == close(sum(idle_of_host(traces[0], s) for s in {e["args"]["stream"] for e in kernels(traces[0])}))
