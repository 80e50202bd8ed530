"""Fabrics against theory: bandwidth across cuts, distances, and structural routes as short as any."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import combinations, pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.hardware.links import Link
from clustersim.simulator.reading.errors import ClusterError
from clustersim.topologies.fabrics._clos import down_ports
from clustersim.topologies.fabrics._network import FabricRouter, Network, Ports, Routing
from clustersim.topologies.fabrics.dragonfly import dragonfly
from clustersim.topologies.fabrics.fat_tree import fat_tree
from clustersim.topologies.fabrics.rail import rail
from clustersim.topologies.fabrics.switch import switch
from clustersim.topologies.fabrics.torus import torus

LINK = Link("ib_hdr", 25e9, 1e-6)
few = settings(max_examples=40, deadline=None)


def network(nodes: int, nics: int = 1, radix: int = 40) -> Network:
    number = np.arange(nodes * nics)
    ports = Ports(number, number // nics, number % nics, (LINK,), np.zeros_like(number))
    return Network(ports, LINK, radix, len(ports))


@lru_cache(maxsize=1)
def names(net: Network) -> list[str]:
    """The name of each vertex, after the fabric has added its switches."""
    return [f"nic {port.nic}" for port in net.ports] + [f"{kind} {number}" for kind, number in net.switches]


def drawn(net: Network) -> nx.DiGraph[str]:
    """The switches and links that the fabric has added to *net*, as a graph."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    called = names(net)
    graph.add_nodes_from((name, {"kind": name.rpartition(" ")[0]}) for name in called)
    distinct, source, target, which = net.links
    for a, b, place in zip(source.tolist(), target.tolist(), which.tolist(), strict=True):
        graph.add_edge(called[a], called[b], link=distinct[place])
    return graph


def uplink(net: Network, leaf: str, spine: str) -> float:
    link: Link = drawn(net).edges[leaf, spine]["link"]
    return link.bandwidth


def walk(net: Network, router: FabricRouter, a: int, b: int) -> list[str]:
    source, target = net.ports[a], net.ports[b]
    called = names(net)
    return [called[vertex] for vertex in (source.nic, *router(source, target), target.nic)]


def check_routes(net: Network, router: FabricRouter) -> set[int]:
    """Every route exists, is simple, and is no shorter than a shortest path. Return the surpluses."""
    graph = drawn(net)
    lengths = dict(nx.all_pairs_shortest_path_length(graph))
    surplus = set()
    for a, b in combinations(range(len(net.ports)), 2):
        passed = walk(net, router, a, b)
        assert all(graph.has_edge(*pair) for pair in pairwise(passed))
        assert len(set(passed)) == len(passed)
        assert not any(vertex.startswith("nic") for vertex in passed[1:-1])
        surplus.add(len(passed) - 1 - lengths[passed[0]][passed[-1]])
    return surplus


@few
@given(st.integers(2, 24), st.integers(1, 3), st.sampled_from([6, 8, 40]), st.sampled_from([1.0, 2.0, 3.0]))
def test_clos_routes_are_shortest(nodes: int, nics: int, radix: int, ratio: float) -> None:
    for fabric in (fat_tree, rail):
        net = network(nodes, nics, radix)
        try:
            router = fabric(net, oversubscription=ratio)
        except ClusterError as error:
            assert "radix" in str(error)
            continue
        assert check_routes(net, router) <= {0}


@few
@given(st.integers(2, 24), st.integers(1, 3), st.sampled_from([1.0, 1.5, 4.0]))
def test_a_leaf_has_its_ports_over_oversubscription_upward(nodes: int, nics: int, ratio: float) -> None:
    net = network(nodes, nics)
    fat_tree(net, oversubscription=ratio)
    graph = drawn(net)
    leaves = [vertex for vertex, data in graph.nodes.items() if data["kind"] == "leaf"]
    assert len(leaves) == max(2, -(-nodes // (down_ports(40, ratio) // nics)))
    for leaf in leaves:
        down = sum(d["link"].bandwidth for _, v, d in graph.out_edges(leaf, data=True) if v.startswith("nic"))
        up = sum(d["link"].bandwidth for _, v, d in graph.out_edges(leaf, data=True) if v.startswith("spine"))
        assert up == pytest.approx(down / ratio)


@pytest.mark.parametrize("ratio", [1.0, 2.0, 5.0])
def test_bisection_of_a_fat_tree(ratio: float) -> None:
    net = network(16)  # two leaves of eight
    fat_tree(net, oversubscription=ratio)
    cut, _ = nx.maximum_flow(capacities(net, [f"nic {port.nic}" for port in net.ports[:8]]), "all", "rest")
    assert cut == pytest.approx(8 * 25e9 / ratio)


@pytest.mark.parametrize("ratio", [1.0, 2.0])
def test_bisection_of_three_levels(ratio: float) -> None:
    net = network(16, radix=4)
    fat_tree(net, oversubscription=[1.0, ratio])
    cut, _ = nx.maximum_flow(capacities(net, [f"nic {port.nic}" for port in net.ports[:8]]), "all", "rest")
    assert cut == pytest.approx(8 * 25e9 / ratio)


def capacities(net: Network, half: list[str]) -> nx.DiGraph[str]:
    graph: nx.DiGraph[str] = nx.DiGraph()
    for a, b, data in drawn(net).edges(data=True):
        graph.add_edge(a, b, capacity=data["link"].bandwidth)
    for port in net.ports:
        nic = f"nic {port.nic}"
        graph.add_edge(*(("all", nic) if nic in half else (nic, "rest")))  # without capacity: unlimited
    return graph


def test_four_levels_where_one_core_cannot_reach_all_spines() -> None:
    net = network(32, 1, radix=4)  # 2 (4/2)^4 ports: 16 leaves of two, 8 spines of two, 4 cores of two, and one above
    router = fat_tree(net)
    up, down = ["nic 0", "leaf 0", "spine 0", "core 0"], ["core 3", "spine 7", "leaf 15", "nic 31"]
    assert walk(net, router, 0, 31) == [*up, "core 4", *down]
    assert walk(net, router, 0, 7) == [*up, "spine 1", "leaf 3", "nic 7"]
    assert uplink(net, "core 0", "core 4") == 8 * 25e9
    assert check_routes(net, router) == {0}
    cut, _ = nx.maximum_flow(capacities(net, [f"nic {port.nic}" for port in net.ports[:16]]), "all", "rest")
    assert cut == pytest.approx(16 * 25e9)
    with pytest.raises(ClusterError, match="at most 4 pods of 2 leaves, not 8"):
        fat_tree(Network(net.ports, LINK, 4, 32, Routing("ecmp")))


def test_three_levels_where_a_spine_cannot_reach_all_leaves() -> None:
    net = network(16, 1, radix=4)
    router = fat_tree(net, oversubscription=[1.0, 2.0])
    assert walk(net, router, 0, 15) == ["nic 0", "leaf 0", "spine 0", "core 0", "spine 3", "leaf 7", "nic 15"]
    assert walk(net, router, 0, 2) == ["nic 0", "leaf 0", "spine 0", "leaf 1", "nic 2"]
    assert uplink(net, "leaf 0", "spine 0") == 2 * 25e9
    assert uplink(net, "spine 0", "core 0") == 4 * 25e9 / 2
    assert check_routes(net, router) == {0}


def test_a_fat_tree_reports_a_misfit() -> None:
    with pytest.raises(ClusterError, match="the 8 NICs of a node do not fit the 2 ports"):
        fat_tree(network(4, 8, radix=4))
    with pytest.raises(ClusterError, match="one number, or two"):
        fat_tree(network(4), oversubscription=[1.0, 1.0, 1.0])


def test_equal_rails_of_a_pod_share_a_switch() -> None:
    net = network(40, 8)
    router = rail(net)
    assert walk(net, router, 0, 8 * 19) == ["nic 0", "leaf 0", "nic 152"]  # node 19 of the first pod
    assert walk(net, router, 0, 9) == ["nic 0", "leaf 0", "spine 0", "leaf 1", "nic 9"]  # another rail
    assert walk(net, router, 3, 8 * 20 + 3) == ["nic 3", "leaf 3", "spine 0", "leaf 11", "nic 163"]  # another pod
    assert sum(vertex.startswith("leaf") for vertex in names(net)) == 16


def test_selene_has_three_levels_and_pods_of_twenty() -> None:
    net = network(560, 8)
    router = rail(net)
    kinds = [kind for kind, _ in net.switches]
    assert kinds.count("leaf") == 28 * 8
    assert kinds.count("core") == 1
    assert len(walk(net, router, 0, 4479)) == 7


@few
@given(st.lists(st.integers(1, 6), min_size=1, max_size=3))
def test_torus_distance_is_the_sum_of_the_shorter_ways_round(dims: list[int]) -> None:
    nodes = 1
    for size in dims:
        nodes *= size
    if nodes < 2:
        return
    net = network(nodes)
    router = torus(net, dims)
    assert check_routes(net, router) == {0}
    for a, b in combinations(range(nodes), 2):
        left, expected = (a, b), 0
        for size in reversed(dims):  # the last dimension varies fastest
            one, other = left[0] % size, left[1] % size
            left = left[0] // size, left[1] // size
            expected += min((one - other) % size, (other - one) % size)
        assert len(walk(net, router, a, b)) - 3 == expected


@pytest.mark.parametrize(("dims", "largest"), [([4, 4], 4), ([8, 4], 8), ([4, 4, 4], 4), ([2, 2, 2], 2), ([6, 2], 6)])
def test_bisection_of_a_torus(dims: list[int], largest: int) -> None:
    """2 N / k links each way across the middle of the longest dimension k (Dally and Towles, section 5.2)."""
    nodes = 1
    for size in dims:
        nodes *= size
    net = network(nodes)
    torus(net, dims)
    slowest = dims.index(largest)
    stride = 1
    for size in dims[slowest + 1 :]:
        stride *= size
    half = {f"router {n}" for n in range(nodes) if (n // stride) % largest < largest // 2}
    cut = sum(
        d["link"].bandwidth
        for a, b, d in drawn(net).edges(data=True)
        if a in half and b not in half and b.startswith("router")
    )
    assert cut == pytest.approx(2 * nodes / largest * 25e9)


def test_a_torus_has_as_many_routers_as_nodes() -> None:
    with pytest.raises(ClusterError, match=r"dims \[3, 3\] make 9 routers, but there are 8 nodes"):
        torus(network(8), [3, 3])
    net = network(12, 2)
    torus(net)  # 3 x 4, the NICs of a node at its own router
    assert sum(kind == "router" for kind, _ in net.switches) == 12


@few
@given(st.integers(2, 40), st.sampled_from([None, 2, 4]), st.sampled_from([None, 1, 3]))
def test_dragonfly_routes_pass_three_links_at_most(ports: int, routers: int | None, each: int | None) -> None:
    net = network(ports)
    router = dragonfly(net, routers, each)
    graph = drawn(net)
    # minimal: one global link at most; two global links may be shorter only in hops, never used
    for a, b in combinations(range(ports), 2):
        passed = walk(net, router, a, b)
        assert all(graph.has_edge(*pair) for pair in pairwise(passed))
        assert len(set(passed)) == len(passed)
        assert 3 <= len(passed) <= 6


def test_global_links_of_a_dragonfly() -> None:
    net = network(72)  # the balanced one with 2 ports, 4 routers a group and 9 groups: Kim et al. 2008, figure 5
    dragonfly(net, oversubscription=2.0)
    assert sum(kind == "router" for kind, _ in net.switches) == 36
    graph = drawn(net)
    across = [
        data["link"].bandwidth
        for a, b, data in graph.edges(data=True)
        if a.startswith("router") and b.startswith("router") and int(a.split()[1]) // 4 != int(b.split()[1]) // 4
    ]
    assert len(across) == 9 * 8
    assert across == [pytest.approx(8 * 25e9 / 2 / 8)] * 72
    degree = [sum(v.startswith("router") for v in graph[f"router {r}"]) for r in range(36)]
    assert degree == [3 + 2] * 36


@few
@given(st.integers(1, 40), st.integers(2, 4), st.integers(2, 4))
def test_the_nics_of_a_node_may_hang_on_different_routers(nodes: int, nics: int, ports: int) -> None:
    net = network(nodes, nics)
    router = dragonfly(net, 2 * nics, ports, nics_apart=True)
    at = {port.number: router(port, port)[0] for port in net.ports}
    assert max(Counter(at.values()).values()) <= ports
    for node in net.nodes:
        assert len({at[port.number] for port in node}) == nics
    graph = drawn(net)
    for a, b in combinations(range(len(net.ports)), 2):
        passed = walk(net, router, a, b)
        assert all(graph.has_edge(*pair) for pair in pairwise(passed))
        assert 3 <= len(passed) <= 6


def test_few_groups_are_joined_at_several_routers() -> None:
    net = network(24)
    dragonfly(net, routers=4, ports=2)  # three groups: the links to one of the others are at two of four routers
    joined = [
        edge["link"].bandwidth for *pair, edge in drawn(net).edges(data=True) if not any("nic" in x for x in pair)
    ]
    across = [bandwidth for bandwidth in joined if bandwidth != LINK.bandwidth]
    assert across == [pytest.approx(8 * 25e9 / 2 / 2)] * (3 * 2 * 2)


def test_one_switch_joins_all() -> None:
    net = network(5, 2)
    assert check_routes(net, switch(net)) == {0}
    assert drawn(net).number_of_edges() == 20


def test_a_pair_that_is_joined_twice_is_reported() -> None:
    net = network(2)
    leaf, spine = net.switch("leaf"), net.switch("spine")
    net.join(leaf, spine, 1e9)
    net.join(spine, leaf, 2e9)
    with pytest.raises(ClusterError, match="the fabric joins leaf 0 and spine 0 twice; join them by one link"):
        _ = net.links


def test_cables_above_a_leaf_have_the_kind_of_its_ports() -> None:
    # two nodes with one kind of NIC, two with another: an uplink is of the kind of what it carries
    slow, number = Link("eth_25", 3.125e9, 1e-6), np.arange(4)
    net = Network(Ports(number, number, np.zeros_like(number), (LINK, slow), np.array([0, 0, 1, 1])), LINK, 40, 4)
    fat_tree(net)
    links, source, target, which = net.links
    kinds = {(int(a), int(b)): links[place].kind for a, b, place in zip(source, target, which, strict=True)}
    leaf_of = {port: switch for (port, switch) in kinds if port < 4}
    uplinks = {a: kind for (a, b), kind in kinds.items() if a in leaf_of.values() and b >= 4}
    assert uplinks == {leaf_of[0]: "ib_hdr", leaf_of[3]: "eth_25"}
