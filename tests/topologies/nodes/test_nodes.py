"""Node shapes against the published wiring of real machines."""

from itertools import combinations
from typing import Any

import pytest

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.links import Link
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.topologies import cluster
from clustersim.topologies.nodes._server import Server, spread
from clustersim.topologies.nodes.hybrid_cube_mesh import DOUBLE, SINGLE
from clustersim.topologies.nodes.infinity_fabric import DOUBLE as TWO
from clustersim.topologies.nodes.infinity_fabric import PACKAGE
from clustersim.topologies.nodes.infinity_fabric import SINGLE as ONE
from tests.nodes import V100

# nvidia-smi topo -m of DGX-1 with V100: how many NVLinks join GPU i and j
DGX1 = """
. 1 1 2 2 . . .
1 . 2 1 . 2 . .
1 2 . 2 . . 1 .
2 1 2 . . . . 1
2 . . . . 1 1 2
. 2 . . 1 . 2 1
. . 1 . 1 2 . 2
. . . 1 2 1 2 .
"""


def path(machine: Cluster, source: str, target: str) -> list[str]:
    route = machine.route(source, target)
    return [machine.ends[route[0]][0], *(machine.ends[number][1] for number in route)]


def kinds(machine: Cluster, source: str, target: str) -> list[str]:
    return [machine.links[number].kind for number in machine.route(source, target)]


def test_dgx1_is_wired_as_published() -> None:
    machine = cluster("dgx1")
    for i, line in enumerate(DGX1.split("\n")[1:-1]):
        for j, cell in enumerate(line.split()):
            edge = machine.graph.get_edge_data(f"gpu {i}", f"gpu {j}")
            assert (edge["link"].bandwidth if edge else 0) == (0 if cell == "." else 25e9 * int(cell))


def test_every_v100_of_a_hybrid_cube_mesh_has_six_links() -> None:
    for gpu in range(8):
        assert sum(gpu in pair for pair in SINGLE) + 2 * sum(gpu in pair for pair in DOUBLE) == 6


def test_one_half_of_a_hybrid_cube_mesh_joins_every_pair() -> None:
    machine = cluster("p3_8xlarge")
    widths = {
        (a, b): machine.graph.get_edge_data(f"gpu {a}", f"gpu {b}")["link"].bandwidth
        for a, b in combinations(range(4), 2)
    }
    assert widths == {(0, 1): 25e9, (0, 2): 25e9, (1, 3): 25e9, (0, 3): 50e9, (1, 2): 50e9, (2, 3): 50e9}


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_fewer_gpus_are_the_first_of_a_hybrid_cube_mesh(count: int) -> None:
    whole, part = cluster("dgx1"), cluster({"preset": "dgx1", "node": {"accelerators": count}})
    assert len(part.gpus) == count
    for a, b in combinations(part.gpus, 2):
        assert part.graph.has_edge(a, b) == whole.graph.has_edge(a, b)


def test_gpus_without_a_link_communicate_over_pcie_through_no_other_gpu() -> None:
    machine = cluster("dgx1")
    for a, b in combinations(range(8), 2):
        passed = path(machine, f"gpu {a}", f"gpu {b}")
        if machine.graph.has_edge(f"gpu {a}", f"gpu {b}"):
            assert kinds(machine, f"gpu {a}", f"gpu {b}") == ["nvlink2"]
        else:
            assert not any(vertex.startswith("gpu") for vertex in passed[1:-1])
    assert path(machine, "gpu 0", "gpu 5") == ["gpu 0", "pcie_switch 0", "host 0", "host 1", "pcie_switch 2", "gpu 5"]


def test_a_die_has_no_more_than_eight_infinity_fabric_links() -> None:
    for gpu in range(8):
        used = sum(n * sum(gpu in pair for pair in pairs) for n, pairs in ((4, PACKAGE), (2, TWO), (1, ONE)))
        # one to the host, and on odd dies one more that is the PCIe link to the NIC
        assert used + 1 + gpu % 2 == 8


def test_frontier_reaches_its_nics_through_the_package() -> None:
    machine = cluster({"preset": "frontier", "nodes": 2})
    assert path(machine, "gpu 0", "gpu 9")[:4] == ["gpu 0", "gpu 1", "nic 0", "router 0"]
    assert path(machine, "host 0", "host 1") == ["host 0", "gpu 1", "nic 0", "router 0", "nic 4", "gpu 9", "host 1"]
    bandwidths = {machine.links[machine.route("gpu 0", f"gpu {gpu}")[0]].bandwidth for gpu in (1, 2, 6)}
    assert bandwidths == {200e9, 50e9, 100e9}


@pytest.mark.parametrize(
    ("name", "bandwidth", "hops"), [("dgx_a100_80gb", 300e9, 2), ("dgx_h100", 450e9, 2), ("perlmutter", 100e9, 1)]
)
def test_nvlink_between_any_two_gpus(name: str, bandwidth: float, hops: int) -> None:
    machine = cluster({"preset": name, "nodes": 1})
    for a, b in combinations(machine.gpus, 2):
        route = machine.route(a, b)
        assert len(route) == hops
        assert all(machine.links[number].bandwidth == bandwidth for number in route)
        assert all(machine.links[number].kind.startswith("nvlink") for number in route)


def test_zhores_shares_one_nic_and_half_of_the_gpus_cross_the_sockets() -> None:
    machine = cluster({"preset": "zhores", "nodes": 2})
    assert machine.links[machine.route("gpu 0", "gpu 3")[0]].bandwidth == 50e9
    passed = path(machine, "gpu 1", "gpu 4")
    assert passed[:5] == ["gpu 1", "host 0", "nic 0", "leaf 0", "spine 0"]
    assert passed[5:] == ["leaf 1", "nic 1", "host 2", "gpu 4"]
    assert kinds(machine, "gpu 3", "gpu 7") == ["pcie3", "upi", "pcie3"] + ["ib_edr"] * 4 + ["pcie3", "upi", "pcie3"]
    assert [machine.host_of(f"gpu {gpu}") for gpu in range(4)] == ["host 0", "host 0", "host 1", "host 1"]


def test_dgx_a100_has_a_nic_for_each_gpu_on_its_own_switch() -> None:
    machine = cluster({"preset": "dgx_a100_40gb", "nodes": 2})
    for gpu in range(8):
        passed = path(machine, f"gpu {gpu}", f"gpu {gpu + 8}")
        assert passed[1:3] == [f"pcie_switch {gpu // 2}", f"nic {gpu}"]
        assert len(passed) == 7  # one leaf: equal rails share a switch
        assert kinds(machine, f"gpu {gpu}", f"gpu {gpu + 8}") == ["pcie4"] * 2 + ["ib_hdr"] * 2 + ["pcie4"] * 2


def node(**changes: Any) -> dict[str, Any]:
    return {**V100, **changes}


@pytest.mark.parametrize(
    ("gpus", "intra", "bandwidth"),
    [
        (4, {"kind": "nvlink2", "shape": "full_mesh"}, 50e9),
        (3, {"kind": "nvlink2", "shape": "full_mesh"}, 75e9),
        (8, {"kind": "nvlink2", "shape": "full_mesh"}, 25e9),
        (4, {"kind": "nvlink2", "shape": "ring"}, 75e9),
        (2, {"kind": "nvlink2", "shape": "ring"}, 150e9),
        (4, {"shape": "switch"}, 150e9),
        (4, {"kind": "nvlink2", "shape": "switch", "links": 2}, 50e9),
        (4, {"kind": "nvlink4", "shape": "switch"}, 25e9),
        (4, {"kind": "nvlink2", "shape": "full_mesh", "bandwidth": "48 GB/s"}, 48e9),
        (4, {"kind": "wire", "shape": "full_mesh", "bandwidth": "48 GB/s", "latency": "2 us"}, 48e9),
    ],
)
def test_the_links_of_a_gpu_are_spread_over_its_neighbours(gpus: int, intra: dict[str, Any], bandwidth: float) -> None:
    machine = cluster({"node": node(accelerators=gpus, intra=intra)})
    assert machine.links[machine.route("gpu 0", "gpu 1")[0]].bandwidth == bandwidth


def test_a_pcie_tree_with_two_sockets() -> None:
    machine = cluster({"node": node(intra={"shape": "pcie"}, pcie_switches=2)})
    assert path(machine, "gpu 0", "gpu 1") == ["gpu 0", "pcie_switch 0", "gpu 1"]
    assert path(machine, "gpu 0", "gpu 2") == ["gpu 0", "pcie_switch 0", "host 0", "host 1", "pcie_switch 1", "gpu 2"]
    given = {"kind": "pcie3", "shape": "pcie", "bandwidth": "10 GB/s", "latency": "2 us"}
    slower = cluster({"node": node(intra=given)})
    assert slower.links[slower.route("gpu 0", "host 0")[0]] == Link("pcie3", 10e9, 2e-6)


def test_nics_beyond_one_for_each_gpu_are_bundled_at_their_gpu() -> None:
    machine = cluster({"nodes": 2, "node": node(nics=8)})
    assert sum(vertex.startswith("nic") for vertex in machine.graph) == 8
    assert machine.graph.edges["nic 0", "switch 0"]["link"].bandwidth == 2 * 12.5e9
    assert machine.graph.edges["host 0", "nic 0"]["link"].bandwidth == 2 * 15.75e9
    uneven = Server(Accelerator(), 2, Accelerator(), 1, Link("b", 1.0, 0), nics=3, nic=Link("n", 1.0, 0))
    assert [port.bandwidth for port in uneven.ports] == [2.0, 1.0]


def test_fewer_nics_than_gpus_are_shared_by_neighbours() -> None:
    machine = cluster({"nodes": 2, "node": node(accelerators=8, nics=2, intra={"shape": "switch"})})
    left = [path(machine, f"gpu {gpu}", "gpu 8")[-3] for gpu in range(8)]
    assert left == ["nic 2"] * 8
    used = [next(v for v in path(machine, f"gpu {gpu}", "gpu 8") if v.startswith("nic")) for gpu in range(8)]
    assert used == ["nic 0"] * 4 + ["nic 1"] * 4


def test_two_kinds_of_node_are_numbered_through() -> None:
    big = node(accelerators=8, nics=2, intra={"shape": "switch"})
    machine = cluster({"nodes": [2, 3], "node": [node(), big], "fabric": {"kind": "fat_tree"}})
    assert machine.gpus == tuple(f"gpu {number}" for number in range(2 * 4 + 3 * 8))
    assert [machine.node_of(gpu) for gpu in machine.gpus] == [0] * 4 + [1] * 4 + [2] * 8 + [3] * 8 + [4] * 8
    passed = path(machine, "gpu 7", "gpu 31")
    assert (passed[0], passed[-1]) == ("gpu 7", "gpu 31")
    assert "nic 1" in passed
    assert "nic 7" in passed


def test_shapes_reject_impossible_servers() -> None:
    with pytest.raises(ScenarioError, match="hybrid cube mesh has at most 8 accelerators, not 9"):
        cluster({"node": node(accelerators=9, intra={"kind": "nvlink2", "shape": "hybrid_cube_mesh"})})
    with pytest.raises(ScenarioError, match=r"make 256 chips, but the node has 32; try dims \[4, 8\]"):
        cluster({"preset": "tpu_v5e_pod", "node": {"accelerators": 32}})
    with pytest.raises(ScenarioError, match="8 accelerators"):
        cluster({"node": node(intra={"kind": "infinity_fabric", "shape": "infinity_fabric"})})


def test_spread_is_even_and_in_order() -> None:
    places = spread(["a", "b", "c"], 7)
    assert places == sorted(places)
    assert {places.count(place) for place in "abc"} == {2, 3}
