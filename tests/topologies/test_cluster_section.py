"""The cluster section: defaults, presets, degraded links, a user's own files, and messages for faults."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from clustersim.simulator.hardware.links import Link
from clustersim.simulator.reading.errors import ClusterError, ScenarioError
from clustersim.topologies import cluster
from clustersim.topologies import cluster_section as sections
from clustersim.topologies.cluster_section import ClusterSpecification, specification

NODE = {
    "accelerator": "v100_16gb",
    "accelerators": 4,
    "intra": {"kind": "nvlink2", "shape": "full_mesh", "bandwidth": "50 GB/s", "latency": "2 us"},
    "host": {"kind": "pcie3", "bandwidth": "12 GB/s", "latency": "3 us"},
    "nics": 1,
    "nic": {"kind": "ib_edr", "bandwidth": "100 Gb/s", "latency": "1.5 us"},
}


def test_a_users_cluster_uses_the_given_numbers() -> None:
    machine = cluster({"nodes": 25, "node": NODE, "fabric": {"kind": "fat_tree", "oversubscription": 1.0}})
    assert len(machine.gpus) == 100
    assert machine.graph.edges["gpu 0", "gpu 1"]["link"] == Link("nvlink2", 50e9, 2e-6)
    assert machine.graph.edges["gpu 0", "host 0"]["link"] == Link("pcie3", 12e9, 3e-6)
    assert machine.graph.edges["nic 0", "leaf 0"]["link"] == Link("ib_edr", 12.5e9, 1.5e-6)
    # 25 nodes on two leaves of 18 ports down: 13 and 12; nothing oversubscribed
    assert machine.graph.edges["leaf 0", "spine 0"]["link"].bandwidth == 13 * 12.5e9


def test_latency_of_two_edr_nics_on_one_switch_is_the_data_sheets() -> None:
    machine = cluster({"nodes": 2, "node": {**NODE, "nic": {"kind": "ib_edr"}}})
    out = (
        machine.graph.edges["nic 0", "switch 0"]["link"].latency
        + machine.graph.edges["switch 0", "nic 1"]["link"].latency
    )
    assert out == pytest.approx(0.6e-6 + 90e-9)  # ConnectX end to end, and one switch


def test_a_link_that_the_catalogue_does_not_have_needs_its_numbers() -> None:
    machine = cluster(
        {"nodes": 2, "node": {**NODE, "nic": {"kind": "my.net", "bandwidth": "1 GB/s", "latency": "9 us"}}}
    )
    assert machine.graph.edges["nic 0", "switch 0"]["link"].bandwidth == 1e9
    with pytest.raises(ScenarioError, match="or give it a bandwidth and a latency"):
        cluster({"nodes": 2, "node": {**NODE, "nic": {"kind": "mynet", "bandwidth": "1 GB/s"}}})


def test_keys_beside_a_preset_override_it_deep() -> None:
    machine = cluster(
        {"preset": "dgx_a100_80gb", "nodes": 2, "node": {"nics": 4, "accelerator": {"preset": "a100_40gb", "sms": 100}}}
    )
    assert sum(vertex.startswith("nic") for vertex in machine.graph) == 8
    assert machine.accelerator("gpu 0").name == "a100_40gb"
    assert machine.accelerator("gpu 0").sms == 100
    assert machine.name == "dgx_a100_80gb"


def test_a_fabric_of_another_kind_leaves_the_presets_parameters_behind() -> None:
    machine = cluster({"preset": "frontier", "nodes": 2, "fabric": {"kind": "switch"}})
    assert "switch 0" in machine.graph
    whole = {**specification({"preset": "frontier"}).model_dump(exclude_unset=True), "nodes": 2}
    assert whole["fabric"]["routers"] == 32


def test_processors_have_the_memory_of_the_cluster() -> None:
    machine = cluster({"preset": "zhores", "nodes": 1})
    assert machine.accelerator("host 0").name == "xeon_gold_6140"
    assert machine.accelerator("host 0").memory_bytes == 192 * 2**30


def test_degraded_is_a_factor_on_a_link_both_ways() -> None:
    section = {"preset": "zhores", "nodes": 2, "degraded": [{"link": ["gpu 0", "host 0"], "bandwidth": 0.25}]}
    machine, whole = cluster(section), cluster({"preset": "zhores", "nodes": 2})
    slower = {
        ends for ends, a, b in zip(whole.ends, whole.links, machine.links, strict=True) if a.bandwidth != b.bandwidth
    }
    assert slower == {("gpu 0", "host 0"), ("host 0", "gpu 0")}
    assert machine.graph.edges["host 0", "gpu 0"]["link"].bandwidth == 15.75e9 / 4
    assert machine.route("gpu 0", "gpu 7") == whole.route("gpu 0", "gpu 7")


def test_degraded_without_a_common_link_applies_to_the_route() -> None:
    section = {"preset": "dgx_a100_80gb", "nodes": 3, "degraded": [{"link": ["gpu 17", "nic 17"], "bandwidth": 0.25}]}
    machine = cluster(section)
    assert machine.graph.edges["gpu 17", "pcie_switch 8"]["link"].bandwidth == 31.5e9 / 4
    assert machine.graph.edges["pcie_switch 8", "nic 17"]["link"].bandwidth == 31.5e9 / 4
    assert machine.graph.edges["pcie_switch 8", "nic 16"]["link"].bandwidth == 31.5e9
    with pytest.raises(ClusterError, match="no link between gpu 0 and gpu 9"):
        cluster({"preset": "zhores", "degraded": [{"link": ["gpu 0", "gpu 9"], "bandwidth": 0.5}]})
    with pytest.raises(ClusterError, match='no vertex "nic 99"; near it are: nic 9'):
        cluster({"preset": "zhores", "degraded": [{"link": ["gpu 0", "nic 99"], "bandwidth": 0.5}]})


WAVE = """
from clustersim.simulator.reading.quantities import Count
from clustersim.topologies.fabrics._network import Network, FabricRouter


def wave(network: Network, crests: Count = 2) -> FabricRouter:
    switches = [network.switch("crest") for _ in range(crests)]
    for port in network.ports:
        network.plug([port], switches[0])
    return lambda source, target: [switches[0]]
"""
STAR = """
from clustersim.topologies.nodes._server import Server, Wiring, pcie_tree


def star(server: Server, spokes: int = 1) -> Wiring:
    wiring = pcie_tree(server)
    for gpu in wiring.gpus[1:]:
        wiring.join(wiring.gpus[0], gpu, server.bundle(spokes))
    return wiring
"""


def test_a_file_of_the_users_own_works_by_its_dotted_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mylab_of_clusters"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "wave.py").write_text(WAVE)
    (package / "star.py").write_text(STAR)
    (package / "chip.yaml").write_text("peak_flops: 5 TFLOP/s\n")
    (package / "fast.yaml").write_text("bandwidth: 77 GB/s\nlatency: 1 us\n")
    monkeypatch.syspath_prepend(tmp_path)
    home = "mylab_of_clusters"
    node = {
        **NODE,
        "accelerator": f"{home}.chip",
        "intra": {"kind": f"{home}.fast", "shape": f"{home}.star", "spokes": 2},
    }
    machine = cluster({"nodes": 2, "node": node, "fabric": {"kind": f"{home}.wave", "crests": 3}})
    assert machine.accelerator("gpu 7").peak("fp32") == 5e12
    assert machine.graph.edges["gpu 0", "gpu 3"]["link"].bandwidth == 2 * 77e9
    assert [v for v in machine.graph if v.startswith("crest")] == ["crest 0", "crest 1", "crest 2"]
    assert machine.ends[machine.route("gpu 0", "gpu 4")[3]][0] == "crest 0"
    with pytest.raises(ScenarioError, match=r"crests: must be at least 1, not 0"):
        cluster({"nodes": 2, "node": node, "fabric": {"kind": f"{home}.wave", "crests": 0}})
    with pytest.raises(ScenarioError, match=r"cluster.fabric.crest: unknown key; wave takes crests"):
        cluster({"nodes": 2, "node": node, "fabric": {"kind": f"{home}.wave", "crest": 1}})


UNIFORM = {"preset": "uniform", "gpus": 4, "bandwidth": "25 GB/s", "latency": "1 us"}
TREE = {"preset": "tree", "arity": [2, 3], "bandwidth": "1 GB/s", "latency": "1 us"}

FAULTS = [
    ({}, "cluster.node: is required"),
    ({"preset": "zohres"}, 'cluster.preset: unknown cluster "zohres"; there are: zhores'),
    ({"preset": "zhores", "nodez": 3}, "cluster.nodez: unknown key"),
    ({"preset": "zhores", "nodes": 0}, "cluster.nodes: must be at least 1, not 0"),
    ({"preset": "zhores", "nodes": 2.5}, "cluster.nodes: must be a whole number, not 2.5"),
    ({"preset": "zhores", "nodes": "4"}, 'cluster.nodes: must be a whole number, not "4"'),
    ({"preset": "zhores", "nodes": True}, "cluster.nodes: must be a whole number, not true"),
    ({"preset": "zhores", "nodes": 10_000_000}, "cluster.nodes: a simulation of 40,000,000 devices takes about 200 GB"),
    ({"preset": "zhores", "nodes": []}, "cluster.nodes: must have at least one entry"),
    ({**UNIFORM, "bandwidth": 25}, "cluster.bandwidth: needs a unit"),
    ({**UNIFORM, "bandwidth": "0 GB/s"}, "cluster.bandwidth: must be above 0, not 0 GB/s"),
    ({**UNIFORM, "bandwidth": "2 EB/s"}, "cluster.bandwidth: 2 EB/s is absurd"),
    ({**UNIFORM, "bandwidth": "1 s"}, 'cluster.bandwidth: "s" is not a unit of bandwidth'),
    ({**UNIFORM, "latency": "-1 us"}, "cluster.latency: must be at least 0, not -1 us"),
    ({**UNIFORM, "arity": [2]}, "cluster.arity: belongs to preset tree, but preset is uniform"),
    ({**UNIFORM, "gpus": 10_000_000}, "cluster.gpus: a simulation of 10,000,000 devices takes about 50 GB"),
    ({"preset": "uniform", "gpus": 4, "latency": "1 us"}, "cluster.bandwidth: is required"),
    ({**TREE, "bandwidth": ["1 GB/s"]}, "cluster.bandwidth: has 1 entries for the 2 levels of arity"),
    ({**TREE, "arity": []}, "cluster.arity: must not be empty"),
    ({**TREE, "arity": [2, 0]}, "cluster.arity.1: must be at least 1, not 0"),
    ({"nodes": 2, "node": {**NODE, "nic": {"kind": "ib_eddr"}}}, 'cluster.node.nic.kind: unknown link "ib_eddr"'),
    ({"nodes": 2, "node": {**NODE, "nic": {"kind": "ib_edr", "latncy": "1 us"}}}, 'did you mean "latency"?'),
    ({"nodes": 2, "node": {**NODE, "accelerator": "a100"}}, 'did you mean "a100_40gb"?'),
    ({"nodes": 2, "node": {**NODE, "intra": {"shape": "cube"}}}, 'cluster.node.intra.shape: unknown node shape "cube"'),
    ({"nodes": 2, "node": {**NODE, "accelerators": 10**5}}, "cluster.node.accelerators: 100000 in one node is absurd"),
    ({"nodes": 2, "node": NODE, "fabric": {"kind": "fat_tre"}}, 'did you mean "fat_tree"?'),
    (
        {"nodes": 2, "node": NODE, "fabric": {"kind": "switch", "oversubscription": 2}},
        "cluster.fabric.oversubscription: unknown key; switch takes no parameters",
    ),
    (
        {"nodes": 2, "node": NODE, "fabric": {"kind": "fat_tree", "oversubscription": 0}},
        "cluster.fabric.oversubscription: must be above 0, not 0",
    ),
    ({"nodes": 2, "node": {**NODE, "nic": None, "nics": None}}, "cluster.node: 2 nodes need a nic each"),
    ({"nodes": [2, 3], "node": NODE}, "cluster.nodes: has 2 entries, but node has 1"),
    ({"nodes": [1, 1], "node": [NODE, {**NODE, "nics": 0}]}, "cluster.node.1.nics: must be at least 1, not 0"),
    (
        {"preset": "zhores", "degraded": [{"link": ["gpu 0"], "bandwidth": 1}]},
        "cluster.degraded.0.link: must be two vertices",
    ),
    (
        {"preset": "zhores", "degraded": [{"link": ["gpu 0", "host 0"], "bandwidth": 0}]},
        "cluster.degraded.0.bandwidth: must be above 0, not 0",
    ),
    ({"node": {**NODE, "accelerator": {"memory": "1 GiB"}}}, "cluster.node.accelerator.peak_flops: is required"),
]


@pytest.mark.parametrize(("section", "message"), FAULTS)
def test_faults_are_reported_in_one_sentence(
    section: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "memory_of_this_machine", lambda: 16e9)
    with pytest.raises(ScenarioError) as caught:
        cluster(section)
    assert message in str(caught.value)


def test_parts_that_do_not_fit_together() -> None:
    with pytest.raises(ClusterError, match="they must agree"):
        cluster({"nodes": 2, "node": NODE, "fabric": {"kind": "torus", "dims": [3, 3]}})


def test_the_schema_is_json() -> None:
    schema = TypeAdapter(ClusterSpecification).json_schema()
    text = json.dumps(schema, allow_nan=False)
    assert "a100_80gb" in text
    assert "oversubscription" not in text  # parameters belong to fabrics, and those may be the user's own


def test_clusters_are_bounded_by_the_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters of more than a million GPUs are planned; what the machine cannot hold is refused before it is built."""
    million = {"preset": "dgx_h100", "nodes": 131_072, "fabric": {"radix": 512}}
    monkeypatch.setattr(sections, "memory_of_this_machine", lambda: 16e9)
    assert specification(million).model_dump()["nodes"] == 131_072
    monkeypatch.setattr(sections, "memory_of_this_machine", lambda: 4e9)
    with pytest.raises(ScenarioError, match=r"about 5\.2 GB of memory, and this machine has 4 GB, enough for 800,000"):
        specification(million)
