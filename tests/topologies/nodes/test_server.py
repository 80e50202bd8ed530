"""The route search inside a server against networkx's."""

from __future__ import annotations

from itertools import pairwise, product

import networkx as nx
import pytest

from clustersim.simulator.hardware.links import Link
from clustersim.simulator.reading.errors import ClusterError
from clustersim.topologies.node_and_fabric import NodeSection
from clustersim.topologies.nodes._server import PCIE, Wiring
from tests.topologies.test_assembly import SERVERS


def drawn(wiring: Wiring) -> nx.DiGraph[str]:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from((vertex, {"kind": kind}) for vertex, kind in wiring.vertices.items())
    graph.add_edges_from((a, b, {"link": link}) for a, links in wiring.links.items() for b, link in links.items())
    return graph


def searched(graph: nx.DiGraph[str], source: str, target: str, barred: set[str]) -> tuple[str, ...] | None:
    """Of the shortest paths that avoid the kinds in *barred* the widest, and of those the last by name."""

    def width(path: tuple[str, ...]) -> float:
        return min((graph.edges[pair]["link"].bandwidth for pair in pairwise(path)), default=0.0)

    passed = [v for v, data in graph.nodes.items() if data["kind"] not in barred or v in (source, target)]
    try:
        paths = [tuple(path) for path in nx.all_shortest_paths(graph.subgraph(passed), source, target)]
    except nx.NetworkXNoPath:
        return None
    return max(sorted(paths), key=width)


@pytest.mark.parametrize("server", SERVERS)
def test_routes_inside_a_server(server: str) -> None:
    wiring = NodeSection.model_validate(SERVERS[server]).wiring()
    graph = drawn(wiring)
    barred = {"nic"} if wiring.through_gpus else {"nic", "gpu"}
    for source, target in product((*wiring.gpus, *wiring.of_kind("host"), *wiring.nics), repeat=2):
        assert wiring.route(source, target) == (
            searched(graph, source, target, {*barred, *PCIE}) or searched(graph, source, target, barred)
        )


@pytest.mark.parametrize("server", SERVERS)
def test_every_device_uses_one_of_its_nearest_nics(server: str) -> None:
    wiring = NodeSection.model_validate(SERVERS[server]).wiring()
    for device in (*wiring.gpus, *wiring.of_kind("host")):
        others = set() if wiring.through_gpus else {gpu for gpu in wiring.gpus if gpu != device}
        hops = nx.single_source_shortest_path_length(nx.restricted_view(drawn(wiring), others, []), device)
        assert hops[wiring.nic_of(device)] == min(hops[nic] for nic in wiring.nics)


def test_only_added_vertices_can_be_joined() -> None:
    wiring = NodeSection.model_validate(SERVERS["pcie"]).wiring()
    with pytest.raises(ClusterError, match="the server has no gpu 9 to join; add it first"):
        wiring.join("gpu 0", "gpu 9", Link("wire", 1.0, 0.0))
    wiring.add("gpu", 9)
    with pytest.raises(ClusterError, match="there is no route inside a node from gpu 0 to gpu 9"):
        wiring.route("gpu 0", "gpu 9")
