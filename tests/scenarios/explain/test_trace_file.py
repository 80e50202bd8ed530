"""Bad traces: each is refused with one sentence that names the file and the place, never with a traceback."""

import gzip
import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.real_traces.run import run_of
from clustersim.scenarios.real_traces.trace_file import read
from clustersim.simulator.reading.errors import TraceError

RECORDED = Path(__file__).parents[3] / "scenarios" / "traced" / "ddp_sleep"
KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 2}


def written(folder, content, name="rank0.json"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def fault(path):
    with pytest.raises(TraceError) as caught:
        run_of([path])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


BAD = {
    "is missing": {"schemaVersion": 1},
    "traceEvents must be a list": {"traceEvents": 7},
    "must be an object with traceEvents": "text",
    "traceEvents[0] must be an object": [3],
    "traceEvents[0].ts must be a number": [{**KERNEL, "ts": "soon"}],
    "traceEvents[0].dur must be a number": [{**KERNEL, "dur": [1]}],
    "traceEvents[0].dur must not be negative": [{**KERNEL, "dur": -1}],
    "has no events with a duration": {"traceEvents": []},
    "has neither kernels": [{**KERNEL, "cat": "other"}],
    "distributedInfo must be an object": {"distributedInfo": [], "traceEvents": [KERNEL]},
    "distributedInfo.rank must be a whole number": {"distributedInfo": {"rank": "a"}, "traceEvents": [KERNEL]},
    "but there are 2 ranks": {"distributedInfo": {"rank": 2, "world_size": 2}, "traceEvents": [KERNEL]},
    "is not valid JSON": b"{]",
    "ends early": b'{"traceEvents": [{"ph": "X", ',
    "nested too deeply": b"[" * 200_000,
    "thousands of digits": b'[{"ts": ' + b"1" * 5_000 + b"}]",
}


@pytest.mark.parametrize("message", BAD)
def test_the_fault_is_named(tmp_path, message):
    assert message in fault(written(tmp_path, BAD[message]))


HUGE = {
    "numbers of elements": {"Collective name": "allreduce", "In msg nelems": 10**400, "dtype": "Float"},
    "shapes": {"Input Dims": [[10**300, 10**300], [10**300, 2]], "Input type": ["float", "float"]},
    "groups": {"Group size": -3, "Process Group Ranks": ["a"], "Process Group Name": {}},
    "streams": {"stream": {"a": 1}, "correlation": 10**400, "device": 10**30, "layer": 7, "action": []},
}


@pytest.mark.parametrize("what", HUGE)
def test_arguments_of_wrong_types_and_sizes_are_no_traceback(tmp_path, what, capsys):
    nccl = {**KERNEL, "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL()", "args": HUGE[what]}
    operator = {**KERNEL, "cat": "cpu_op", "name": "aten::mm", "args": HUGE[what]}
    gloo = {**KERNEL, "cat": "user_annotation", "name": "gloo:all_reduce", "args": HUGE[what]}
    assert run(["explain", str(written(tmp_path, [nccl, operator, {**KERNEL, "ts": 9}]))]) == 0
    assert run(["explain", str(written(tmp_path, [gloo, operator]))]) == 0
    assert "step" in capsys.readouterr().out


def test_names_cannot_control_the_terminal(tmp_path, capsys):
    assert run(["explain", str(written(tmp_path, [{**KERNEL, "name": "gemm\x1b[31m\nred"}]))]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_gzip_files_that_end_early_or_are_damaged(tmp_path):
    whole = gzip.compress(json.dumps([KERNEL] * 1_000).encode())
    assert "ends early" in fault(written(tmp_path, whole[: len(whole) // 2]))
    assert "is damaged" in fault(written(tmp_path, whole[:10] + b"\xff" * 20 + whole[30:]))


def test_files_that_are_none(tmp_path):
    assert "cannot be read" in fault(tmp_path / "nothing.json")
    assert "has no traces" in fault(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is a device or a pipe" in fault(tmp_path / "pipe")


def test_more_json_than_memory_holds(tmp_path, monkeypatch):
    monkeypatch.setattr("clustersim.scenarios.real_traces.trace_file.LARGEST", 10_000)
    monkeypatch.setattr("clustersim.scenarios.real_traces.trace_file.CHUNK", 1_000)
    assert "record fewer steps" in fault(written(tmp_path, gzip.compress(b" " * 1_000_000)))


def test_times_are_exact_from_the_first_event_on(tmp_path):
    late = 1_790_857_026_000_000
    events = [{**KERNEL, "ts": late + 5, "dur": 3}, {**KERNEL, "ts": late, "dur": 4}]
    found = read(written(tmp_path, events)).events
    assert [time for event in found for time in (event.begin, event.end)] == pytest.approx([0.0, 4e-6, 5e-6, 8e-6])


def test_two_traces_of_one_rank_and_traces_of_two_runs(tmp_path):
    one = written(tmp_path, {"distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": [KERNEL]}, "a.json")
    again = written(tmp_path, one.read_bytes(), "b.json")
    other = written(tmp_path, {"distributedInfo": {"rank": 1, "world_size": 4}, "traceEvents": [KERNEL]}, "c.json")
    with pytest.raises(TraceError, match=r"b\.json: is of rank 0, and so is .*a\.json"):
        run_of([one, again])
    with pytest.raises(TraceError, match=r"c\.json: is of a run with 4 ranks, but .*a\.json of one with 2 ranks"):
        run_of([one, other])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000))
def test_a_damaged_trace_is_read_or_refused(tmp_path, seed):
    """Bytes of a real trace are overwritten at random places."""
    draws = random.Random(seed)
    content = bytearray(gzip.decompress((RECORDED / "rank0.json.gz").read_bytes())[:20_000])
    content += b"]}" if draws.random() < 0.5 else b""
    for _ in range(draws.randrange(4)):
        content[draws.randrange(len(content))] = draws.randrange(256)
    try:
        run_of([written(tmp_path, bytes(content))])
    except TraceError as error:
        assert "rank0.json" in str(error)


def test_the_command_prints_the_fault_and_nothing_else(tmp_path, capsys):
    assert run(["explain", str(written(tmp_path, b"{]"))]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
