"""What a person adds to training: a reduction, an axis, an operator, a method of data parallelism; one file each.

The files are in a package outside the project, and scenarios name them by their import path.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.results.result import Result
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.ops import Collective, Send
from clustersim.workloads.parallelism.tensor import sharded
from tests.packages import clustersim, package

FILES = {
    "reductions/half.py": '''
        """Gradients are sent in half as many bytes, by another reduction, after a kernel that packs them."""
        from dataclasses import replace
        from clustersim import Bucket, Compute, Fraction, Reduction, memory_bound

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
        from clustersim import Collective, Count, Parallelism, ScenarioError

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
        from clustersim import BYTES, CoreAttention, Exchange, Segment

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
        from clustersim import Bucket, DataMethod, all_reduce, map_replicas, reduce_gradients, weights_by_stage

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
    "methods/nothing.py": '''
        """Nothing is exchanged."""
        from clustersim import DataMethod

        class Nothing(DataMethod):
            def apply(self, schedule, step):
                return schedule
        ''',
    "reductions/silent.py": '''
        """A reduction that sends nothing."""

        def silent(reduction):
            return lambda bucket: []
        ''',
    "orders/short.py": '''
        """The last micro-batch is left out at the second stage."""
        from clustersim import Action, Order

        def short(stages, micro_batches):
            rows = (tuple(Action(p, s, m) for p in "FB" for m in range(micro_batches - (s == 1)))
                    for s in range(stages))
            return Order(tuple(rows))
        ''',
    "blocks/decay.py": '''
        """A gated recurrence, as Mamba has it: a product in, a scan of states that decay, a product out."""
        from dataclasses import dataclass
        from clustersim import BYTES, Block, Count, Operator, ParameterTensor, memory_bound

        class Decay(Block):
            expand: Count = 2
            state_size: Count = 16

            def counts(self, features):
                return {"features of decay": self.expand * features}

            def operators(self, hidden):
                inner = self.expand * hidden.features // hidden.ranks
                return hidden.into(2 * inner), Scan(hidden.rows, inner, self.state_size, hidden.precision), (
                    hidden.out_of(inner)
                )

        @dataclass(frozen=True)
        class Scan(Operator):
            length: int
            features: int
            state: int
            precision: str

            @property
            def tensors(self):
                return (ParameterTensor(self.features * self.state),)

            def forward(self, samples):
                return (memory_bound(1.5 * self.kept_bytes(samples), precision=self.precision),)

            def backward_input(self, samples):
                return (memory_bound(2.5 * self.kept_bytes(samples), precision=self.precision),)

            def kept_bytes(self, samples):
                return 2.0 * samples * self.length * self.features * BYTES[self.precision]
        ''',
    "blocks/empty.py": '''
        """No block."""
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
    "scenarios/long.yaml": """
        version: 1
        cluster: {preset: uniform, gpus: 8, bandwidth: 10 GB/s, latency: 5 us}
        model: {preset: LAB.models.tiny, attention: LAB.operators.ring}
        training: {global_batch_size: 8, micro_batch_size: 1, recompute: full}
        parallelism:
          tp: 2
          LAB.axes.context: {degree: 2}
          data: {method: fsdp, compression: {method: LAB.reductions.half}}
        """,
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The package."""
    return package(FILES, tmp_path, monkeypatch)


PORTS = {"preset": "uniform", "bandwidth": "10 GB/s", "latency": "5 us"}

TRAINED = {"cluster": {**PORTS, "gpus": 4}, "network": {"transport": "ideal"}}


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


def test_what_lies_about_training_is_refused(lab: str) -> None:
    """A reduction or a method that exchanges nothing, an order that leaves out a micro-batch."""
    with pytest.raises(ScenarioError, match=r"silent exchanges nothing: the gradients of .* on the 4 ranks"):
        tiny(lab, parallelism={"data": {"method": "ddp", "compression": {"method": f"{lab}.reductions.silent"}}})
    with pytest.raises(ScenarioError, match=r"short: 1F3 stands 0 times; each action must stand once"):
        tiny(lab, parallelism={"pp": 2, "schedule": f"{lab}.orders.short"})
    with pytest.raises(ScenarioError, match=r"nothing exchanges nothing between the replicas"):
        tiny(lab, parallelism={"data": {"method": f"{lab}.methods.nothing"}})


def test_an_axis(lab: str) -> None:
    """Two ranks have half of each sequence; gradients are reduced over both, and the loss is averaged over them."""
    key = f"{lab}.axes.context"
    # its GPUs compute for two years: a latency of microseconds would be lost in rounding
    result = tiny(lab, parallelism={key: {"degree": 2}}, cluster={**PORTS, "gpus": 4, "latency": "1 s"})
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


@pytest.mark.parametrize("sequence", [False, True])
def test_a_block(lab: str, sequence: bool) -> None:
    """Tensor parallelism halves its weights and what it keeps, and sends for it what it sends for attention."""
    name = f"{lab}.blocks.decay"
    made = {
        (kind, ranks): tiny(
            lab,
            model={"layers": [[kind, "mlp"]], "add_bias_linear": False},
            parallelism={"tp": ranks, **({"sequence_parallel": True} if sequence and ranks > 1 else {})},
        )
        for kind, ranks in ((name, 1), (name, 2), ("attention", 2))
    }

    def block(ranks: int) -> tuple[Any, ...]:
        """Its product in, its scan and its product out in the first layer."""
        model: Any = made[name, 1].scenario.model
        layer: Any = sharded(model, ranks, sequence_parallel=sequence).layers[1]
        return tuple(layer.operators[1:4])

    inner = 2 * 64
    whole, half = block(1), block(2)
    weights = [sum(t.count for operator in part for t in operator.tensors if t.rows) for part in (whole, half)]
    assert weights == [64 * 3 * inner, 64 * 3 * inner // 2]
    assert half[1].kept_bytes(1) == whole[1].kept_bytes(1) / 2 == 32 * 2 * inner // 2 * 4
    traffic = [made[kind, 2].summary()["traffic_bytes"]["tp"] for kind in (name, "attention")]
    assert traffic[0] == traffic[1]


def test_faults_of_a_block(lab: str) -> None:
    name = f"{lab}.blocks.decay"
    model: dict[str, Any] = {"layers": [[name, "mlp"]]}
    faults: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"blocks": {name: {"expand": 0}}}, {}, f"model.blocks.{name}.expand: must be at least 1, not 0"),
        ({"blocks": {name: {"rank": 2}}}, {}, f"model.blocks.{name}.rank: unknown key"),
        ({"layers": [f"{lab}.blocks.empty"]}, {}, f"{lab}.blocks.empty declares no subclass of Block"),
        ({"layers": [f"{lab}.blocks.none"]}, {}, f"there is no none in {lab}.blocks"),
        ({"hidden_size": 65, "num_attention_heads": 5}, {"tp": 4}, "tp = 4 does not divide the 130 features of decay"),
        ({}, {"cp": 2}, "cp = 2 does not fit tiny: Decay is not made for it"),
    ]
    for more, parallelism, message in faults:
        with pytest.raises(ScenarioError, match=re.escape(message)):
            tiny(lab, model={**model, **more}, parallelism=parallelism)


def test_a_data_parallel_method_of_ones_own(lab: str) -> None:
    """Every tensor is all-reduced by itself, with nothing beside it."""
    result = tiny(lab, parallelism={"data": {"method": f"{lab}.methods.each"}})
    program = result.scenario.schedule().programs[0]
    model = result.scenario.model
    assert model is not None
    tensors = [tensor for layer in model.layers for tensor in layer.tensors]
    assert sum(isinstance(op, Collective) for op in program.ops) == len(tensors)
    assert result.summary()["traffic_bytes"]["dp"] == pytest.approx(2 * 3 * 4 * model.parameters)


@pytest.mark.exhaustive
def test_a_scenario_on_all_of_these_from_the_command_line(lab: str, tmp_path: Path) -> None:
    scenario = f"{lab}/scenarios/long.yaml"
    done = clustersim("run", scenario, "--json", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert list(result["traffic_bytes"]) == ["tp", "pp", "dp", "context", "norm"]
    assert all(result["traffic_bytes"][axis] for axis in ("tp", "dp", "context"))
    shown = clustersim("show", scenario, "derived", folder=tmp_path).stdout
    assert f"  {lab}.axes.context:\n    degree: 2\n" in shown
    assert "# context: 2" in shown.splitlines()
    again = tmp_path / "again.yaml"
    again.write_text(shown)
    assert (
        json.loads(clustersim("run", str(again), "--json", folder=tmp_path).stdout)["step_time_s"]
        == (result["step_time_s"])
    )


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
