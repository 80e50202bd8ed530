"""Every route of every named cluster exists in the graph and passes the right kinds of links."""

from itertools import pairwise, permutations

import pytest

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.topologies import cluster
from clustersim.topologies.cluster_section import CLUSTERS
from tests.samples import sample

BEHIND_THE_PROCESSOR = (
    *("frontier", "lumi", "alps", "jupiter"),
    *("gb200_nvl72", "gb300_nvl72", "p6e_gb200", "a4x_nvl72", "nd_gb200_v6"),
)
"""Clusters with GPUs that reach a NIC over a link of their own to the processor."""


NVL72 = ("gb300_nvl72", "p6e_gb200", "a4x_nvl72", "nd_gb200_v6")
"""Clusters of the same nodes as gb200_nvl72, with 20,000 pairs of devices each."""

FORWARDING = (
    *("frontier", "lumi", "trn2_48xlarge"),
    *("tpu_v4_512", "tpu_v5e_pod", "tpu_v5p_512", "tpu_v6e_pod", "tpu_v7x_512"),
)
"""Clusters with dies or chips that forward messages of others."""

NAMES = [name for name in lookup.names(CLUSTERS) if name != "tpu_v7x_pod"]
"""All but 9,216 chips in a torus, whose routes are those of 512."""

MOST = 30
"""Devices of a torus between which all routes are found, every n-th one of more."""


def path(machine: Cluster, source: str, target: str) -> list[str]:
    route = machine.route(source, target)
    ends = [machine.ends[number] for number in route]
    assert all(before[1] == after[0] for before, after in pairwise(ends))  # contiguous
    return [ends[0][0], *(end for _, end in ends)]


@pytest.mark.parametrize("name", sample(NAMES, heavy=NVL72))
def test_all_pairs(name: str) -> None:
    machine = cluster({"preset": name, "nodes": 2})
    devices = (*machine.gpus, *machine.hosts)
    assert len(machine.hosts) == 2 * read(lookup.data_file(CLUSTERS, name)).data["node"]["sockets"]
    every = 1 + len(devices) // MOST if name in FORWARDING else 1
    for source, target in permutations(devices[::every], 2):
        passed = path(machine, source, target)
        assert (passed[0], passed[-1]) == (source, target)
        assert len(set(passed)) == len(passed)
        between = [vertex.rpartition(" ")[0] for vertex in passed[1:-1]]
        if name not in FORWARDING:
            assert "gpu" not in between
        apart = machine.node_of(source) != machine.node_of(target)
        assert between.count("nic") == (2 if apart else 0)
        if apart and source.startswith("gpu") and name not in BEHIND_THE_PROCESSOR:
            first = machine.links[machine.route(source, target)[0]]
            assert first.kind.startswith("pcie")  # GPU memory to NIC


@pytest.mark.parametrize("name", NAMES)
def test_a_route_back_is_the_reverse(name: str) -> None:
    machine = cluster({"preset": name, "nodes": 3})
    for source, target in (("gpu 0", machine.gpus[-1]), ("gpu 1", "gpu 2"), ("gpu 3", machine.hosts[-1])):
        assert path(machine, source, target) == path(machine, target, source)[::-1]


def test_ten_thousand_gpus_have_routes_on_demand() -> None:
    machine = cluster({"preset": "dgx_a100_80gb", "nodes": 1280})
    assert len(machine.gpus) == 10240
    assert len(machine.route("gpu 0", "gpu 10239")) == 4 + 6  # up to a core and down
    assert len(machine.route("gpu 0", "gpu 8")) == 4 + 2
    assert machine.graph.number_of_edges() / len(machine.gpus) < 12
