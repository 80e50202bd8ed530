"""Cables that no load can fill are found, and no others."""

import networkx as nx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from clustersim import topologies
from clustersim.simulator.engine.folding.non_binding import non_binding
from clustersim.simulator.reading.errors import ClusterError
from tests.nodes import V100

NODE = {**V100, "accelerators": 2}


def unfilled(cluster):
    """The links that no load can fill, by their ends."""
    return {cluster.ends[number] for number in non_binding(cluster, lambda link: 1.0)}


def cables(cluster):
    return {ends for ends in cluster.ends if all("node" not in cluster.graph.nodes[vertex] for vertex in ends)}


@pytest.mark.parametrize("nodes", [4, 40])
def test_no_load_fills_a_cable_unless_the_fabric_is_oversubscribed(nodes):
    ample = topologies.cluster({"nodes": nodes, "node": NODE, "fabric": {"kind": "fat_tree", "radix": 8}})
    scarce = topologies.cluster(
        {"nodes": nodes, "node": NODE, "fabric": {"kind": "fat_tree", "radix": 8, "oversubscription": [2.0, 2.0]}}
    )
    assert cables(ample)
    assert unfilled(ample) == cables(ample)
    assert not unfilled(scarce)


def test_a_degraded_cable_can_be_filled_and_so_can_the_links_of_nics():
    cluster = topologies.cluster({"nodes": 4, "node": NODE, "fabric": {"kind": "fat_tree"}})
    slow = cluster.degraded([("leaf 0", "spine 0", 0.5)])
    assert cables(slow) - unfilled(slow) == {("leaf 0", "spine 0"), ("spine 0", "leaf 0")}


def test_of_a_bandwidth_the_usable_part_counts():
    """A cable of 0.6 of the bandwidth carries what the others do if 0.6 of theirs is usable, and all of its own."""
    cluster = topologies.cluster({"nodes": 4, "node": NODE, "fabric": {"kind": "fat_tree"}})
    slow = cluster.degraded([("leaf 0", "spine 0", 0.6)])
    degraded = min(slow.links[number].bandwidth for number in slow.cables)
    numbers = non_binding(slow, lambda link: 1.0 if link.bandwidth == degraded else 0.6)
    assert {slow.ends[number] for number in numbers} == cables(slow)


def test_only_cables_of_a_tree_of_switches_are_found():
    torus = topologies.cluster({"nodes": 4, "node": NODE, "fabric": {"kind": "torus", "dims": [2, 2]}})
    assert not unfilled(torus)


def by_definition(cluster, efficiency):
    """The cables up with at least the capacity of all other links into their lower switch; cables down likewise."""
    graph = cluster.graph
    switches = [vertex for vertex, node in graph.nodes(data="node") if node is None]
    far = nx.multi_source_dijkstra_path_length(graph, {v for v, node in graph.nodes(data="node") if node is not None})

    def carries(a, b):
        link = graph.edges[a, b]["link"]
        return link.bandwidth * efficiency(link)

    found = set()
    for v in switches:
        for u in set(graph.successors(v)) & set(switches):
            if far[u] > far[v]:
                others = sum(carries(w, v) for w in graph.predecessors(v) if w != u)
            else:
                others = sum(carries(u, w) for w in graph.successors(u) if w != v)
            if others <= carries(v, u) * (1 + 1e-9):
                found.add((v, u))
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 40), st.sampled_from(["rail", "fat_tree", "switch"]), st.floats(0.5, 2.0), st.data())
def test_arrays_agree_with_the_definition(nodes, kind, ratio, data):
    fabric = {"kind": kind} if kind == "switch" else {"kind": kind, "radix": 8, "oversubscription": [ratio, 1.0]}
    try:
        cluster = topologies.cluster({"nodes": nodes, "node": {**NODE, "nics": 2}, "fabric": fabric})
    except ClusterError:  # more servers than three levels of such switches join
        assume(False)
    chosen = data.draw(st.lists(st.sampled_from(cluster.ends), max_size=3))
    cluster = cluster.degraded([(*ends, 0.5) for ends in chosen])
    for efficiency in (lambda link: 1.0, lambda link: 0.8 if link.kind == "ib_edr" else 0.9):
        numbers = non_binding(cluster, efficiency)
        assert {cluster.ends[number] for number in numbers} == by_definition(cluster, efficiency)
