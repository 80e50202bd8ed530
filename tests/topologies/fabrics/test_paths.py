"""Choice among equal-cost paths: D-mod-K is free of contention, hashes are spread evenly, paths are whole."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.hardware.links import Link
from clustersim.simulator.reading.errors import ClusterError
from clustersim.topologies.cluster_section import specification
from clustersim.topologies.fabrics._network import Network, Ports, Routing
from clustersim.topologies.fabrics.dragonfly import dragonfly
from clustersim.topologies.fabrics.fat_tree import fat_tree
from clustersim.topologies.fabrics.rail import rail
from clustersim.topologies.fabrics.torus import torus

LINK = Link("ib_hdr", 25e9, 1e-6)
few = settings(max_examples=30, deadline=None)


def network(nodes, nics=1, radix=8, policy="ecmp", **options):
    number = np.arange(nodes * nics)
    ports = Ports(number, number // nics, number % nics, (LINK,), np.zeros_like(number))
    return Network(ports, LINK, radix, len(ports), Routing(policy, **options))


def joined(net):
    """The bandwidth of each link between two vertices."""
    distinct, source, target, which = net.links
    return {
        (a, b): distinct[place].bandwidth
        for a, b, place in zip(source.tolist(), target.tolist(), which.tolist(), strict=True)
    }


def passed(net, router, a, b, connection=0):
    """The vertices of each path from port *a* to port *b*."""
    source, target = net.ports[a], net.ports[b]
    return [[source.nic, *path, target.nic] for path in router.paths(source, target, connection)]


@pytest.mark.parametrize("nodes", [8, 16, 32], ids=["two leaves", "four leaves", "three levels"])
def test_static_routes_give_every_shift_of_a_full_tree_cables_of_its_own(nodes):
    net = network(nodes, policy="static")
    router = fat_tree(net)
    for shift in range(1, nodes):
        load = Counter(
            pair
            for a in range(nodes)
            for path in passed(net, router, a, (a + shift) % nodes)
            for pair in pairwise(path)
        )
        assert set(load.values()) == {1}, shift


@few
@given(
    st.integers(2, 40),
    st.sampled_from([1, 2]),
    st.sampled_from([fat_tree, rail, dragonfly]),
    st.sampled_from(["ecmp", "static"]),
    st.data(),
)
def test_paths_follow_links_and_end_where_they_should(nodes, nics, fabric, policy, data):
    net = network(nodes, nics, radix=16, policy=policy, queue_pairs=3)
    router, links = fabric(net), None
    links = joined(net)
    ports = st.integers(0, nodes * nics - 1)
    a, b = data.draw(ports), data.draw(ports)
    paths = passed(net, router, a, b)
    assert len(paths) in (1, 3)
    lengths = set(map(len, paths))
    assert fabric is dragonfly or len(lengths) == 1
    for path in paths:
        assert (path[0], path[-1]) == (a, b)
        assert all(pair in links for pair in pairwise(path))


@few
@given(st.integers(2, 60), st.sampled_from([1.0, 2.0, 4.0]), st.sampled_from([8, 16]))
def test_single_cables_have_the_bandwidth_of_the_bundle(nodes, ratio, radix):
    try:
        bundled = network(nodes, radix=radix, policy="auto")
        fat_tree(bundled, ratio)
    except ClusterError:
        return
    single = network(nodes, radix=radix, policy="ecmp")
    fat_tree(single, ratio)

    def up_and_down(net):
        kinds = {net.begin + number: kind for number, (kind, _) in enumerate(net.switches)}
        found = Counter()
        for (a, b), bandwidth in joined(net).items():
            found[kinds.get(a, "nic"), kinds.get(b, "nic")] += bandwidth
        return dict(found)

    assert up_and_down(single) == pytest.approx(up_and_down(bundled))


def test_a_hash_depends_on_seed_ends_and_connection_and_on_nothing_else():
    first = list(Routing("ecmp", 7, 4).hashes(1, 2, 3))
    assert first == list(Routing("ecmp", 7, 4).hashes(1, 2, 3))
    assert len(set(first)) == 4
    others = [(8, 1, 2, 3), (7, 2, 1, 3), (7, 1, 2, 4)]
    for seed, source, target, connection in others:
        assert not set(first) & set(Routing("ecmp", seed, 4).hashes(source, target, connection))


def test_hashes_load_all_planes_like_balls_thrown_into_bins():
    net = network(64, radix=32)
    router = fat_tree(net)
    spines = Counter(passed(net, router, a, b)[0][2] for a in range(16) for b in range(32, 64))
    mean = 16 * 32 / len(spines)
    assert len(spines) == 16
    # chi square with 15 degrees of freedom is above 37.7 once in a thousand
    assert sum((count - mean) ** 2 / mean for count in spines.values()) < 37.7


def test_packets_of_a_dragonfly_are_spread_over_all_global_links_if_adaptive():
    net = network(72, policy="adaptive")
    router = dragonfly(net, routers=4, ports=6)
    groups = len(router.groups)
    assert groups == 3
    first, last = net.ports[0], net.ports[71]
    assert len(router.paths(first, last, 0)) == 2
    assert router.paths(first, net.ports[7], 0) == [router(first, net.ports[7])]


def test_a_torus_has_one_path():
    with pytest.raises(ClusterError, match="has one path between two NICs"):
        specification({"preset": "dgx1", "nodes": 4, "fabric": {"kind": "torus"}}).build(routing=Routing("ecmp"))
    with pytest.raises(ClusterError, match="has one path between two"):
        specification({"preset": "uniform", "gpus": 2, "bandwidth": "1 GB/s", "latency": "0 s"}).build(
            routing=Routing("adaptive")
        )
    assert not hasattr(torus(network(4, policy="static")), "paths")


def test_too_many_cables_are_told():
    with pytest.raises(ClusterError, match="cannot have 250 cables up"):
        specification({"preset": "dgx1", "nodes": 4, "fabric": {"kind": "fat_tree", "bandwidth": "400 MB/s"}}).build(
            routing=Routing("ecmp")
        )
