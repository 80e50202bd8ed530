"""Traffic of another job shares links with that of a scenario, the same on both engines, folded or not."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError

PORTS = {
    "version": 1,
    "cluster": {"preset": "uniform", "gpus": 4, "hosts": 0, "bandwidth": "1 GB/s", "latency": "0 s"},
    "collective": {"kind": "broadcast", "size": "2 GB", "ranks": 2},
}
"""Two of four ports of 1 GB/s; a broadcast of 2 GB takes 2 s."""

NODES = {
    "version": 1,
    "cluster": {"preset": "dgx1", "nodes": 2},
    "collective": {"kind": "all_reduce", "size": "64 MB"},
}


def run(base, background, engine="simpy", fold=True, transport="ideal"):
    data = {
        **base,
        "network": {"transport": transport, "background": background},
        "simulation": {"engine": engine, "fold": fold},
    }
    return Scenario.model_validate(data).run()


def traffic(source, target, rate, begin="0 s", end=None):
    return {"from": source, "to": target, "rate": rate, "begin": begin} | ({"end": end} if end else {})


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize(
    ("background", "seconds"),
    [
        ([], 2.0),
        ([traffic("gpu 0", "gpu 3", "250 MB/s", "1 s", "2 s")], 2.25),
        ([traffic("gpu 0", "gpu 3", "1 GB/s", "1 s", "2 s")], 2.5),
        ([traffic("gpu 0", "gpu 3", "1 GB/s")], 4.0),
        ([traffic("gpu 2", "gpu 1", "1 GB/s"), traffic("gpu 3", "gpu 1", "200 MB/s")], 5.0),
        ([traffic("gpu 2", "gpu 3", "1 GB/s")], 2.0),
        ([traffic("gpu 1", "gpu 0", "1 GB/s")], 2.0),
        ([traffic("gpu 0", "gpu 3", "1 GB/s", "5 s")], 2.0),
    ],
    ids=["none", "capped", "half", "whole time", "two at the receiver", "elsewhere", "other direction", "later"],
)
def test_a_broadcast_takes_what_is_left_of_its_links(engine, background, seconds):
    timeline = run(PORTS, background, engine).timeline
    assert timeline.makespan == pytest.approx(seconds)


def test_a_link_carries_the_bytes_of_both_jobs():
    timeline = run(PORTS, [traffic("gpu 0", "gpu 3", "250 MB/s", "1 s", "2 s")]).timeline
    cluster = timeline.cluster
    carried = [timeline.link_bytes.get(cluster.number(*ends), 0.0) for ends in port_links(cluster)]
    assert carried == pytest.approx([2.25e9, 2e9, 0.25e9])


def port_links(cluster):
    """The link out of GPU 0, and those into GPUs 1 and 3."""
    return [cluster.ends[number] for number in (*cluster.route("gpu 0", "gpu 1"), cluster.route("gpu 0", "gpu 3")[-1])]


@settings(deadline=None, max_examples=12)
@given(
    st.lists(
        st.tuples(st.integers(0, 15), st.integers(0, 15), st.floats(0.01, 10), st.floats(0, 5), st.floats(0.1, 20)),
        min_size=1,
        max_size=3,
    ).map(lambda flows: [flow for flow in flows if flow[0] != flow[1]])
)
def test_engines_agree_folded_and_unfolded_and_no_link_is_above_its_bandwidth(flows):
    background = [
        traffic(f"gpu {a}", f"gpu {b}", f"{rate:.3f} GB/s", f"{begin:.3f} ms", f"{begin + lasts:.3f} ms")
        for a, b, rate, begin, lasts in flows
    ]
    runs = [
        run(NODES, background, engine, fold, "nccl").timeline
        for engine in ("simpy", "compiled")
        for fold in (True, False)
    ]
    for timeline in runs:
        assert timeline.makespan == pytest.approx(runs[0].makespan, rel=1e-9)
        links = timeline.cluster.links
        for number, nbytes in timeline.link_bytes.items():
            assert nbytes <= links[number].bandwidth * timeline.makespan * (1 + 1e-9)
    assert runs[0].makespan >= run(NODES, [], "compiled", True, "nccl").timeline.makespan * (1 - 1e-9)
    assert runs[0].makespan < inf


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (traffic("gpu 9", "gpu 1", "1 GB/s"), 'background.0.from: uniform has no device "gpu 9"'),
        (traffic("gpu 0", "switch 0", "1 GB/s"), 'background.0.to: uniform has no device "switch 0"'),
        (traffic("gpu 0", "gpu 0", "1 GB/s"), "background.0.to: gpu 0 sends to itself"),
        (traffic("gpu 0", "gpu 1", "2 GB/s"), "carries 1 GB/s; give at most that"),
        (traffic("gpu 0", "gpu 1", "2"), "background.0.rate: needs a unit"),
        (traffic("gpu 0", "gpu 1", "1 GB/s", "2 s", "1 s"), "background.0.end: must be after begin, 2 s"),
        ({"from": "gpu 0", "rate": "1 GB/s"}, "background.0.to: is required"),
    ],
    ids=["unknown sender", "a switch", "itself", "too fast", "no unit", "ends before it begins", "no receiver"],
)
def test_wrong_traffic_is_told(given, told):
    with pytest.raises(ScenarioError) as error:
        run(PORTS, [given])
    assert told in str(error.value)
