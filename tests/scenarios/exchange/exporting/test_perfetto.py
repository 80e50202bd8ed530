"""Perfetto traces: Perfetto's own schema reads them; counters are those of memory and links."""

from itertools import pairwise

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.exchange.export import write
from clustersim.scenarios.exchange.exporting.perfetto import perfetto
from clustersim.simulator.analysis import memory, network_traffic

definition = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    scenario = Scenario.load("hello")
    folder = tmp_path_factory.mktemp("perfetto")
    (path,) = write(perfetto(scenario), folder / "hello.pftrace")
    trace = definition.Trace()
    trace.ParseFromString(path.read_bytes())
    return scenario.run().timeline, trace.packet


def tracks(packets):
    return {p.track_descriptor.uuid: p.track_descriptor for p in packets if p.HasField("track_descriptor")}


def values(packets, uuid):
    return [
        (p.timestamp, p.track_event.double_counter_value)
        for p in packets
        if p.HasField("track_event") and p.track_event.track_uuid == uuid
    ]


def test_counters_of_memory_reach_the_peak(exported):
    timeline, packets = exported
    known = tracks(packets)
    for rank in timeline.gpu_ranks:
        process = next(u for u, t in known.items() if t.process.pid == rank + 1)
        mine = {u: t for u, t in known.items() if t.parent_uuid == process and t.HasField("counter")}
        assert all(t.name.startswith("memory: ") for t in mine.values())
        total = memory.curve(timeline, rank).by_category
        for uuid, track in mine.items():
            highest = max(value for _, value in values(packets, uuid))
            assert highest == pytest.approx(total[track.name.removeprefix("memory: ")].max())


def test_counters_of_links_have_their_mean_use(exported):
    timeline, packets = exported
    use = network_traffic.over_time(timeline)["port"].mean
    (uuid,) = [u for u, t in tracks(packets).items() if t.name == "port: mean"]
    points = values(packets, uuid)
    assert points[-1][1] == 0.0
    area = sum(value * (after - begin) for (begin, value), (after, _) in pairwise(points))
    assert area / points[-1][0] == pytest.approx(100 * use.mean(), rel=1e-6)


def test_every_event_lies_on_a_track_that_is_described(exported):
    _, packets = exported
    known = tracks(packets)
    assert all(p.track_event.track_uuid in known for p in packets if p.HasField("track_event"))
    assert all(not t.parent_uuid or t.parent_uuid in known for t in known.values())
