"""A user's own graph: valid forms, and the messages for invalid ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from clustersim.simulator.reading.errors import ScenarioError
from clustersim.topologies import cluster


def small() -> nx.Graph[str]:
    graph: nx.Graph[str] = nx.Graph()
    for number in range(3):
        graph.add_node(f"gpu {number}", kind="gpu", node=number // 2, accelerator="a100_40gb")
    graph.add_node("box", kind="switch")
    graph.add_node("host 0", kind="host", node=0)
    for vertex in ("gpu 0", "gpu 1", "gpu 2", "host 0"):
        graph.add_edge(vertex, "box", kind="wire", bandwidth="25 GB/s", latency="1 us")
    return graph


def written(tmp_path: Path, data: Any) -> Path:
    path = tmp_path / "mine.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


@pytest.mark.parametrize("edges", ["links", "edges"])
def test_a_graph_of_networkx_is_a_cluster(tmp_path: Path, edges: str) -> None:
    written(tmp_path, nx.node_link_data(small(), edges=edges))
    machine = cluster({"graph": "mine.json"}, tmp_path)
    assert machine.gpus == ("gpu 0", "gpu 1", "gpu 2")
    assert len(machine.links) == 8
    assert machine.latency(machine.route("gpu 0", "gpu 2")) == 2e-6
    assert machine.links[0].bandwidth == 25e9
    assert machine.accelerator("gpu 1").name == "a100_40gb"
    assert machine.node_of("gpu 2") == 1


def test_numbers_are_bytes_per_second_and_seconds_and_links_may_be_apart(tmp_path: Path) -> None:
    data = nx.node_link_data(small(), edges="edges")
    for edge in data["edges"]:
        edge["link"] = {"kind": "wire", "bandwidth": 25e9, "latency": 0}
        del edge["kind"], edge["bandwidth"], edge["latency"]
    written(tmp_path, data)
    machine = cluster({"graph": str(tmp_path / "mine.json")})
    assert machine.latency(machine.route("gpu 0", "gpu 2")) == 0
    assert machine.links[0].kind == "wire"


def change(part: str, index: int, /, **changes: Any) -> Callable[[Any], Any]:
    def changed(data: Any) -> Any:
        data[part][index] = {k: v for k, v in {**data[part][index], **changes}.items() if v is not ...}
        return data

    return changed


def without(index: int) -> Callable[[Any], Any]:
    def changed(data: Any) -> Any:
        del data["edges"][index]
        return data

    return changed


BAD = {
    "kind": (change("nodes", 1, kind=...), r'nodes\[1\] \("gpu 1"\): needs a kind'),
    "id": (change("nodes", 1, id=...), r"nodes\[1\]: needs an id"),
    "twice": (change("nodes", 1, id="gpu 0"), r'nodes\[1\]: the id "gpu 0" appears twice'),
    "accelerator": (change("nodes", 0, accelerator="a1000"), r'nodes\[0\] .*: accelerator: unknown name "a1000"'),
    "no accelerator": (change("nodes", 0, accelerator=...), r"nodes\[0\] .*: has no accelerator"),
    "bandwidth 0": (change("edges", 0, bandwidth=0), r"edges\[0\] .*: bandwidth must be finite and above 0, not 0"),
    "negative": (change("edges", 0, latency=-1e-6), r"edges\[0\] .*: latency must be finite and at least 0"),
    "nan": (change("edges", 0, bandwidth=float("nan")), r"edges\[0\] .*: bandwidth must be finite"),
    "absurd": (change("edges", 0, bandwidth=1e30), r"edges\[0\] .*: bandwidth: 1e\+30 is absurd"),
    "no unit": (change("edges", 0, bandwidth="25"), r"edges\[0\] .*: bandwidth: needs a unit"),
    "true": (change("edges", 0, latency=True), r"edges\[0\] .*: latency: must be a quantity, not true"),
    "missing": (change("edges", 2, latency=...), r"edges\[2\] \(gpu 2 - box\): needs a latency"),
    "end": (change("edges", 0, target="bix"), r'edges\[0\] .*: there is no vertex "bix"; near it are: box'),
    "self": (change("edges", 0, target="gpu 0"), r"edges\[0\] .*: a link must join two vertices"),
    "double": (change("edges", 1, source="gpu 0"), r"edges\[1\] .*: appears twice"),
    "unreachable": (without(2), "gpu 2 cannot be reached from gpu 0"),
    "multigraph": (lambda data: {**data, "multigraph": True}, "is a multigraph"),
    "no edges": (lambda data: {"nodes": data["nodes"]}, "needs a list of links"),
    "no GPU": (lambda data: {"nodes": [{"id": "a", "kind": "host"}], "edges": []}, "has no GPU"),
    "a list": (lambda data: [], "must be an object"),
    "no JSON": (lambda data: "{nodes", r"mine\.json:1:2: is not valid JSON"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_fault_is_reported_with_its_place(tmp_path: Path, case: str) -> None:
    break_it, message = BAD[case]
    path = written(tmp_path, break_it(nx.node_link_data(small(), edges="edges")))
    with pytest.raises(ScenarioError, match=message) as caught:
        cluster({"graph": "mine.json"}, tmp_path)
    assert str(path) in str(caught.value)


def test_one_way_is_not_enough(tmp_path: Path) -> None:
    graph = small().to_directed()
    graph.remove_edge("box", "gpu 2")
    written(tmp_path, nx.node_link_data(graph, edges="edges"))
    with pytest.raises(ScenarioError, match="gpu 2 cannot be reached from gpu 0"):
        cluster({"graph": "mine.json"}, tmp_path)
    graph = small().to_directed()
    graph.remove_edge("gpu 2", "box")
    written(tmp_path, nx.node_link_data(graph, edges="edges"))
    with pytest.raises(ScenarioError, match="gpu 0 cannot be reached from gpu 2"):
        cluster({"graph": "mine.json"}, tmp_path)


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read: No such file"):
        cluster({"graph": "none.json"}, tmp_path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match="is not a text file"):
        cluster({"graph": "binary.json"}, tmp_path)
