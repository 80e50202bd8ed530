"""A user adds each kind of thing by one file in a package of their own, named by its import path."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.results.result import Result
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.lookup import function
from clustersim.simulator.schedule.pipeline_order import Order
from tests.packages import clustersim, package

FILES = {
    "fabrics/twin.py": '''
        """Two switches joined by one trunk; nodes are plugged into them in turn."""
        from clustersim import Bandwidth, FabricRouter, Network, Port

        def twin(network: Network, trunk: Bandwidth) -> FabricRouter:
            switches = network.switch(), network.switch()
            network.join(*switches, trunk)
            for ports in network.nodes:
                network.plug(ports, switches[ports[0].node % 2])

            def way(source: Port, target: Port) -> list[int]:
                ends = switches[source.node % 2], switches[target.node % 2]
                return [ends[0]] if ends[0] == ends[1] else [*ends]

            return way
        ''',
    "nodes/daisy.py": '''
        """GPUs in a row, each joined to the next with all of its links."""
        from itertools import pairwise
        from clustersim import Server, Wiring, pcie_tree

        def daisy(server: Server) -> Wiring:
            wiring = pcie_tree(server)
            for pair in pairwise(wiring.gpus):
                wiring.join(*pair, server.joint())
            return wiring
        ''',
    "algorithms/centre.py": '''
        """Everything to position 0, which adds it up and sends the sum back."""
        from clustersim import Group, Step

        def all_reduce(group: Group, nbytes: float) -> list[Step]:
            others = range(1, group.size)
            return [
                Step(tuple((i, 0) for i in others), nbytes, coupled=False, reduces=True),
                Step(tuple((0, i) for i in others), nbytes, coupled=False),
            ]
        ''',
    "algorithms/wrong.py": '''
        """Reduces nothing: each position sends to the next, which keeps its own."""
        from clustersim import Group, Step

        def all_reduce(group: Group, nbytes: float) -> list[Step]:
            return [Step(tuple((i, (i + 1) % group.size) for i in range(group.size)), nbytes)]
        ''',
    "algorithms/vague.py": '''
        """A ring that does not say what it sends."""
        from clustersim import Group, Step

        def all_reduce(group: Group, nbytes: float) -> list[Step]:
            pairs = tuple((i, (i + 1) % group.size) for i in range(group.size))
            return [Step(pairs, nbytes / group.size, 2 * (group.size - 1), reduces=True)]
        ''',
    "algorithms/doubling.py": '''
        """Recursive doubling: whole vectors over distances that double."""
        from clustersim import Group, Step

        def ranks_allowed(ranks: int) -> bool:
            """Powers of two."""
            return ranks & (ranks - 1) == 0

        def all_reduce(group: Group, nbytes: float) -> list[Step]:
            distances = [1 << k for k in range(group.size.bit_length() - 1)]
            return [Step(tuple((i, i ^ d) for i in range(group.size)), nbytes, reduces=True) for d in distances]
        ''',
    "fabrics/lost.py": '''
        """Two switches without a trunk, and a route that takes it."""
        from clustersim import FabricRouter, Network, Port

        def lost(network: Network) -> FabricRouter:
            switches = network.switch(), network.switch()
            for ports in network.nodes:
                network.plug(ports, switches[ports[0].node % 2])
            return lambda source, target: [switches[source.node % 2], switches[target.node % 2]]
        ''',
    "transports/postal.py": '''
        """A library that takes a millisecond over every message."""
        from clustersim import NET, NVLINK, PCI, Transport

        def postal() -> Transport:
            hops = {(hop, "ring", "simple"): 1e-3 for hop in (NVLINK, PCI, NET)}
            return Transport("postal", algorithms={"all_reduce": ("ring",)}, hop_latency=hops)
        ''',
    "orders/patient.py": '''
        """All forwards, then all backwards, first micro-batch first."""
        from clustersim import Action, Order

        def patient(stages: int, micro_batches: int) -> Order:
            return Order(tuple(
                tuple(Action(phase, s, m) for phase in "FB" for m in range(micro_batches)) for s in range(stages)
            ))
        ''',
    "models/tiny.yaml": """
        kind: transformer
        name: tiny
        num_layers: 2
        hidden_size: 64
        num_attention_heads: 4
        seq_length: 32
        vocab_size: 1000
        """,
    "gpus/chip.yaml": """
        peak_flops: {fp32: 1 TFLOP/s}
        memory: 1 GiB
        memory_bandwidth: 100 GB/s
        links: {kind: nvlink2, count: 2}
        bus: pcie3
        """,
    "links/copper.yaml": """
        bandwidth: 2 GB/s
        latency: 1 us
        switch_latency: 2 us
        radix: 8
        """,
    "clusters/closet.yaml": """
        nodes: 2
        node:
          accelerator: LAB.gpus.chip
          accelerators: 2
          intra: {shape: LAB.nodes.daisy}
          nic: {kind: LAB.links.copper}
        fabric: {kind: LAB.fabrics.twin, trunk: 500 MB/s}
        """,
    "scenarios/evening.yaml": """
        version: 1
        cluster: {preset: LAB.clusters.closet}
        model: {preset: LAB.models.tiny}
        training: {global_batch_size: 8}
        network: {transport: ideal, algorithms: {all_reduce: LAB.algorithms.centre}}
        """,
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of a user, with one file for each kind of thing that can be added."""
    return package(FILES, tmp_path, monkeypatch)


def measured(cluster: Mapping[str, Any], network: Mapping[str, Any], size: str = "1 GB") -> dict[str, Any]:
    """The row of an all-reduce of *size* over all GPUs of *cluster*."""
    collective = {"kind": "all_reduce", "size": size}
    data = {"version": 1, "cluster": cluster, "collective": collective, "network": network}
    row: dict[str, Any] = Scenario.model_validate(data).run().summary()["collective"][0]
    return row


def node(**keys: Any) -> dict[str, Any]:
    return {"accelerator": "v100_16gb", "accelerators": 1, "nic": {"kind": "ib_edr"}, **keys}


PORTS = {"preset": "uniform", "gpus": 5, "bandwidth": "10 GB/s", "latency": "5 us"}


def test_a_fabric(lab: str) -> None:
    """A ring of two nodes sends d over the trunk in each direction, at the bandwidth of the trunk."""
    fabric = {"kind": f"{lab}.fabrics.twin", "trunk": "1 GB/s"}
    row = measured({"nodes": 2, "node": node(), "fabric": fabric}, {"transport": "ideal"})
    assert row["time_s"] == pytest.approx(1.0, rel=1e-4)


def test_a_parameter_of_a_fabric_must_fit_its_annotation(lab: str) -> None:
    fabric = {"kind": f"{lab}.fabrics.twin", "trunk": 25}
    with pytest.raises(ScenarioError, match=r'cluster\.fabric\.trunk: needs a unit, e\.g\. "25 GB/s"'):
        measured({"nodes": 2, "node": node(), "fabric": fabric}, {})


def test_a_node_shape(lab: str) -> None:
    """In a row of four GPUs the last hop of the ring uses PCIe, the slowest link."""
    four = node(accelerators=4, intra={"kind": "nvlink2", "shape": f"{lab}.nodes.daisy"}, host={"kind": "pcie3"})
    row = measured({"nodes": 1, "node": four}, {"transport": "ideal"})
    assert row["time_s"] == pytest.approx(2 * 3 / 4 * 1e9 / 15.75e9, rel=1e-4)


def test_a_collective_algorithm(lab: str) -> None:
    name = f"{lab}.algorithms.centre"
    row = measured(PORTS, {"transport": "ideal", "algorithms": {"all_reduce": name}})
    assert row["time_s"] == pytest.approx(2 * 5e-6 + 2 * 4 * 1e9 / 10e9, rel=1e-9)
    assert row["algorithm"] == name


def test_a_wrong_algorithm_is_refused_with_the_chunk_and_the_rank(lab: str) -> None:
    with pytest.raises(
        ScenarioError, match=r"network\.algorithms\.all_reduce: .*rank 0 ends with no contribution of rank"
    ):
        measured(PORTS, {"algorithms": {"all_reduce": f"{lab}.algorithms.wrong"}})
    with pytest.raises(ScenarioError, match=r"sends 1\.6 of a vector and does not say which part"):
        measured(PORTS, {"algorithms": {"all_reduce": f"{lab}.algorithms.vague"}})


def test_a_wrong_algorithm_is_refused_on_a_large_group(lab: str) -> None:
    large = {"preset": "dgx_a100_80gb", "nodes": 64}
    with pytest.raises(ScenarioError, match="no contribution of rank"):
        measured(large, {"algorithms": {"all_reduce": f"{lab}.algorithms.wrong"}})


def test_an_algorithm_for_powers_of_two(lab: str) -> None:
    name, four = f"{lab}.algorithms.doubling", {**PORTS, "gpus": 4}
    row = measured(four, {"transport": "ideal", "algorithms": {"all_reduce": name}})
    assert row["time_s"] == pytest.approx(2 * (5e-6 + 1e9 / 10e9), rel=1e-9)
    with pytest.raises(ScenarioError, match=r"algorithms\.all_reduce: .*is for powers of two, and the group has 5"):
        measured(PORTS, {"transport": "ideal", "algorithms": {"all_reduce": name}})


def test_a_wrong_route_of_a_fabric_is_an_error(lab: str) -> None:
    with pytest.raises(ScenarioError, match=r"cluster: .*there is no link from switch 0 to switch 1"):
        measured({"nodes": 2, "node": node(), "fabric": {"kind": f"{lab}.fabrics.lost"}}, {})


def test_a_transport(lab: str) -> None:
    row = measured(PORTS, {"transport": f"{lab}.transports.postal"}, size="1 B")
    assert row["time_s"] == pytest.approx(2 * 4 * 1e-3, rel=1e-3)


def trained(cluster: Mapping[str, Any], model: Mapping[str, Any], **sections: Any) -> Result:
    data = {"version": 1, "cluster": cluster, "model": model, "training": {"global_batch_size": 8}, **sections}
    return Scenario.model_validate(data).run()


def test_a_model(lab: str) -> None:
    result = trained({"preset": "zhores", "nodes": 1}, {"preset": f"{lab}.models.tiny"})
    model = result.scenario.model
    assert model is not None
    # per layer 12 h^2 + 13 h; the embeddings of 1,000 words and 32 places; the last norm
    assert (model.name, model.parameters) == ("tiny", 2 * (12 * 64**2 + 13 * 64) + 1032 * 64 + 2 * 64)


def test_a_gpu(lab: str) -> None:
    four = node(accelerator=f"{lab}.gpus.chip", accelerators=4, intra={"shape": "ring"})
    result = trained({"nodes": 1, "node": four}, {"preset": "gpt2", "num_layers": 2})
    accelerator = result.scenario.cluster().accelerator("gpu 0")
    assert (accelerator.peak("fp32"), accelerator.memory_bytes) == (1e12, 2**30)
    assert not result.fits


def test_a_link(lab: str) -> None:
    row = measured({"nodes": 2, "node": node(nic={"kind": f"{lab}.links.copper"})}, {"transport": "ideal"})
    assert row["time_s"] == pytest.approx(1e9 / 2e9, rel=1e-4)


def test_a_cluster(lab: str) -> None:
    row = measured({"preset": f"{lab}.clusters.closet"}, {"transport": "ideal"})
    assert row["time_s"] == pytest.approx(2 * 3 / 4 * 1e9 / 500e6, rel=1e-3)


def test_a_pipeline_order(lab: str) -> None:
    """Two stages of a layer each, 1 s forward and 2 s backward, two micro-batches, backwards in the order of forwards.

    Forwards fill 3 slots of 1 s and backwards 3 of 2 s; 10 KB pass from stage to stage once on each way.
    """
    name = f"{lab}.orders.patient"
    order: Order = function("clustersim.workloads.pipelines", name)(2, 2)
    assert order.csv() == "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"
    unit = {"kind": "unit", "num_layers": 2, "forward": "1 s", "backward": "2 s", "activations": "10 KB"}
    pipeline = {"pp": 2, "schedule": name, "optimizer_sync": False}
    data = {"version": 1, "cluster": PORTS | {"gpus": 2}, "model": unit, "parallelism": pipeline}
    training = {"global_batch_size": 2, "micro_batch_size": 1}
    result = Scenario.model_validate({**data, "training": training, "network": {"transport": "ideal"}}).run()
    assert result.timeline.step_time == pytest.approx(3 * 1 + 3 * 2 + 2 * (5e-6 + 1e4 / 10e9), rel=1e-9)
    spans = [f"{span.op.action}" for span in result.timeline.spans(1) if span.op.stream == "compute"]
    assert spans[:4] == ["1F0", "1F1", "1B0", "1B1"]


@pytest.mark.exhaustive
def test_a_scenario_on_all_of_these_from_the_command_line(lab: str, tmp_path: Path) -> None:
    done = clustersim("run", f"{lab}/scenarios/evening.yaml", "--json", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert result["name"] == "evening"
    # three GPUs send their gradients to the fourth, and it sends their sum back
    parameters = result["memory"]["by_category_bytes"]["parameters"]
    assert result["traffic_bytes"]["dp"] == pytest.approx(2 * 3 * parameters)
    assert {"nvlink2", f"{lab}.links.copper"} <= set(result["link_traffic_bytes"])


def test_an_unknown_name_is_reported_with_the_known_names(lab: str, tmp_path: Path) -> None:
    option = f"network.algorithms.all_reduce={lab}.algorithms.center"
    done = clustersim("check", f"{lab}/scenarios/evening.yaml", "--set", option, folder=tmp_path)
    assert done.returncode == 2
    assert f"there is no center in {lab}.algorithms" in done.stderr
    assert "Traceback" not in done.stderr
