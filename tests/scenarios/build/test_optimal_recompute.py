"""Optimal recomputation of pipelines: simulated memory and time against the budget and the programme."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios.build.explanation import stages_as_run
from clustersim.scenarios.build.planned_activations import check_order, rank_stages, stages_of_program, within
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.specification.training import Training
from clustersim.simulator.analysis.memory import curve, peak
from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.reading.errors import ScenarioError, ScheduleError
from clustersim.simulator.reading.units import parse
from clustersim.simulator.schedule.check import check
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from clustersim.workloads.memory.chain import LayerSeconds
from clustersim.workloads.memory.chain_execution import executed
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.memory.optimal_checkpointing import least_together, peak_in_flight
from clustersim.workloads.memory.recompute import recompute_by
from clustersim.workloads.operators.model import Layer, Model
from clustersim.workloads.parallelism.pipeline import pipeline_parallel
from clustersim.workloads.pipelines.gpipe import gpipe
from clustersim.workloads.pipelines.interleaved import interleaved
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b
from clustersim.workloads.pipelines.zero_bubble_h1 import zero_bubble_h1


@dataclass(frozen=True)
class GivenLayer(Layer):
    """A layer of given durations and bytes."""

    name: str
    seconds: tuple[float, float]
    kept: float
    output: float
    transient: tuple[float, float]
    kind: str = "given"
    tensors = ()

    def forward(self, micro_batch_size):
        return (measured(self.seconds[0]),)

    def backward_input(self, micro_batch_size):
        return (measured(self.seconds[1]),)

    def backward_weights(self, micro_batch_size):
        return ()

    def activation_bytes(self, micro_batch_size):
        return self.kept

    def output_bytes(self, micro_batch_size):
        return self.output

    def transient_bytes(self, phase, micro_batch_size):
        return self.transient["FI".index(phase)]


@st.composite
def layers(draw, number):
    seconds = st.integers(1, 9)
    output = draw(st.integers(1, 5))
    transient = (draw(st.integers(0, 3)), draw(st.integers(0, 3)))
    kept = draw(st.integers(0, 20))
    return GivenLayer(f"layer {number}", (draw(seconds), draw(seconds)), kept, output, transient)


@st.composite
def pipelines(draw):
    """(model, its layers by stage, order)"""
    ranks, name = draw(st.integers(1, 3)), draw(st.sampled_from(["1f1b", "gpipe", "interleaved"]))
    if name == "interleaved" and ranks > 1:
        order = interleaved(ranks, ranks * draw(st.integers(1, 2)), virtual_stages=2)
    else:
        order = {"gpipe": gpipe}.get(name, one_f_one_b)(ranks, draw(st.integers(1, 4)))
    counts = [draw(st.integers(1, 4)) for _ in range(order.stages)]
    made = [draw(layers(number)) for number in range(sum(counts))]
    begins = [sum(counts[:stage]) for stage in range(order.stages)]
    stages = [made[begin : begin + count] for begin, count in zip(begins, counts, strict=True)]
    return Model("given", made, sample_bytes=0.0, optimizer_seconds=0.0), stages, order


def seconds_of(model):
    return {layer.name: LayerSeconds(*layer.seconds, layer.seconds[0]) for layer in model.layers}


@given(pipelines(), st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_every_stage_keeps_to_the_budget_and_takes_the_programmes_time(pipeline, share):
    model, stages, order = pipeline
    computed = compute(model, order, micro_batch_size=1, stages=stages)
    ranks = rank_stages(computed, model, 1, seconds_of(model))
    least = max(least_together(rank.chains, rank.in_flight)[0] for rank in ranks)
    most = max(sum(sum(layer.tape for layer in one.layers) for one in rank.chains) * rank.in_flight for rank in ranks)
    budget = least + share * most
    sequences = within(budget, ranks)
    schedule = recompute_by(computed, model, sequences, micro_batch_size=1)
    schedule = pipeline_parallel(schedule, model, micro_batch_size=1)
    check(schedule)
    timeline = simulate(schedule, uniform(gpus=len(order.rows), hosts=0, bandwidth=1e12, latency=0.0))
    for held in peak(timeline).stages:
        assert held <= budget * (1 + 1e-9)
    for number, rank in enumerate(ranks):
        runs = [executed(sequences[stage], chain) for stage, chain in zip(rank.stages, rank.chains, strict=True)]
        assert peak(timeline).stages[number] <= peak_in_flight(runs, rank.in_flight) * (1 + 1e-9)
        own, program = timeline.of(number), schedule.programs[number]
        busy = sum(
            end - begin
            for op, begin, end in zip(own.op.tolist(), own.begin.tolist(), own.end.tolist(), strict=True)
            if program.ops[op].layer
        )
        assert busy == pytest.approx(order.micro_batches * sum(run.seconds for run in runs), rel=0.02)


def small(**recompute):
    return {
        "version": 1,
        "cluster": {"preset": "dgx_a100_80gb"},
        "model": {"preset": "gpt3_175b", "num_layers": 8, "hidden_size": 2048, "num_attention_heads": 16},
        "training": {
            "global_batch_size": 32,
            "micro_batch_size": 4,
            "precision": "bf16",
            "recompute": recompute or "optimal",
        },
        "parallelism": {"tp": 2, "pp": 4, "sequence_parallel": True},
        "software": "megatron",
    }


@pytest.mark.parametrize("budget", ["1.4 GB", "2 GB", "4 GB"])
def test_of_operators_too_the_simulation_takes_the_programmes_time(budget):
    """Two GPUs of a stage exchange activations within their layers; recomputation repeats the exchanges."""
    scenario = Scenario.model_validate(small(method="optimal", budget=budget))
    timeline = scenario.run().timeline
    for row in stages_as_run(scenario):
        rank = next(
            rank for rank in range(8) if stages_of_program(scenario.schedule().program(rank)) == row.rank.stages
        )
        own, program = timeline.of(rank), scenario.schedule().program(rank)
        ops = [program.ops[op] for op in own.op.tolist()]
        spans = zip(ops, (own.end - own.begin).tolist(), strict=True)
        busy = sum(seconds for op, seconds in spans if op.layer and op.stream == "compute")
        assert busy == pytest.approx(scenario.derived.micro_batches * row.run.seconds, rel=0.02)
        held = curve(timeline, rank).by_category["activations"].max()
        assert held <= peak_in_flight([row.run], row.rank.in_flight) <= parse(budget, "size")


def test_what_is_left_fits_where_none_does_not_and_is_faster_than_full():
    def run(how):
        document = small(method=how)
        document["model"]["num_layers"], document["training"]["micro_batch_size"] = 40, 8
        document["training"]["global_batch_size"] = 64
        return Scenario.model_validate(document).run().summary()

    none, full, optimal = (run(how) for how in ("none", "full", "optimal"))
    assert not none["memory"]["fits"]
    assert optimal["memory"]["fits"]
    assert none["step_time_s"] < optimal["step_time_s"] < full["step_time_s"]
    assert optimal["memory"]["peak_bytes"] > full["memory"]["peak_bytes"]


@pytest.mark.parametrize(("order", "message"), [(zero_bubble_h1(2, 4), "divides them into I and W")])
def test_orders_without_whole_backward_passes_are_refused(order, message):
    with pytest.raises(ScheduleError, match=message):
        check_order(order, "zero_bubble_h1", Training(global_batch_size=8, recompute="optimal"))


@pytest.mark.parametrize(
    ("recompute", "message"),
    [
        (
            {"method": "optimum"},
            "training.recompute.method: must be none, selective, full, uniform, block, operators or",
        ),
        ("uniform", "training.recompute: uniform counts layers; write {method: uniform, num_layers: 1}"),
        ({"method": "full", "num_layers": 2}, "training.recompute.num_layers: belongs to method: uniform or block"),
        ({"method": "block", "budget": "1 GB"}, "training.recompute.budget: belongs to method: optimal, not to block"),
        ({"method": "optimal", "budget": "much"}, "training.recompute.budget"),
        ({"method": "optimal", "budget": "3 ms"}, "training.recompute.budget"),
        ({"method": "optimal", "buget": "1 GB"}, "training.recompute.buget"),
        ({"budget": "1 GB"}, "training.recompute.method: is required"),
        ({"method": "block", "num_layers": 3}, "training.recompute.num_layers: num_layers = 3 is more than the 2 lay"),
    ],
)
def test_wrong_keys_are_named(recompute, message):
    document = small()
    document["training"]["recompute"] = recompute
    with pytest.raises(ScenarioError) as caught:
        Scenario.model_validate(document).schedule()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "parallelism",
    [{"data": {"method": "fsdp"}}, {"data": {"method": "zero", "stage": 3}}, {"tp": {"x": 2, "y": 1, "z": 2}}],
    ids=str,
)
def test_sharded_weights_are_gathered_for_every_repetition(parallelism):
    """At the smallest budget layers run forward many times; all that is gathered is freed."""
    document = small(method="optimal", budget="1 MB")
    document["parallelism"] = parallelism
    # so that the logits are no larger than a layer
    document["model"] |= {"vocab_size": 1024, "num_layers": 12}
    with pytest.raises(ScenarioError) as caught:
        Scenario.model_validate(document).schedule()
    document["training"]["recompute"]["budget"] = str(caught.value).split("at least ")[1].split(",")[0]
    schedule = Scenario.model_validate(document).schedule()
    check(schedule)
    assert any(" run 3" in op.name for op in schedule.program(0).ops)


def test_an_order_that_recomputes_by_itself_is_refused():
    document = small(method="optimal")
    document["parallelism"]["schedule"] = "varuna"
    with pytest.raises(ScenarioError, match=r"training.recompute: .* recomputes in its order already"):
        Scenario.model_validate(document).schedule()


def test_the_command_prints_the_lectures_notation(capsys):
    assert (
        run(["show", "gpt_6_7b_64a100", "recompute", "--set", "training.recompute={method: block, num_layers: 2}"]) == 0
    )
    printed = capsys.readouterr().out
    assert "F1e F2c F3c F4e F5e F6e F7e F8e F9e | B9 B8 B7 B6 B5 B4 F3e B3 F2e B2 B1" in printed
    assert "F9e Loss BLoss B9" in printed
    assert "overhead" in printed


def test_the_smallest_budget_that_is_named_can_be_met_and_less_cannot():
    with pytest.raises(ScenarioError, match=r"training.recompute.budget: is too little: .* need at least") as caught:
        Scenario.model_validate(small(method="optimal", budget="100 MB")).schedule()
    words = str(caught.value).split("at least ")[1].split(",")[0]
    number, unit = words.split()
    assert Scenario.model_validate(small(method="optimal", budget=words)).schedule()
    with pytest.raises(ScenarioError, match="at least"):
        Scenario.model_validate(small(method="optimal", budget=f"{float(number) * 0.998} {unit}")).schedule()
