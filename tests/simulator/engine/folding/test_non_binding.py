"""Cables that no load can fill, and those that one can."""

import pytest

import topologies
from simulator.engine.folding.non_binding import non_binding
from tests.nodes import V100

NODE = {**V100, "accelerators": 2}


def free(cluster):
    """The links, by their ends, that can be filled by no load."""
    return {cluster.ends[number] for number in non_binding(cluster, lambda link: 1.0)}


def cables(cluster):
    return {ends for ends in cluster.ends if all("node" not in cluster.graph.nodes[vertex] for vertex in ends)}


@pytest.mark.parametrize("nodes", [4, 40])
def test_without_oversubscription_every_cable_is_free_and_with_it_none(nodes):
    ample = topologies.cluster({"nodes": nodes, "node": NODE, "fabric": {"kind": "fat_tree", "radix": 8}})
    scarce = topologies.cluster(
        {"nodes": nodes, "node": NODE, "fabric": {"kind": "fat_tree", "radix": 8, "oversubscription": [2.0, 2.0]}}
    )
    assert cables(ample)
    assert free(ample) == cables(ample)
    assert not free(scarce)


def test_a_degraded_cable_can_be_filled_and_so_can_the_links_of_nics():
    cluster = topologies.cluster({"nodes": 4, "node": NODE, "fabric": {"kind": "fat_tree"}})
    slow = cluster.degraded([("leaf 0", "spine 0", 0.5)])
    assert cables(slow) - free(slow) == {("leaf 0", "spine 0"), ("spine 0", "leaf 0")}


def test_only_a_tree_of_switches_is_judged():
    torus = topologies.cluster({"nodes": 4, "node": NODE, "fabric": {"kind": "torus", "dims": [2, 2]}})
    assert not free(torus)
