"""An assembled cluster against a graph built vertex by vertex, and its regularity against its routes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.links import Link
from clustersim.simulator.hardware.regularity import Regularity
from clustersim.simulator.hardware.topology import NONE
from clustersim.simulator.reading import lookup
from clustersim.simulator.reading.errors import ClusterError
from clustersim.topologies import cluster
from clustersim.topologies.assembly import assemble
from clustersim.topologies.fabrics._network import FabricRouter, Network, Port
from clustersim.topologies.node_and_fabric import FABRICS, NodeSection
from clustersim.topologies.nodes._server import Wiring
from tests.nodes import V100

SERVERS: dict[str, dict[str, Any]] = {
    "full_mesh": V100,
    "small": {**V100, "accelerators": 2},
    "switch": {**V100, "accelerators": 8, "nics": 4, "intra": {"kind": "nvlink2", "shape": "switch"}},
    "ring": {**V100, "accelerators": 6, "nics": 2, "intra": {"kind": "nvlink2", "shape": "ring"}},
    "pcie": {**V100, "nics": 2, "intra": {"shape": "pcie"}, "pcie_switches": 2},
    "hybrid_cube_mesh": {
        **V100,
        "accelerators": 8,
        "nics": 3,
        "intra": {"kind": "nvlink2", "shape": "hybrid_cube_mesh"},
        "pcie_switches": 4,
    },
    "infinity_fabric": {
        **V100,
        "accelerators": 8,
        "nics": 4,
        "intra": {"kind": "infinity_fabric", "shape": "infinity_fabric"},
    },
}
JOINED: list[dict[str, Any]] = [
    {"kind": "switch"},
    {"kind": "fat_tree"},
    {"kind": "fat_tree", "radix": 8, "oversubscription": [2.0, 1.0]},
    {"kind": "rail", "radix": 16, "nodes_per_pod": 2},
    {"kind": "torus"},
    {"kind": "dragonfly", "routers": 4, "ports": 2},
    {"kind": "dragonfly", "routers": 8, "ports": 4, "nics_apart": True},
]
WIRINGS = {name: NodeSection.model_validate(server).wiring() for name, server in SERVERS.items()}
some = settings(max_examples=60, deadline=None)


class Drawn(Network):
    """A network that also adds everything that a fabric adds, link by link, to *graph*."""

    graph: nx.DiGraph[str]
    names: list[str]

    def switch(self, kind: str = "switch") -> int:
        vertex = super().switch(kind)
        self.names.append(f"{kind} {sum(own == kind for own, _ in self.switches) - 1}")
        self.graph.add_node(self.names[vertex], kind=kind)
        return vertex

    def plug(self, ports: Any, switch: Any) -> None:
        for one, own in zip(ports, np.broadcast_to(switch, len(ports)).tolist(), strict=True):
            port = one if isinstance(one, Port) else self.ports[int(one)]
            self._draw(port.nic, own, port.link)

    def join_all(self, pairs: Iterable[tuple[int, int, float]]) -> None:
        for a, b, bandwidth in pairs:
            self._draw(a, b, replace(self.cable, bandwidth=bandwidth))

    def _draw(self, a: int, b: int, link: Link) -> None:
        self.graph.add_edge(self.names[a], self.names[b], link=link)
        self.graph.add_edge(self.names[b], self.names[a], link=link)


def drawn(wirings: list[tuple[Wiring, int]], fabric: Any, network: Network | None) -> nx.DiGraph[str]:
    """The cluster built vertex by vertex and link by link. Only the ports of *network* are used."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    before: Counter[str] = Counter()
    for node, wiring in enumerate(wiring for wiring, count in wirings for _ in range(count)):
        called = {}
        for name, kind in wiring.vertices.items():
            called[name] = f"{kind} {before[kind] + int(name.split()[1])}"
            device = wiring.accelerator(name)
            graph.add_node(called[name], kind=kind, **({"accelerator": device} if device else {}), node=node)
        for a, links in wiring.links.items():
            for b, link in links.items():
                graph.add_edge(called[a], called[b], link=link)
        before.update(wiring.vertices.values())
    if network:
        again = Drawn(network.ports, network.cable, network.radix, network.begin)
        again.graph, again.names = graph, list(graph)
        fabric(again)
    return graph


@st.composite
def machines(draw: st.DrawFn) -> tuple[Cluster, nx.DiGraph[str]]:
    """Servers of one to three kinds in a fabric, some links degraded, and the same cluster as a graph."""
    kinds = draw(st.lists(st.sampled_from(sorted(SERVERS)), min_size=1, max_size=3))
    wirings = [(WIRINGS[kind], draw(st.integers(1, 4))) for kind in kinds]
    joined = draw(st.sampled_from(JOINED))
    parameters = {key: value for key, value in joined.items() if key != "kind"}
    fabric = partial(lookup.function(FABRICS, joined["kind"]), **parameters)
    seen: list[Network] = []

    def kept(network: Network) -> FabricRouter:
        seen.append(network)
        return fabric(network)

    machine = assemble(wirings, kept, radix=36)
    graph = drawn(wirings, fabric, seen[0] if seen else None)
    for a, b in draw(st.lists(st.sampled_from(list(graph.edges)), max_size=3, unique_by=frozenset)):
        machine = machine.degraded([(a, b, 0.25)])
        for ends in ((a, b), (b, a)):
            link = graph.edges[ends]["link"]
            graph.edges[ends]["link"] = replace(link, bandwidth=link.bandwidth * 0.25)
    return machine, graph


@some
@given(machines())
def test_assembled_arrays_equal_the_graph_built_vertex_by_vertex(made: tuple[Cluster, nx.DiGraph[str]]) -> None:
    machine, graph = made
    other = Cluster(graph)
    assert list(machine.graph.nodes(data=True)) == list(graph.nodes(data=True))
    assert list(machine.ends) == list(other.ends) == list(graph.edges)
    assert list(machine.links) == list(other.links)
    assert machine.bandwidths.tolist() == other.bandwidths.tolist()
    assert machine.devices == other.devices
    for device in machine.devices:
        assert machine.node_of(device) == other.node_of(device)
        assert machine.accelerator(device) == other.accelerator(device)


def test_a_port_may_have_links_to_two_switches() -> None:
    def fabric(network: Network) -> FabricRouter:
        planes = [network.switch("plane") for _ in range(2)]
        for plane in planes:
            network.plug(np.arange(len(network.ports)), plane)
        return lambda source, target: planes[:1]

    seen: list[Network] = []

    def kept(network: Network) -> FabricRouter:
        seen.append(network)
        return fabric(network)

    wirings = [(WIRINGS["small"], 2), (WIRINGS["switch"], 1)]
    machine, graph = assemble(wirings, kept), drawn(wirings, fabric, seen[0])
    assert list(machine.ends) == list(graph.edges)
    assert list(machine.links) == [data["link"] for _, _, data in graph.edges(data=True)]
    assert machine.regularity is None


@some
@given(machines(), st.data())
def test_routes_exist_in_the_graph(made: tuple[Cluster, nx.DiGraph[str]], data: st.DataObject) -> None:
    machine, graph = made
    source, target = (data.draw(st.sampled_from(machine.devices)) for _ in range(2))
    ends = [machine.ends[number] for number in machine.route(source, target)]
    passed = [source, *(end for _, end in ends)]
    assert ends == list(pairwise(passed))
    assert passed[-1] == target
    assert nx.is_path(graph, passed)
    nics = [vertex for vertex in passed if graph.nodes[vertex]["kind"] == "nic"]
    if machine.node_of(source) == machine.node_of(target):
        assert not nics
    else:
        assert nics == [machine.nic_of(source, target), machine.nic_of(target, source)]


def through(found: Regularity, pairs: list[tuple[int, int]]) -> list[list[int]]:
    """The links from one device to another of each of *pairs* in different servers, according to *found*."""
    a, b = np.array(pairs, np.int64).reshape(-1, 2).T
    return [[link for link in row if link != NONE] for row in found.routes(a, b).tolist()]


@some
@given(machines(), st.data())
def test_regularity_determines_the_routes(made: tuple[Cluster, nx.DiGraph[str]], data: st.DataObject) -> None:
    machine, _ = made
    found = machine.regularity
    if found is None:
        assert not machine.hierarchical
        return
    number = st.integers(0, len(machine.devices) - 1)
    pairs = data.draw(st.lists(st.tuples(number, number), min_size=1, max_size=9))
    assert [found.server[a] == machine.node_of(machine.devices[a]) for a, _ in pairs] == [True] * len(pairs)
    apart = [(a, b) for a, b in pairs if found.server[a] != found.server[b]]
    assert through(found, apart) == [list(machine.route(machine.devices[a], machine.devices[b])) for a, b in apart]


@some
@given(machines())
def test_devices_of_equal_uplink_have_the_same_links(made: tuple[Cluster, nx.DiGraph[str]]) -> None:
    machine, _ = made
    found = machine.regularity
    if found is None:
        return
    inside = np.count_nonzero(machine.vertices.node != NONE)
    bounds = [*found.base.tolist(), machine.topology.first(int(inside))]
    servers = [machine.links[begin:end] for begin, end in pairwise(bounds)]
    devices = np.arange(len(machine.devices))
    starts = [links.tolist() for links in found.starts(devices)]
    uplinks = [[link_of(machine, links[device]) for links in starts] for device in devices.tolist()]
    for numbers, alike in ((found.template.tolist(), servers), (found.uplink_of(devices).tolist(), uplinks)):
        first = {number: place for place, number in reversed([*enumerate(numbers)])}
        assert all(alike[first[number]] == own for number, own in zip(numbers, alike, strict=True))


def link_of(machine: Cluster, number: int) -> Link | None:
    return None if number == NONE else machine.links[number]


def test_a_server_with_a_slow_link_is_of_another_template() -> None:
    whole = cluster({"nodes": 4, "node": SERVERS["full_mesh"], "fabric": {"kind": "rail"}})
    slow = whole.degraded([("gpu 4", "gpu 5", 0.5)])
    also = slow.degraded([("gpu 12", "gpu 13", 0.5)])
    found = [machine.regularity for machine in (whole, slow, also)]
    assert [one.template.tolist() for one in found if one] == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 1]]
    above = slow.degraded([("nic 2", "leaf 0", 0.5)]).regularity
    assert above is not None
    assert above.template[0] == above.template[3]
    assert len(set(above.template.tolist())) == 3
    uplinks = above.uplink_of(np.arange(16)).reshape(4, 4).tolist()
    assert uplinks[0] == uplinks[1] == uplinks[3]
    assert not set(uplinks[0]) & set(uplinks[2])


def test_servers_without_a_fabric_have_no_route_to_each_other() -> None:
    apart = assemble([(WIRINGS["ring"], 2)], None)
    assert len(apart.route("gpu 0", "gpu 5")) == 1
    with pytest.raises(ClusterError, match="no route from gpu 0 to gpu 6: they are in different nodes"):
        apart.route("gpu 0", "gpu 6")
    with pytest.raises(ClusterError, match="switch 0 is not a vertex of a node of this cluster"):
        cluster({"nodes": 2, "node": V100}).route("gpu 0", "switch 0")


@pytest.mark.exhaustive
def test_a_run_builds_no_graph() -> None:
    code = """
import sys
from clustersim.scenarios import Scenario
scenario = Scenario.load("gpt3_175b_1024a100", {"cluster.nodes": 32, "training.global_batch_size": 32})
scenario.run().summary()
print("networkx" in sys.modules, "graph" in vars(scenario.cluster()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
