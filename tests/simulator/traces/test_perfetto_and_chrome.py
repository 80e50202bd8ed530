import gzip
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from clustersim.simulator.analysis.critical_path import critical_path
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.schedule.ops import Recv, Send
from clustersim.simulator.simulate import simulate
from clustersim.simulator.traces import perfetto_and_chrome
from clustersim.topologies.uniform_and_tree import uniform
from tests.simulator.conftest import pipeline


def events_of(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes()
    parsed = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    events: list[dict[str, Any]] = parsed["traceEvents"]
    return events


def packets_of(path: Path) -> list[Any]:
    parsed = Trace()
    parsed.ParseFromString(path.read_bytes())
    return list(parsed.packet)


def test_chrome_holds_every_span_once_with_its_times(gpipe: Callable[[int, int], Timeline], tmp_path: Path) -> None:
    line = gpipe(3, 4)
    perfetto_and_chrome.write(line, tmp_path / "t.json")
    slices = [e for e in events_of(tmp_path / "t.json") if e["ph"] == "X"]
    spans = [span for rank in range(3) for span in line.spans(rank)]
    written = Counter(
        (e["pid"], e["name"], round(e["ts"], 6), round(e["dur"], 6)) for e in slices if e["name"] != "wait"
    )
    assert written == Counter(
        (s.rank, s.op.name, round(s.begin * 1e6, 6), round((s.end - s.begin) * 1e6, 6)) for s in spans
    )
    waited = sum(e["dur"] for e in slices if e["name"] == "wait")
    assert waited == pytest.approx(sum(s.begin - s.ready for s in spans) * 1e6)


def test_chrome_names_processes_and_tracks(gpipe: Callable[[int, int], Timeline], tmp_path: Path) -> None:
    perfetto_and_chrome.write(gpipe(3, 2), tmp_path / "t.json")
    events = events_of(tmp_path / "t.json")
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == [
        f"rank {rank} (stage {rank}) on gpu {rank}" for rank in range(3)
    ]
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [named[1, tid] for tid in (1, 2, 3, 4, 5)] == ["compute", "pp 0>1", "pp 1>2", "pp 2>1", "pp 1>0"]
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} == set(named)


def test_chrome_arrows_run_from_each_send_to_its_receive(gpipe: Callable[[int, int], Timeline], tmp_path: Path) -> None:
    line = gpipe(3, 4)
    perfetto_and_chrome.write(line, tmp_path / "t.json.gz")
    events = events_of(tmp_path / "t.json.gz")
    starts, ends = arrows_of(events, "message")
    assert starts.keys() == ends.keys()
    assert len(starts) == 2 * 2 * 4
    for number, start in starts.items():
        sent, received = (_around(events, event) for event in (start, ends[number]))
        assert abs(start["pid"] - ends[number]["pid"]) == 1
        assert sent["name"].replace("send", "recv") == received["name"]
        assert sent["args"]["action"] == received["args"]["action"]
        assert start["ts"] <= ends[number]["ts"]


def arrows_of(events: list[dict[str, Any]], name: str) -> tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]]]:
    """The starts and the ends of the arrows of that name, by their numbers."""
    starts, ends = ({e["id"]: e for e in events if e["ph"] == phase and e["name"] == name} for phase in "sf")
    return starts, ends


def test_chrome_arrows_follow_the_critical_path(gpipe: Callable[[int, int], Timeline], tmp_path: Path) -> None:
    """Down the pipeline with the last forward of each stage, and up with the backward of the first micro-batch."""
    line = gpipe(3, 4)
    perfetto_and_chrome.write(line, tmp_path / "t.json.gz")
    events = events_of(tmp_path / "t.json.gz")
    starts, ends = arrows_of(events, "critical path")
    assert starts.keys() == ends.keys()
    assert not starts.keys() & arrows_of(events, "message")[0].keys()
    path = [(_around(events, starts[n]), _around(events, ends[n])) for n in sorted(starts)]
    assert all(left["args"]["critical_path"] and entered["args"]["critical_path"] for left, entered in path)
    assert all(left["ts"] + left["dur"] == pytest.approx(entered["ts"]) for left, entered in path)
    found = critical_path(line)
    marked = [e for e in events if e["ph"] == "X" and "critical_path" in e["args"]]
    assert len(marked) == len(found.op)
    assert sum(e["dur"] for e in marked) == pytest.approx(line.makespan * 1e6)
    assert len(path) == found.stretch[-1]


def test_the_arrows_of_equal_ranks_run_between_real_partners(tmp_path: Path) -> None:
    """Two replicas of a pipeline are equal: their messages do not cross, and the critical path is that of one."""
    schedule = pipeline(2, 2).replicate("dp", 2)
    line = simulate(schedule, uniform(gpus=4, hosts=0, bandwidth=1e9, latency=0.0))
    assert len(line.distinct_ranks) == 2
    perfetto_and_chrome.write(line, tmp_path / "t.json")
    events = events_of(tmp_path / "t.json")
    starts, ends = arrows_of(events, "message")
    assert len(starts) == len(ends) == 2 * 2 * 2
    assert {(starts[n]["pid"], ends[n]["pid"]) for n in starts} == {(0, 1), (1, 0), (2, 3), (3, 2)}
    starts, ends = arrows_of(events, "critical path")
    assert starts.keys() == ends.keys()
    assert {e["pid"] for e in starts.values()} == {0, 1}


def test_of_representatives_alone_the_critical_path_is_drawn_on_them(tmp_path: Path) -> None:
    schedule = pipeline(2, 2).replicate("dp", 2)
    line = simulate(schedule, uniform(gpus=4, hosts=0, bandwidth=1e9, latency=0.0))
    perfetto_and_chrome.write(line, tmp_path / "t.json", ranks=list(line.distinct_ranks))
    starts, ends = arrows_of(events_of(tmp_path / "t.json"), "critical path")
    assert starts.keys() == ends.keys()
    assert len(starts) == critical_path(line).stretch[-1]


def test_a_measured_timeline_has_no_critical_path(gpipe: Callable[[int, int], Timeline], tmp_path: Path) -> None:
    line = gpipe(2, 1)
    own = line.columns[0]
    late = replace(line, columns={**line.columns, 0: own._replace(ready=own.ready + 0.01, begin=own.begin + 0.01)})
    perfetto_and_chrome.write(late, tmp_path / "t.json")
    events = events_of(tmp_path / "t.json")
    assert arrows_of(events, "critical path") == ({}, {})
    assert len(arrows_of(events, "message")[0]) == 2


def _around(events: list[dict[str, Any]], arrow: dict[str, Any]) -> dict[str, Any]:
    (found,) = (
        e
        for e in events
        if e["ph"] == "X"
        and (e["pid"], e["tid"]) == (arrow["pid"], arrow["tid"])
        and e["ts"] < arrow["ts"] < e["ts"] + e["dur"]
    )
    return found


def test_perfetto_holds_every_span_with_its_flows(gpipe: Callable[[int, int], Timeline], tmp_path: Path) -> None:
    line = gpipe(3, 4)
    perfetto_and_chrome.write(line, tmp_path / "t.pftrace")
    packets = packets_of(tmp_path / "t.pftrace")
    descriptors = [p.track_descriptor for p in packets if p.HasField("track_descriptor")]
    processes = {d.uuid: d for d in descriptors if d.HasField("process")}
    streams = {d.uuid: d for d in descriptors if not d.HasField("process")}
    assert [d.process.process_name for d in processes.values()] == [
        f"rank {rank} (stage {rank}) on gpu {rank}" for rank in range(3)
    ]
    assert all(d.parent_uuid in processes for d in streams.values())
    open_slices: dict[int, list[Any]] = {uuid: [] for uuid in streams}
    closed, flows, ended = Counter[tuple[str, str, int]](), [], []
    for packet in (p for p in packets if p.HasField("track_event")):
        event = packet.track_event
        if event.type == event.TYPE_SLICE_BEGIN:
            open_slices[event.track_uuid].append((event.name, packet.timestamp))
            flows += event.flow_ids
            ended += event.terminating_flow_ids
        else:
            name, begin = open_slices[event.track_uuid].pop()
            rank = processes[streams[event.track_uuid].parent_uuid].process.pid - 1
            closed[str(rank), name, packet.timestamp - begin] += name != "wait"
    assert not any(open_slices.values())
    assert +closed == Counter(
        (str(s.rank), s.op.name, round(s.end * 1e9) - round(s.begin * 1e9)) for r in range(3) for s in line.spans(r)
    )
    assert sorted(flows) == sorted(ended) == list(range(1, 2 * 2 * 4 + critical_path(line).stretch[-1] + 1))


def test_perfetto_slices_carry_bytes_axis_and_waiting(ddp: Callable[[int], Timeline], tmp_path: Path) -> None:
    perfetto_and_chrome.write(ddp(2), tmp_path / "t.pftrace")
    events = [p.track_event for p in packets_of(tmp_path / "t.pftrace") if p.HasField("track_event")]
    event = next(e for e in events if e.name == "all_reduce b3")
    args = {a.name: a.string_value or a.double_value for a in event.debug_annotations}
    assert args.pop("waited_us") == pytest.approx((0.002 + 0.054) * 0.3 * 1e6)
    assert args == {"kind": "all_reduce", "axis": "dp", "bytes": 22e6}


@pytest.mark.parametrize("suffix", perfetto_and_chrome.FORMS)
def test_the_same_timeline_gives_the_same_bytes(ddp: Callable[[int], Timeline], tmp_path: Path, suffix: str) -> None:
    line = ddp(2)
    for name in ("a", "b"):
        perfetto_and_chrome.write(line, tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_chosen_ranks_alone_are_written_and_no_arrow_hangs(
    gpipe: Callable[[int, int], Timeline], tmp_path: Path
) -> None:
    line = gpipe(3, 4)
    perfetto_and_chrome.write(line, tmp_path / "t.json", ranks=[0, 2])
    events = events_of(tmp_path / "t.json")
    assert {e["pid"] for e in events} == {0, 2}
    assert arrows_of(events, "message") == ({}, {})
    starts, ends = arrows_of(events, "critical path")
    assert starts.keys() == ends.keys()
    sends = [op for op in line.schedule.program(0).ops if isinstance(op, Send | Recv)]
    assert len([e for e in events if e["pid"] == 0 and e.get("cat") == "communication"]) == len(sends)


def test_another_suffix_is_refused(ddp: Callable[[int], Timeline], tmp_path: Path) -> None:
    with pytest.raises(SimulatorError, match=r"t\.txt: the name must end with one of \.pftrace, \.json, \.json\.gz"):
        perfetto_and_chrome.write(ddp(2), tmp_path / "t.txt")


def test_of_a_large_run_the_first_of_all_equal_ranks_is_written(
    ddp: Callable[[int], Timeline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ddp(4)
    equal = replace(line, representative=np.array([0, 1, 0, 1]))
    monkeypatch.setattr(perfetto_and_chrome, "MOST_SPANS", equal.ops - 1)
    perfetto_and_chrome.write(equal, tmp_path / "t.json")
    assert {e["pid"] for e in events_of(tmp_path / "t.json")} == {0, 1}
    some = replace(line, columns={2: line.columns[2]})
    perfetto_and_chrome.write(some, tmp_path / "t.json")
    assert {e["pid"] for e in events_of(tmp_path / "t.json")} == {2}
    perfetto_and_chrome.write(equal, tmp_path / "t.json", ranks=[3])
    assert {e["pid"] for e in events_of(tmp_path / "t.json")} == {3}


@pytest.mark.parametrize("suffix", [".json", ".pftrace"])
def test_slices_of_a_track_never_overlap(suffix: str, tmp_path: Path) -> None:
    # a message waits for its partner from when the one before was sent, which arrives later: viewers would nest it
    line = simulate(pipeline(3, 4), uniform(3, bandwidth=1e9, latency=1e-3))
    assert any(
        after.ready < before.end
        for rank in range(3)
        for before, after in pairwise(s for s in line.spans(rank) if s.op.stream == "pp 1>0")
    )
    perfetto_and_chrome.write(line, tmp_path / f"t{suffix}")
    for slices in slices_of(tmp_path / f"t{suffix}").values():
        assert all(end <= begin + 1e-6 for (_, end), (begin, _) in pairwise(sorted(slices)))


def slices_of(path: Path) -> dict[Any, list[tuple[float, float]]]:
    """Begin and end of each slice of each track, in us; Perfetto's ends close the slice that began last."""
    found: dict[Any, list[tuple[float, float]]] = {}
    if path.suffix == ".json":
        for event in events_of(path):
            if event["ph"] == "X":
                found.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        return found
    began: dict[int, list[int]] = {}
    for packet in packets_of(path):
        event = packet.track_event
        if event.type == event.TYPE_SLICE_BEGIN:
            began.setdefault(event.track_uuid, []).append(packet.timestamp)
        elif event.type == event.TYPE_SLICE_END:
            begin = began[event.track_uuid].pop()
            found.setdefault(event.track_uuid, []).append((begin / 1e3, packet.timestamp / 1e3))
    return found
