from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from clustersim.simulator.analysis import network_traffic
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform


def test_use_over_time_integrates_to_what_the_links_carried(ddp: Callable[[int], Timeline]) -> None:
    line = ddp(4)
    assert network_traffic.carried(line) == pytest.approx(dict(line.link_bytes))
    # four all-reduces of 22 MB, each link one way: 22 MB at the rate that all transfers have
    assert network_traffic.by_link_kind(line)["uplink"] == pytest.approx(4 * network_traffic.carried(line)[0])


def test_utilisation_is_bytes_over_what_the_time_would_have_carried(ddp: Callable[[int], Timeline]) -> None:
    line = ddp(4)
    assert line.cluster is not None
    share = network_traffic.utilisation(line)
    assert line.link_use is not None
    (_, begin, end, _), _ = line.link_use
    busy = sum(end - begin) / len(line.cluster.links)
    assert share["uplink"]["max"] == pytest.approx(0.5 * busy / line.makespan)
    assert share["downlink"]["mean"] == pytest.approx(share["uplink"]["mean"] / 2)
    first = next(number for number, link in enumerate(line.cluster.links) if link.kind == "uplink")
    one_idle = replace(line, link_bytes={n: b for n, b in line.link_bytes.items() if n != first})
    assert network_traffic.utilisation(one_idle)["uplink"]["mean"] == pytest.approx(0.75 * share["uplink"]["mean"])


def test_link_use_over_time_has_the_same_means(ddp: Callable[[int], Timeline]) -> None:
    line = ddp(4)
    use = network_traffic.over_time(line)
    for kind, share in network_traffic.utilisation(line).items():
        assert use[kind].mean.mean() == pytest.approx(share["mean"])
        assert use[kind].busiest.mean() == pytest.approx(share["max"])
        assert (use[kind].highest >= use[kind].busiest - 1e-12).all()
    assert list(use) == ["uplink", "downlink"]


def test_bytes_by_axis_are_those_of_one_step(ddp: Callable[[int], Timeline]) -> None:
    line = ddp(2)
    three = replace(line, schedule=replace(line.schedule, steps=3), axis_bytes={"dp": 6e9})
    assert network_traffic.by_axis(three) == {"dp": 2e9}


def test_a_measured_timeline_has_no_links(ddp: Callable[[int], Timeline]) -> None:
    line = replace(ddp(2), cluster=None)
    assert network_traffic.by_link_kind(line) == {} == network_traffic.utilisation(line)
    with pytest.raises(SimulatorError, match="measured, not simulated"):
        network_traffic.over_time(line)
    with pytest.raises(SimulatorError, match="holds no use of links"):
        network_traffic.over_time(replace(ddp(2), link_use=None))


def test_a_window_shows_its_part_alone(ddp: Callable[[int], Timeline]) -> None:
    line = ddp(2)
    assert line.link_use is not None
    (_, begin, end, _), _ = line.link_use
    use = network_traffic.over_time(line, (float(begin[0]), float(end[0])), bins=10)["uplink"]
    assert np.allclose(use.mean, 0.5)


def test_links_that_are_not_shared_have_no_use() -> None:
    """Eight broadcasts at once load the root's port eightfold under ``alpha_beta``."""
    ops = tuple(
        Collective(name=f"{i}", kind="broadcast", over="dp", nbytes=1e9, stream=f"{i}", algorithm="direct")
        for i in range(8)
    )
    schedule = Schedule(Mesh.regular({"dp": 4}), (Program("all", ops),), (0,) * 4)
    lines = {
        fidelity: simulate(schedule, uniform(gpus=4, hosts=0, bandwidth=1e9, latency=0.0), fidelity=fidelity)
        for fidelity in ("alpha_beta", "flow")
    }
    assert 8 * lines["alpha_beta"].makespan < lines["flow"].makespan + 1e-9
    assert network_traffic.utilisation(lines["alpha_beta"]) == {}
    assert all(use["max"] <= 1 + 1e-9 for use in network_traffic.utilisation(lines["flow"]).values())
    assert network_traffic.by_link_kind(lines["alpha_beta"]) == pytest.approx(
        network_traffic.by_link_kind(lines["flow"])
    )
    with pytest.raises(SimulatorError, match="fidelity alpha_beta: transfers share no link, so links have no use"):
        network_traffic.over_time(lines["alpha_beta"])
