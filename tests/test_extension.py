"""What a person adds is one new file, found by its import path in a package of the user's own; the project stays."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scenarios import Scenario
from scenarios.result import Result
from simulator.errors import ScenarioError
from simulator.lookup import function
from simulator.order import Order
from simulator.schedule import Collective, Send

FILES = {
    "fabrics/twin.py": '''
        """Two switches joined by one trunk; nodes are plugged into them in turn."""
        from simulator.document import Bandwidth
        from topologies.network import Network, Port, Way

        def twin(network: Network, trunk: Bandwidth) -> Way:
            switches = network.switch(), network.switch()
            network.join(*switches, trunk)
            for ports in network.nodes:
                network.plug(ports, switches[ports[0].node % 2])

            def way(source: Port, target: Port) -> list[str]:
                ends = switches[source.node % 2], switches[target.node % 2]
                return [ends[0]] if ends[0] == ends[1] else [*ends]

            return way
        ''',
    "nodes/daisy.py": '''
        """GPUs in a row, each joined to the next with all of its links."""
        from itertools import pairwise
        from topologies.wiring import Server, Wiring, pcie_tree

        def daisy(server: Server) -> Wiring:
            wiring = pcie_tree(server)
            for pair in pairwise(wiring.gpus):
                wiring.join(*pair, server.joint())
            return wiring
        ''',
    "algorithms/centre.py": '''
        """Everything to position 0, which adds it up and sends the sum back."""
        from simulator.step import Group, Step

        def all_reduce(group: Group, nbytes: float) -> list[Step]:
            others = range(1, group.size)
            return [
                Step(tuple((i, 0) for i in others), nbytes, coupled=False, reduces=True),
                Step(tuple((0, i) for i in others), nbytes, coupled=False),
            ]
        ''',
    "transports/postal.py": '''
        """A library that takes a millisecond over every message."""
        from simulator.transport.transport import NET, NVLINK, PCI, Transport

        def postal() -> Transport:
            hops = {(hop, "ring", "simple"): 1e-3 for hop in (NVLINK, PCI, NET)}
            return Transport("postal", algorithms={"all_reduce": ("ring",)}, hop_latency=hops)
        ''',
    "orders/patient.py": '''
        """All forwards, then all backwards, first micro-batch first."""
        from simulator.order import Action, Order

        def patient(stages: int, micro_batches: int) -> Order:
            return Order(tuple(
                tuple(Action(phase, s, m) for phase in "FB" for m in range(micro_batches)) for s in range(stages)
            ))
        ''',
    "reductions/half.py": '''
        """Gradients are sent in half as many bytes, by another reduction, after a kernel that packs them."""
        from dataclasses import replace
        from simulator.document import Fraction
        from simulator.kernel import memory_bound
        from simulator.schedule import Compute
        from workloads.gradients.bucket import Bucket, Reduction

        def half(reduction: Reduction, share: Fraction = 0.5) -> Reduction:
            def reduce(bucket: Bucket):
                name = f"{bucket.name}.pack"
                kernel = memory_bound(bucket.nbytes * (1 + share))
                yield Compute(name=name, kernels=(kernel,), stream="pack", after=(bucket.filled_by,))
                yield from reduction(replace(bucket, nbytes=bucket.nbytes * share, filled_by=name))
            return reduce
        ''',
    "axes/context.py": '''
        """Context parallelism: each rank of a group has a part of every sequence, and all have the same weights."""
        from typing import ClassVar
        from simulator.document import Count
        from simulator.errors import ScenarioError
        from simulator.schedule import Collective
        from workloads.parallelism import Parallelism

        class Context(Parallelism):
            axis: ClassVar[str] = "context"
            degree: Count

            def degrees(self, ranks):
                return {"context": self.degree}

            def share(self, model):
                if model.shape.seq_length % self.degree:
                    raise ScenarioError(f"{self.degree} ranks do not divide {model.shape.seq_length} positions")
                part = model.shape.seq_length // self.degree
                return model.reshaped(seq_length=part, degrees={"context": self.degree})

            def further_axes(self, mesh):
                return {"dp": mesh.joint("context", "dp")}

            def apply(self, schedule, step):
                def averaged(op):
                    yield op
                    if op.layer == "head" and op.name == f"{op.action}.head" and op.action.phase == "F":
                        name = f"{op.name}.loss"
                        yield Collective(name=name, action=op.action, kind="all_reduce", over="context", nbytes=4.0)
                return schedule.map_programs(lambda program: program.map_ops(averaged))
        ''',
    "operators/ring.py": '''
        """Attention over a sequence of which each rank has a part: keys and values go round a ring, block by block."""
        from dataclasses import dataclass, replace
        from simulator.kernel import BYTES
        from workloads.operators.attention import CoreAttention
        from workloads.operators.segment import Exchange, Segment

        def ring(shape):
            sizes = shape.seq_length, shape.heads, shape.key_value_heads, shape.head_size
            return RingAttention(*sizes, precision=shape.precision, ranks=shape.degrees.get("context", 1))

        @dataclass(frozen=True)
        class RingAttention(CoreAttention):
            ranks: int = 1

            def segments(self, phase, samples):
                (block,) = super().segments(phase, samples)
                width = self.key_value_heads * self.head_size * BYTES[self.precision]
                # keys and values; in the backward pass their gradients too
                nbytes = samples * self.length * width * (2 if phase == "F" else 4)
                onward = replace(block, within=(Exchange("shift", nbytes, "context"),))
                return (*[onward] * (self.ranks - 1), block) if block.kernels else ()
        ''',
    "methods/each.py": '''
        """Every gradient tensor is all-reduced by itself."""
        from workloads.gradients.bucket import Bucket
        from workloads.gradients.reduce import map_replicas, reduce_gradients, weights_by_stage
        from workloads.parallelism import DataMethod
        from workloads.reductions.all_reduce import all_reduce

        class Each(DataMethod):
            def apply(self, schedule, step):
                def change(program, degrees):
                    buckets = {
                        stage: [Bucket(4.0 * t.count, one.name) for one in held for t in one.tensors]
                        for stage, held in weights_by_stage(program, step.model).items()
                    }
                    return reduce_gradients(program, buckets, all_reduce())
                return map_replicas(schedule, step.model, change)
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
def lab(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of the user's own, one file for each thing that can be added; its name is like no other test's."""
    name = f"lab_{abs(hash(request.node.nodeid))}"
    for path, text in FILES.items():
        lines = text.strip("\n").split("\n")
        indent = len(lines[0]) - len(lines[0].lstrip())
        file = tmp_path / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(line[indent:] for line in lines).replace("LAB", name))
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


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
    """A ring of two nodes sends d over the trunk each way; the trunk is what it is said to be."""
    fabric = {"kind": f"{lab}.fabrics.twin", "trunk": "1 GB/s"}
    row = measured({"nodes": 2, "node": node(), "fabric": fabric}, {"transport": "ideal"})
    assert row["time_s"] == pytest.approx(1.0, rel=1e-4)


def test_a_parameter_of_a_fabric_is_held_to_its_annotation(lab: str) -> None:
    fabric = {"kind": f"{lab}.fabrics.twin", "trunk": 25}
    with pytest.raises(ScenarioError, match=r'cluster\.fabric\.trunk: needs a unit, e\.g\. "25 GB/s"'):
        measured({"nodes": 2, "node": node(), "fabric": fabric}, {})


def test_a_node_shape(lab: str) -> None:
    """In a row of four the ring's last hop goes back over PCIe, which is the slowest link."""
    four = node(accelerators=4, intra={"kind": "nvlink2", "shape": f"{lab}.nodes.daisy"}, host={"kind": "pcie3"})
    row = measured({"nodes": 1, "node": four}, {"transport": "ideal"})
    assert row["time_s"] == pytest.approx(2 * 3 / 4 * 1e9 / 15.75e9, rel=1e-4)


def test_a_collective_algorithm(lab: str) -> None:
    name = f"{lab}.algorithms.centre"
    row = measured(PORTS, {"transport": "ideal", "algorithms": {"all_reduce": name}})
    assert row["time_s"] == pytest.approx(2 * 5e-6 + 2 * 4 * 1e9 / 10e9, rel=1e-9)
    assert row["algorithm"] == name


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
    """Two stages of a layer each, 1 s forward and 2 s backward, two micro-batches that are not turned round.

    Forwards fill 3 slots of 1 s and backwards 3 of 2 s; 10 KB pass from stage to stage once on each way.
    """
    name = f"{lab}.orders.patient"
    order: Order = function("workloads.pipelines", name)(2, 2)
    assert order.csv() == "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"
    unit = {"kind": "unit", "num_layers": 2, "forward": "1 s", "backward": "2 s", "activations": "10 KB"}
    pipeline = {"pp": 2, "schedule": name, "optimizer_sync": False}
    data = {"version": 1, "cluster": PORTS | {"gpus": 2}, "model": unit, "parallelism": pipeline}
    training = {"global_batch_size": 2, "micro_batch_size": 1}
    result = Scenario.model_validate({**data, "training": training, "network": {"transport": "ideal"}}).run()
    assert result.timeline.step_time == pytest.approx(3 * 1 + 3 * 2 + 2 * (5e-6 + 1e4 / 10e9), rel=1e-9)
    spans = [f"{span.op.action}" for span in result.timeline.spans(1) if span.op.stream == "compute"]
    assert spans[:4] == ["1F0", "1F1", "1B0", "1B1"]


TRAINED = {"cluster": {**PORTS, "gpus": 4}, "network": {"transport": "ideal"}, "simulation": {"fold": True}}


def tiny(lab: str, **sections: Any) -> Result:
    """A tiny transformer of two layers on four GPUs."""
    model = {"preset": f"{lab}.models.tiny", **sections.pop("model", {})}
    training = {"global_batch_size": 8, "micro_batch_size": 1, **sections.pop("training", {})}
    return Scenario.model_validate({"version": 1, "model": model, "training": training, **TRAINED, **sections}).run()


@pytest.mark.parametrize("method", ["ddp", "zero", "fsdp"])
def test_a_gradient_reduction(lab: str, method: str) -> None:
    """Half as many bytes of gradients, by whatever collective; what else the method sends stays."""
    compression = {"method": f"{lab}.reductions.half"}
    plain, half = (
        tiny(lab, parallelism={"data": {"method": method, **more}}) for more in ({}, {"compression": compression})
    )
    schedule = plain.scenario.schedule()
    name = "all_reduce" if method == "ddp" else "reduce_scatter"
    gradients = [op for op in schedule.programs[0].ops if isinstance(op, Collective) and op.kind == name]
    # a ring sends each byte of an all-reduce 2 (p - 1) times in all, of a reduce-scatter p - 1 times
    sent = sum(op.nbytes for op in gradients if op.nbytes > 4) * 3 * (2 if method == "ddp" else 1)
    before, after = (result.summary()["traffic_bytes"]["dp"] for result in (plain, half))
    assert before - after == pytest.approx(sent / 2, rel=1e-9)
    with pytest.raises(ScenarioError, match=r"compression\.share: must be at most 1, not 2"):
        tiny(lab, parallelism={"data": {"method": method, "compression": {**compression, "share": 2}}})
    with pytest.raises(ScenarioError, match=r"compression\.level: unknown key; half takes share"):
        tiny(lab, parallelism={"data": {"method": method, "compression": {**compression, "level": 2}}})


def test_an_axis(lab: str) -> None:
    """Two ranks have half of each sequence; gradients are reduced over both, and the loss is averaged over them."""
    key = f"{lab}.axes.context"
    result = tiny(lab, parallelism={key: {"degree": 2}})
    derived, mesh = result.scenario.derived, result.scenario.schedule().mesh
    assert (derived.described, derived.micro_batches) == ("tp 1 x context 2 x pp 1 x dp 2", 4)
    assert mesh.axes["context"].groups == ((0, 1), (2, 3))
    assert mesh.axes["dp"].groups == ((0, 1, 2, 3),)
    summary = result.summary()
    # two groups of two ranks, four micro-batches, 2 (p - 1) times 4 bytes
    assert summary["traffic_bytes"]["context"] == 2 * 4 * 2 * 4
    assert summary["breakdown_s"]["exposed_context"] > 0
    parameters = result.scenario.schedule().programs[0].resident["parameters"]
    assert summary["traffic_bytes"]["dp"] == pytest.approx(2 * 3 * parameters)
    for setting, message in [
        ({"degree": 3}, f"parallelism.{key}: 3 ranks do not divide 32 positions"),
        ({"degree": 0}, f"parallelism.{key}.degree: must be at least 1, not 0"),
        ({"degrees": 2}, f"parallelism.{key}.degrees: unknown key"),
    ]:
        with pytest.raises(ScenarioError, match=re.escape(message)):
            tiny(lab, parallelism={key: setting})


def test_an_operator_with_a_ring(lab: str) -> None:
    """Keys and values pass all other ranks of a group once forward, with their gradients once backward."""
    context = {f"{lab}.axes.context": {"degree": 4}}
    result = tiny(lab, parallelism=context, model={"attention": f"{lab}.operators.ring"})
    messages = [op for program in result.scenario.schedule().programs for op in program.ops if isinstance(op, Send)]
    layers, micro_batches, hops = 2, 8, 3
    assert len(messages) == 4 * layers * micro_batches * hops * 2
    block = 32 // 4 * 64 * 4  # positions of a rank, hidden size, fp32
    assert sum(op.nbytes for op in messages) == 4 * layers * micro_batches * hops * (2 + 4) * block
    losses = micro_batches * 2 * 3 * 4
    assert result.summary()["traffic_bytes"]["context"] == sum(op.nbytes for op in messages) + losses
    # every rank sends to the next one while it multiplies its block
    spans = {span.op.name: span for span in result.timeline.spans(1)}
    send, block_of_scores = spans["0F0.layer 0.2 send"], spans["0F0.layer 0.1"]
    assert isinstance(send.op, Send)
    assert (send.op.peer, send.begin) == (2, block_of_scores.begin)


def test_a_data_parallel_method_of_ones_own(lab: str) -> None:
    """Every tensor is all-reduced by itself, with nothing beside it."""
    result = tiny(lab, parallelism={"data": {"method": f"{lab}.methods.each"}})
    program = result.scenario.schedule().programs[0]
    model = result.scenario.model
    assert model is not None
    tensors = [tensor for layer in model.layers for tensor in layer.tensors]
    assert sum(isinstance(op, Collective) for op in program.ops) == len(tensors)
    assert result.summary()["traffic_bytes"]["dp"] == pytest.approx(2 * 3 * 4 * model.parameters)


def test_two_stages_of_which_the_first_has_15_replicas_and_the_second_1() -> None:
    """PipeDream's 15-1 (Narayanan et al. 2019, arXiv:1806.03377): micro-batches go round-robin to the replicas."""
    unit = {"kind": "unit", "num_layers": 2, "forward": "1 s", "backward": "2 s", "activations": "10 KB"}
    data = {
        "version": 1,
        "cluster": PORTS | {"gpus": 16},
        "model": {**unit, "parameters": 30_000},
        "training": {"global_batch_size": 45, "micro_batch_size": 1},
        "parallelism": {"pp": 2, "dp": [15, 1]},
        "network": {"transport": "ideal"},
    }
    result = Scenario.model_validate(data).run()
    schedule = result.scenario.schedule()
    assert schedule.mesh.world_size == 16
    assert schedule.mesh.axes["dp"].groups == (tuple(range(15)), (15,))
    for rank in range(16):
        sent = [(str(op.action), op.peer, op.nbytes) for op in schedule.program(rank).ops if isinstance(op, Send)]
        forward = [(f"0F{m}", 15, 1e4) for m in range(rank, 45, 15)]
        assert sent == (forward if rank < 15 else [(f"1B{m}", m % 15, 1e4) for m in range(45)])
    traffic = result.summary()["traffic_bytes"]
    assert traffic["pp"] == 2 * 45 * 1e4
    # half of the parameters, of 4 bytes, all-reduced by a ring of the 15
    assert traffic["dp"] == pytest.approx(2 * 14 * 15_000 * 4)
    assert "pp 2 x dp 15-1" in result.report()
    with pytest.raises(
        ScenarioError, match="40 is not a multiple of micro_batch_size 1 x dp 15 = 15; the nearest are 30 and 45"
    ):
        Scenario.model_validate({**data, "training": {"global_batch_size": 40, "micro_batch_size": 1}})


def clustersim(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("clustersim")), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_scenario_on_all_of_these_from_the_command_line(lab: str, tmp_path: Path) -> None:
    done = clustersim("run", f"{lab}/scenarios/evening.yaml", "--json", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert result["name"] == "evening"
    # each of three GPUs sends its gradients to the fourth, which sends their sum back
    gradients = result["memory"]["by_category_bytes"]["gradients"]
    assert result["traffic_bytes"]["dp"] == pytest.approx(2 * 3 * gradients)
    assert {"nvlink2", f"{lab}.links.copper"} <= set(result["link_traffic_bytes"])


def test_a_name_that_there_is_not_is_told_with_those_that_there_are(lab: str, tmp_path: Path) -> None:
    option = f"network.algorithms.all_reduce={lab}.algorithms.center"
    done = clustersim("check", f"{lab}/scenarios/evening.yaml", "--set", option, folder=tmp_path)
    assert done.returncode == 2
    assert f"there is no center in {lab}.algorithms" in done.stderr
    assert "Traceback" not in done.stderr
