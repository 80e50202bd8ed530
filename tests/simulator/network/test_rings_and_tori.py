"""Rings over NVLinks and over NICs, against the published wiring of real servers."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim import topologies
from clustersim.scenarios import Scenario
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.rings_and_tori import cycles, group_of, zigzags
from clustersim.simulator.network.step import Group


def edges(ring: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(pairwise((*ring, ring[0])))


def grouped(cluster: Cluster, devices: tuple[str, ...] | None = None) -> Group:
    return group_of(cluster, devices or cluster.gpus, reorders=True)


def test_a_full_mesh_of_four_has_six_rings_that_use_all_links_alike() -> None:
    """Zhores: each of a GPU's three links carries a sixth twice, so a GPU sends at the speed of all its links."""
    rings = grouped(topologies.cluster({"preset": "zhores", "nodes": 1})).rings
    assert len(rings) == len(set(rings)) == 6
    assert set(Counter(edge for ring in rings for edge in edges(ring)).values()) == {2}


def test_dgx1_has_three_rings_each_way_that_use_every_nvlink() -> None:
    """WP-08437-002: six links for each GPU, doubled where the mesh has double links."""
    cluster = topologies.cluster("dgx1")
    rings = grouped(cluster).rings
    assert len(rings) == 6
    used = Counter(edge for ring in rings for edge in edges(ring))
    links = {(i, j): cluster.graph.edges[f"gpu {i}", f"gpu {j}"]["link"].bandwidth / 25e9 for i, j in used}
    assert used == links
    assert sum(used.values()) == 8 * 6


@pytest.mark.parametrize("size", range(3, 9))
def test_rings_of_a_full_mesh_carry_all_of_its_links(size: int) -> None:
    """Walecki 1892: a complete graph of odd size decomposes into Hamiltonian cycles; of even size if links are
    doubled.
    """
    found = cycles(tuple(tuple(float(i != j) for j in range(size)) for i in range(size)))
    used = Counter(edge for ring in found for edge in edges(ring))
    assert set(used.values()) == {1 if size % 2 else 2}
    assert len(used) == size * (size - 1)


def test_a_degraded_link_is_used_less() -> None:
    cluster = topologies.cluster({"preset": "zhores", "nodes": 1}).degraded([("gpu 0", "gpu 1", 0.25)])
    rings = grouped(cluster).rings
    used = Counter(edge for ring in rings for edge in edges(ring))
    assert used[0, 1] < used[0, 2]
    assert max(n / (0.25 if {*edge} == {0, 1} else 1) for edge, n in used.items()) / len(rings) < 1 / 2


def test_servers_of_different_size_use_as_many_nics_as_the_smallest_has() -> None:
    mixed = topologies.cluster(
        {
            "nodes": [1, 2],
            "node": [
                {
                    "accelerator": "v100_16gb",
                    "accelerators": 4,
                    "intra": {"kind": "nvlink2", "shape": "full_mesh"},
                    "nics": 2,
                    "nic": {"kind": "ib_edr"},
                },
                {
                    "accelerator": "v100_16gb",
                    "accelerators": 8,
                    "intra": {"kind": "nvlink2", "shape": "switch"},
                    "nics": 4,
                    "nic": {"kind": "ib_edr"},
                },
            ],
            "fabric": {"kind": "switch"},
        }
    )
    group = grouped(mixed)
    assert [len(node) for node in group.nodes] == [4, 8, 8]
    assert len(group.rings) == 2
    assert all(sorted(ring) == list(range(20)) for ring in group.rings)


def test_through_a_switch_one_ring_suffices() -> None:
    assert grouped(topologies.cluster("dgx_a100_80gb")).rings == (tuple(range(8)),)


@pytest.mark.parametrize(("gpus", "rings"), [((0, 1), 1), ((0, 3), 1), ((0, 1, 2), 2), ((0, 1, 2, 3), 4), ((0, 5), 1)])
def test_some_gpus_of_dgx1(gpus: tuple[int, ...], rings: int) -> None:
    """0-3 have two cycles, each way (nccl-tests measure four times one link there); 0 and 5 have no link."""
    found = grouped(topologies.cluster("dgx1"), tuple(f"gpu {i}" for i in gpus)).rings
    assert all(sorted(ring) == list(range(len(gpus))) for ring in found)
    assert len(found) == rings


@given(st.integers(2, 6), st.data())
def test_packed_rings_never_exceed_a_link(size: int, data: st.DataObject) -> None:
    matrix = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i):
            matrix[i][j] = matrix[j][i] = float(data.draw(st.integers(0, 3)))
    found = cycles(tuple(map(tuple, matrix)))
    used = Counter(edge for ring in found for edge in edges(ring))
    if size > 2 and found:
        speeds = {b / part for row in matrix for b in row if b for part in (1, 2)}
        assert any(all(n * speed <= matrix[i][j] + 1e-9 for (i, j), n in used.items()) for speed in speeds)
    assert all(sorted(ring) == list(range(size)) for ring in found)


@pytest.mark.parametrize(
    ("preset", "nodes", "channels"),
    [
        ("dgx_a100_80gb", 4, 8),
        ("p4d_24xlarge", 4, 4),
        ("dgx1", 4, 4),
        ("dgx1", 3, 4),
        ("zhores", 5, 1),
        ("dgx_h100", 2, 8),
    ],
)
def test_every_ring_leaves_by_another_nic_and_every_nic_carries_one_each_way(
    preset: str, nodes: int, channels: int
) -> None:
    cluster = topologies.cluster({"preset": preset, "nodes": nodes})
    group = grouped(cluster)
    assert len(group.rings) == channels
    crossing = [(a, b) for ring in group.rings for a, b in edges(ring) if server(cluster, a) != server(cluster, b)]
    assert len(crossing) == channels * nodes
    leaving = Counter(nic(cluster, a, b) for a, b in crossing)
    entering = Counter(nic(cluster, b, a) for a, b in crossing)
    assert set(leaving.values()) == set(entering.values()) == {1}
    assert len(leaving) == len(entering) == channels * nodes


@pytest.mark.parametrize(
    ("preset", "nodes"), [("dgx_a100_80gb", 4), ("dgx_a100_80gb", 2), ("p4d_24xlarge", 3), ("dgx1", 2)]
)
def test_every_hop_stays_on_its_rail(preset: str, nodes: int) -> None:
    """If two GPUs share a NIC this holds for any number of servers; else the last hop of an odd number changes
    rails.
    """
    cluster = topologies.cluster({"preset": preset, "nodes": nodes})
    group = grouped(cluster)
    rails = len(group.rings)
    for a, b in [edge for ring in group.rings for edge in edges(ring)]:
        if server(cluster, a) != server(cluster, b):
            assert number(nic(cluster, a, b)) % rails == number(nic(cluster, b, a)) % rails


def test_an_odd_ring_of_servers_closes_across_rails_once() -> None:
    cluster = topologies.cluster({"preset": "dgx_a100_80gb", "nodes": 3})
    for ring in grouped(cluster).rings:
        hops = [edge for edge in edges(ring) if server(cluster, edge[0]) != server(cluster, edge[1])]
        crossed = [h for h in hops if number(nic(cluster, *h)) % 8 != number(nic(cluster, *h[::-1])) % 8]
        assert len(crossed) == 1


@given(st.permutations(range(16)))
def test_rings_visit_server_after_server_however_ranks_are_placed(order: list[int]) -> None:
    cluster = topologies.cluster({"preset": "zhores", "nodes": 4})
    devices = tuple(cluster.gpus[i] for i in order)
    group = group_of(cluster, devices, reorders=True)
    for ring in group.rings:
        assert sum(cluster.node_of(devices[a]) != cluster.node_of(devices[b]) for a, b in edges(ring)) == 4
    assert group_of(cluster, devices, reorders=False).rings == ()


def server(cluster: Cluster, gpu: int) -> int | str:
    return cluster.node_of(cluster.gpus[gpu])


def nic(cluster: Cluster, gpu: int, elsewhere: int) -> str:
    found = cluster.nic_of(cluster.gpus[gpu], cluster.gpus[elsewhere])
    assert found is not None
    return found


def number(vertex: str) -> int:
    return int(vertex.rsplit(maxsplit=1)[-1])


@pytest.mark.parametrize("size", [2, 4, 6, 8, 10])
def test_zigzags_use_every_link_of_a_mesh_once_each_way(size: int) -> None:
    paths = zigzags(size)
    assert all(sorted(path) == list(range(size)) for path in paths)
    assert sorted(path[0] for path in paths) == sorted(path[-1] for path in paths) == list(range(size))
    used = Counter(edge for path in paths for edge in pairwise(path))
    assert used == {(i, j): 1 for i in range(size) for j in range(size) if i != j}


@pytest.mark.parametrize("nodes", [2, 3])
def test_rings_through_all_nics_of_a_narrow_mesh_share_no_link(nodes: int) -> None:
    """MI300X: a link of 64 GB/s between two GPUs carries one NIC of 50 GB/s, not two."""
    rings = grouped(topologies.cluster({"preset": "mi300x_platform", "nodes": nodes})).rings
    inside = Counter(edge for ring in rings for edge in edges(ring) if edge[0] // 8 == edge[1] // 8)
    assert len(rings) == 8
    assert set(inside.values()) == {1}


def test_rings_of_a_wide_mesh_stay_as_they_are() -> None:
    """Perlmutter: 100 GB/s between two GPUs carry two NICs of 25 GB/s, so a ring enters by the NIC next to its own."""
    rings = grouped(topologies.cluster({"preset": "perlmutter", "nodes": 2})).rings
    assert [(ring[0] % 4, ring[3] % 4) for ring in rings] == [((n + 1) % 4, n) for n in range(4)]


def test_two_mi300x_servers_reduce_at_the_rate_that_amd_measured() -> None:
    # ROCm/rccl, pull request 2078: rccl-tests on two servers of eight MI300X with 400 Gb/s a GPU, 8 GiB: 360.0 GB/s
    data = {
        "version": 1,
        "cluster": {"preset": "mi300x_platform", "nodes": 2},
        "collective": {"kind": "all_reduce", "size": "8 GiB"},
    }
    measured = Scenario.model_validate(data).run().summary()["collective"][0]
    assert measured["busbw"] == pytest.approx(360e9, rel=0.06)
