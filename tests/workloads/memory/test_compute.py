"""The computation of every order: which kernels, when the optimizer, what is kept and for how long."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.analysis.memory import bound
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.reading.lookup import find, function, names
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.pipeline_order import Order, in_flight
from clustersim.workloads.architectures.shape import Mlp, SelfAttention, Shape
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.architectures.timed_models import unit_model
from clustersim.workloads.architectures.transformer import transformer
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.memory.optimizer import optimizer_kernels
from clustersim.workloads.operators.stages import stages_of
from clustersim.workloads.parallelism.tensor import sharded
from clustersim.workloads.pipelines.interleaved import interleaved
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b
from clustersim.workloads.pipelines.pipedream import pipedream
from clustersim.workloads.pipelines.varuna import varuna

ORDERS = names("clustersim.workloads.pipelines")
SHAPE = Shape(8, 256, 128, 1000, SelfAttention(4, 4), Mlp(1024), precision="bf16")
GPT = transformer(SHAPE)
S, H, A, B = 128, 256, 4, 2
LAYER = S * B * H * (34 + 5 * A * S / H)


def computed(order, what=GPT, **choices):
    layout = "balanced"
    schedule = compute(what, order, micro_batch_size=B, stages=stages_of(what, order.stages, layout), **choices)
    check(schedule)
    return schedule


def activations(schedule):
    return [op.allocates.get("activations", 0) - op.frees.get("activations", 0) for op in schedule.programs[0].ops]


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_is_computed_as_it_stands(name):
    order = function("clustersim.workloads.pipelines", name)(2, 4)
    stages = stages_of(GPT, order.stages, "balanced")
    schedule = computed(order)
    for row, program in zip(order.rows, schedule.programs, strict=True):
        found = [(op.action, op.layer) for op in program.ops if op.layer]
        wanted = []
        for action in row:
            layers = [layer.name for layer in stages[action.stage]] if action.phase != "O" else []
            wanted += [(action, layer) for layer in (layers if action.phase in "FR" else reversed(layers))]
        assert found == wanted
        updates = [op.action for op in program.ops if op.action.phase == "O"]
        inside = [action for action in row if action.phase == "O"]
        assert updates == inside if inside else (len(updates), program.ops[-1].action) == (1, updates[0])


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_asks_for_the_flops_of_the_model(name):
    order = function("clustersim.workloads.pipelines", name)(2, 4)
    ops = [op for program in computed(order).programs for op in program.ops if op.action.phase != "R"]
    flops = sum(kernel.flops for op in ops for kernel in op.kernels)
    assert flops == pytest.approx(GPT.flops(B * order.micro_batches))


@settings(deadline=None, max_examples=25)
@given(p=st.integers(1, 4), m=st.integers(1, 6))
def test_1f1b_keeps_the_layers_of_the_micro_batches_in_flight(p, m):
    schedule = computed(one_f_one_b(p, m), transformer(replace(SHAPE, num_layers=2 * p)))
    for stage, program in enumerate(schedule.programs):
        ends = (stage == 0) * S * B * H + (stage == p - 1) * 4 * S * B * H * (1 + 1000 / H)
        one = replace(schedule, programs=schedule.programs[stage : stage + 1] * p)
        held = bound(one).peak.by_category["activations"]
        logits = (stage == p - 1) * 2 * S * B * 1000  # in 16 bits, beside the fp32 probabilities of one micro-batch
        assert held == pytest.approx(min(p - stage, m) * (2 * LAYER + ends) + logits), program.role


def test_what_the_weight_gradients_need_is_32_sbh():
    """Qi et al. 2024 (arXiv:2401.10241), table 1: M_B = s b h (34 + 5 a s / h), M_W = 32 s b h."""
    schedule = computed(Order.parse("0F0,0I0,0W0"))
    name = "layer 3"
    by_phase = {op.action.phase: op for op in schedule.programs[0].ops if op.layer == name}
    assert by_phase["F"].allocates == {"activations": LAYER}
    assert by_phase["I"].frees == {"activations": LAYER - 32 * S * B * H}
    assert by_phase["W"].frees == {"activations": 32 * S * B * H}


def test_of_a_split_backward_only_the_products_of_weights_are_put_off():
    """Sums over rows, of biases and norms, stay with I; Qi et al.'s bubble p - 1 times F + I - W is so much larger."""
    schedule = computed(Order.parse("0F0,0I0,0W0"))
    split = {phase: [op for op in schedule.programs[0].ops if op.action.phase == phase] for phase in "IW"}
    assert all(kernel.flops for op in split["W"] for kernel in op.kernels)
    whole = [op for op in computed(Order.parse("0F0,0B0")).programs[0].ops if op.action.phase == "B"]
    halves = Counter(kernel for ops in split.values() for op in ops for kernel in op.kernels)
    assert halves == Counter(kernel for op in whole for kernel in op.kernels)


def test_where_gradients_outweigh_activations_the_first_half_allocates():
    flash = transformer(
        replace(SHAPE, attention=replace(SHAPE.attention, kind="flash"), dropout=False, precision="fp32")
    )
    small = transformer(replace(SHAPE, attention=replace(SHAPE.attention, kind="flash")))
    for what in (flash, sharded(small, 4, sequence_parallel=True)):
        schedule = compute(what, Order.parse("0F0,0I0,0W0"), micro_batch_size=B)
        layer = what.layers[1]
        kept, needed = layer.activation_bytes(B), layer.weight_bytes(B)
        half = [op for op in schedule.programs[0].ops if (str(op.action), op.layer) == ("0I0", "layer 0")]
        assert sum(op.allocates.get("activations", 0) for op in half) == max(0, needed - kept)
        assert sum(op.frees.get("activations", 0) for op in half) == max(0, kept - needed)


@pytest.mark.parametrize("name", ORDERS)
def test_unit_layers_are_kept_as_often_as_micro_batches_are_in_flight(name):
    order = function("clustersim.workloads.pipelines", name)(2, 4)
    what = unit_model(order.stages, 1.0, 2.0, activations=1.0)
    schedule = compute(what, order, micro_batch_size=1, stages=stages_of(what, order.stages))
    for rank, row in enumerate(order.rows):
        if not any(action.phase == "R" for action in row):
            one = replace(schedule, programs=(schedule.programs[rank],) * 2)
            assert bound(one).peak.nbytes == in_flight(row)


def test_a_recomputed_stage_keeps_its_own_input_only():
    order = varuna(2, 3)
    schedule = computed(order)
    by_name = {op.name: op for program in schedule.programs for op in program.ops}
    # the first stage begins with the embedding, whose input is the tokens
    kept = [by_name[f"0F0.{layer}"].allocates for layer in ("embedding", "layer 0", "layer 1")]
    assert kept == [{}, {}, {}]
    # the last stage recomputes nothing
    assert by_name["1F0.layer 4"].allocates == {"activations": LAYER}
    middle = computed(varuna(4, 3))
    by_name = {op.name: op for program in middle.programs for op in program.ops}
    assert by_name["1F0.layer 2"].allocates == {"activations": 2 * S * B * H}
    assert by_name["1R0.layer 2"].allocates == {"activations": LAYER - 2 * S * B * H}
    assert by_name["1F0.layer 3"].allocates == {}
    assert by_name["1R0.layer 3"].allocates == {"activations": LAYER}


def test_asynchronous_stages_update_by_themselves():
    schedule = computed(pipedream(2, 3), optimizer="momentum")
    for stage, program in enumerate(schedule.programs):
        updates = [op for op in program.ops if op.action.phase == "O"]
        assert [str(op.action) for op in updates] == [f"{stage}O{i}" for i in range(3)]
        count = sum(layer.parameters for layer in stages_of(GPT, 2)[stage]) + stage * GPT.tied_parameters
        assert updates[0].kernels == optimizer_kernels(count, "momentum", "bf16")


@pytest.mark.parametrize(("name", "versions"), [("pipedream", [3, 2, 1]), ("pipedream_2bw", [2, 2, 2])])
def test_asynchronous_stages_keep_versions_of_their_weights(name, versions):
    module = find("clustersim.workloads.pipelines", name)
    what = unit_model(3, 1.0, 1.0, parameters=300)
    schedule = compute(
        what,
        function("clustersim.workloads.pipelines", name)(3, 3),
        micro_batch_size=1,
        stages=stages_of(what, 3),
        weight_versions=module.weight_versions,
    )
    held = [program.resident for program in schedule.programs]
    assert [one["parameters"] for one in held] == [4 * 100 * count for count in versions]
    assert [one["gradients"] for one in held] == [4 * 100] * 3


def test_a_pipeline_holds_tied_embeddings_on_both_ends():
    gpt2 = model("gpt2", "bf16")
    held = [program.resident for program in computed(one_f_one_b(2, 2), gpt2, optimizer="adam").programs]
    assert sum(one["parameters"] for one in held) == 2 * (gpt2.parameters + 50257 * 768)
    whole = computed(one_f_one_b(1, 2), gpt2, optimizer="adam").programs[0].resident
    assert whole["optimizer"] == 12 * gpt2.parameters


def test_a_rank_of_several_virtual_stages_updates_once():
    schedule = computed(interleaved(2, 2, 2), GPT)
    updates = [op for op in schedule.programs[1].ops if op.action.phase == "O"]
    own = [layer for stage in (1, 3) for layer in stages_of(GPT, 4)[stage]]
    count = sum(layer.parameters for layer in own) + GPT.tied_parameters
    assert [op.kernels for op in updates] == [optimizer_kernels(count, "sgd", "bf16")]


def test_the_optimizer_is_fused_as_the_model_is():
    for fused in (True, False):
        what = model("gpt2", "bf16", fused=fused)
        update = computed(one_f_one_b(1, 1), what, optimizer="adam").programs[0].ops[-1]
        assert update.kernels == optimizer_kernels(what.parameters, "adam", "bf16", fused=fused)


def test_what_does_not_fit_together_is_told():
    with pytest.raises(ScheduleError, match="the order has 2 stages, but the model is cut into 1"):
        compute(GPT, one_f_one_b(2, 2), micro_batch_size=1)
    twins = replace(GPT, layers=[GPT.layers[1], GPT.layers[1]])
    with pytest.raises(ScheduleError, match="must have names of their own"):
        compute(twins, one_f_one_b(1, 1), micro_batch_size=1)
