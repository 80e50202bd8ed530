"""A cluster's arrays agree with its networkx graph, and a change of some links leaves everything else unchanged."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.links import Link
from clustersim.simulator.hardware.topology import Numbered
from clustersim.simulator.reading.errors import ClusterError
from clustersim.topologies import cluster as named

SLOW, FAST = Accelerator("slow"), Accelerator("fast")
KINDS = st.sampled_from(["gpu", "gpu", "host", "nic", "switch"])
LINKS = st.builds(Link, st.sampled_from("ab"), st.sampled_from([1.0, 2.0, 4.0]), st.sampled_from([0.0, 1e-6]))


@st.composite
def graphs(draw: st.DrawFn) -> nx.DiGraph[str]:
    """Vertices in any order with any names, and any links between them."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    kinds = draw(st.lists(KINDS, min_size=1, max_size=8))
    for number in draw(st.permutations(range(len(kinds)))):
        kind, node = kinds[number], draw(st.none() | st.integers(0, 2) | st.sampled_from(["left", "right"]))
        device = {"accelerator": draw(st.sampled_from([SLOW, FAST]))} if kind in ("gpu", "host") else {}
        graph.add_node(f"{kind}-{number}", kind=kind, **device, **({} if node is None else {"node": node}))
    names = list(graph)
    ends = draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=20))
    for source, target in ends:
        if source != target:
            graph.add_edge(source, target, link=draw(LINKS))
    return graph


def told(graph: nx.DiGraph[str]) -> object:
    return list(graph.nodes(data=True)), list(graph.edges(data=True))


@given(graphs())
def test_a_graph_survives_the_conversion(graph):
    assert told(Cluster(graph).graph) == told(graph)


@given(graphs())
def test_links_are_numbered_as_the_graph_lists_them(graph):
    cluster = Cluster(graph)
    links = [link for _, _, link in graph.edges(data="link")]
    assert list(cluster.ends) == list(graph.edges)
    assert list(cluster.links) == links
    assert cluster.bandwidths.tolist() == [link.bandwidth for link in links]
    assert [cluster.number(*ends) for ends in graph.edges] == list(range(len(links)))
    assert cluster.links.counts == {link: links.count(link) for link in dict.fromkeys(links)}
    assert [*cluster.links.counts] == [*dict.fromkeys(links)]
    assert {n: cluster.latency([n]) for n in range(len(links))} == {n: link.latency for n, link in enumerate(links)}
    assert cluster.ends[1:3] == tuple(graph.edges)[1:3]
    assert cluster.links[:2] == tuple(links[:2])


@given(graphs())
def test_vertices_equal_those_of_the_graph(graph):
    cluster = Cluster(graph)
    gpus = tuple(vertex for vertex, kind in graph.nodes(data="kind") if kind == "gpu")
    hosts = tuple(vertex for vertex, kind in graph.nodes(data="kind") if kind == "host")
    assert (cluster.gpus, cluster.hosts, cluster.devices) == (gpus, hosts, gpus + hosts)
    assert [cluster.accelerator(device) for device in gpus + hosts] == [
        graph.nodes[device]["accelerator"] for device in gpus + hosts
    ]
    assert [cluster.node_of(v) for v in graph] == [v if node is None else node for v, node in graph.nodes(data="node")]
    kinds = [kind for _, kind in graph.nodes(data="kind")]
    assert [*cluster.vertices.counts.items()] == [(kind, kinds.count(kind)) for kind in dict.fromkeys(kinds)]


@given(graphs())
def test_links_of_a_class_are_one_link_between_vertices_of_the_same_kinds(graph):
    cluster = Cluster(graph)
    kinds = [(graph.nodes[a]["kind"], graph.nodes[b]["kind"], link) for a, b, link in graph.edges(data="link")]
    classes = [cluster.link_class(number) for number in range(len(kinds))]
    for one, own in zip(classes, kinds, strict=True):
        assert [one == other for other in classes] == [own == kind for kind in kinds]


@given(graphs(), st.data())
def test_degraded_is_the_same_change_of_the_graph(graph, data):
    joined = [*graph.edges]
    chosen = data.draw(st.lists(st.sampled_from(joined), max_size=4)) if joined else []
    cluster = Cluster(graph).with_accelerators({SLOW: FAST})
    changed = graph.copy()
    for a, b in chosen:
        for ends in ((a, b), (b, a)):
            if changed.has_edge(*ends):
                old = changed.edges[ends]["link"]
                changed.edges[ends]["link"] = replace(old, bandwidth=old.bandwidth * 0.25)
    slower = cluster.degraded([(a, b, 0.25) for a, b in chosen])
    assert told(slower.graph) == told(changed)
    assert told(cluster.graph) == told(graph)
    assert {slower.accelerator(device) for device in slower.devices} <= {FAST}


@given(graphs())
def test_relinked_may_make_links_equal(graph):
    cluster = Cluster(graph).map_links(lambda link: Link("wire", 8.0, link.latency))
    assert list(cluster.links) == [Link("wire", 8.0, link.latency) for _, _, link in graph.edges(data="link")]
    assert len(set(cluster.links.distinct)) == len(cluster.links.distinct)


@given(graphs(), st.data())
def test_a_route_by_search_is_as_short_as_any_past_no_other_gpu(graph, data):
    cluster = Cluster(graph)
    source, target = (data.draw(st.sampled_from([*graph])) for _ in range(2))
    others = [gpu for gpu in cluster.gpus if gpu not in (source, target)]
    ways = [g for g in (nx.restricted_view(graph, others, []), graph) if nx.has_path(g, source, target)]
    if not ways:
        with pytest.raises(ClusterError, match=f"there is no route from {source} to {target}"):
            cluster.route(source, target)
        return
    route = cluster.route(source, target)
    passed = [source, *(cluster.ends[number][1] for number in route)]
    assert len(route) == nx.shortest_path_length(ways[0], source, target)
    assert passed[-1] == target
    assert nx.is_path(ways[0], passed)
    nics = [vertex for vertex in passed[1:] if graph.nodes[vertex]["kind"] == "nic"]
    assert cluster.nic_of(source, target) == (nics[0] if nics else None)


def test_unknown_names_are_reported():
    cluster = named({"preset": "uniform", "gpus": 2, "hosts": 0, "bandwidth": "1 GB/s", "latency": "1 us"})
    with pytest.raises(ClusterError, match='uniform has no vertex "gpu 2"'):
        cluster.route("gpu 0", "gpu 2")
    for ends in (("gpu 0", "gpu 1"), ("gpu 0", "gpu 2"), ("gpu 2", "gpu 0")):
        with pytest.raises(KeyError, match=f"no link from {ends[0]} to {ends[1]}"):
            cluster.number(*ends)
    with pytest.raises(ClusterError, match="no link between gpu 0 and gpu 1; there are: switch 0"):
        cluster.degraded([("gpu 0", "gpu 1", 0.5)])
    with pytest.raises(ClusterError, match="no link between gpu 9 and gpu 1; there are: gpu 0, gpu 1, switch 0"):
        cluster.degraded([("gpu 9", "gpu 1", 0.5)])
    with pytest.raises(ClusterError, match=r"gpu 0 - switch 0: bandwidth must be above 0.*bandwidth=0"):
        cluster.degraded([("switch 0", "gpu 0", 0.0)])


def test_a_link_that_leads_one_way_is_degraded_from_either_end():
    graph = nx.DiGraph()
    graph.add_edge("gpu 0", "gpu 1", link=Link("wire", 1.0, 0.0))
    for ends in (("gpu 0", "gpu 1"), ("gpu 1", "gpu 0")):
        assert Cluster(graph).degraded([(*ends, 0.5)]).links[0].bandwidth == 0.5


def test_generated_names_are_found_again():
    names = Numbered(("gpu", "big switch"), np.array([1, 0, 0, 1]), np.array([0, 3, 1, 1]))
    assert list(names) == ["big switch 0", "gpu 3", "gpu 1", "big switch 1"]
    assert [names.find(name) for name in names] == [0, 1, 2, 3]
    assert names[1:3] == ("gpu 3", "gpu 1")
    for none in ("gpu 0", "gpu 03", "gpu", "gpu x", "leaf 0", "", "gpu " + "9" * 5000):
        assert none not in names


def test_devices_have_the_same_numbers_one_by_one_and_together() -> None:
    cluster = named({"preset": "dgx_a100_80gb", "nodes": 2})
    each = {device: number for number, device in enumerate(cluster.devices)}
    gpus, hosts = cluster.gpus, cluster.hosts
    for devices in ((), gpus, hosts, gpus[3:7], [*gpus[3:7], gpus[0]], [*gpus[-1:], *hosts[:1]], gpus[::-1]):
        assert cluster.numbers(devices).tolist() == [each[device] for device in devices]
    for unknown in (["gpu 16"], ["gpu 15", "gpu 16"], ["node 0"]):
        with pytest.raises(KeyError):
            cluster.numbers(unknown)
