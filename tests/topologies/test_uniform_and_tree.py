"""The two textbook networks, as the contract defines them."""

import pytest

from clustersim.topologies import cluster
from clustersim.topologies.uniform_and_tree import uniform


def test_uniform_has_one_port_for_each_device() -> None:
    machine = cluster({"preset": "uniform", "gpus": 8, "hosts": 2, "bandwidth": "10 GB/s", "latency": "5 us"})
    assert len(machine.gpus) == 8
    assert len(machine.hosts) == 2
    assert [link.bandwidth for link in machine.links] == [10e9] * 20
    assert [link.latency for link in machine.links] == pytest.approx([2.5e-6] * 20)
    for source, target in (("gpu 0", "gpu 7"), ("gpu 3", "host 1"), ("host 0", "host 1")):
        assert machine.latency(machine.route(source, target)) == pytest.approx(5e-6)
    assert {machine.node_of(device) for device in (*machine.gpus, *machine.hosts)} == {0}
    assert machine.accelerator("host 0").peak("fp32") == 1.0


def test_latency_may_be_nothing() -> None:
    assert uniform(2, 1e9, 0.0).latency((0, 1)) == 0.0


def test_tree_is_as_in_the_contract() -> None:
    machine = cluster(
        {"preset": "tree", "arity": [2, 3], "bandwidth": ["160 Mb/s", "300 Mb/s"], "latency": "50 us", "hosts": 1}
    )
    assert len(machine.gpus) == 6
    assert [machine.node_of(gpu) for gpu in machine.gpus] == [0, 0, 0, 1, 1, 1]
    inside, across = machine.route("gpu 0", "gpu 2"), machine.route("gpu 0", "gpu 5")
    assert [machine.links[number].bandwidth for number in inside] == [37.5e6] * 2
    assert [machine.links[number].bandwidth for number in across] == [37.5e6, 20e6, 20e6, 37.5e6]
    assert machine.latency(across) == pytest.approx(200e-6)
    up = machine.route("gpu 4", "host 0")
    assert [machine.links[number].bandwidth for number in up] == [37.5e6, 20e6, 37.5e6]
    assert machine.host_of("gpu 4") == "host 0"


def test_a_tree_of_one_level_and_latencies_by_level() -> None:
    flat = cluster({"preset": "tree", "arity": [4], "bandwidth": "1 GB/s", "latency": "0 s", "hosts": 0})
    assert len(flat.route("gpu 0", "gpu 3")) == 2
    assert flat.hosts == ()
    deep = cluster({"preset": "tree", "arity": [2, 2, 2], "bandwidth": "1 GB/s", "latency": ["3 us", "2 us", "1 us"]})
    assert deep.latency(deep.route("gpu 0", "gpu 7")) == pytest.approx(12e-6)
    assert deep.latency(deep.route("gpu 0", "gpu 3")) == pytest.approx(6e-6)
    assert deep.latency(deep.route("gpu 0", "gpu 1")) == pytest.approx(2e-6)
