"""Recomputation: what runs again, what is no longer kept, and that every order bears it."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from clustersim.simulator.analysis.memory import bound, peak
from clustersim.simulator.analysis.metrics import hardware_flops, model_flops
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.reading.lookup import function, names
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Collective
from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from clustersim.workloads.architectures.shape import Mlp, SelfAttention, Shape
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.architectures.timed_models import unit_model
from clustersim.workloads.architectures.transformer import transformer
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.memory.recompute import recompute
from clustersim.workloads.operators.lowering import Overlap
from clustersim.workloads.operators.stages import stages_of
from clustersim.workloads.parallelism.pipeline import pipeline_parallel
from clustersim.workloads.parallelism.tensor import sharded, tensor_parallel
from clustersim.workloads.pipelines.gpipe import gpipe
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b

DATA = Path(__file__).parents[3] / "../shared/data"
ORDERS = names("clustersim.workloads.pipelines")
SHAPE = Shape(8, 256, 128, 1024, SelfAttention(4, 4), Mlp(1024), precision="bf16")
GPT = transformer(SHAPE)
L, S, H, A, V, B = 8, 128, 256, 4, 1024, 2


def recomputed(how, order=None, what=GPT):
    order = order or one_f_one_b(1, 2)
    schedule = compute(what, order, micro_batch_size=B, stages=stages_of(what, order.stages, "balanced"))
    schedule = recompute(schedule, what, how, micro_batch_size=B)
    check(schedule)
    return schedule


def test_full_recomputation_executes_the_formula_with_96():
    """Narayanan et al. 2021 (arXiv:2104.04473), equation 3."""
    schedule = recomputed("full")
    batch = 2 * B
    formula = 96 * batch * S * L * H**2 * (1 + S / (6 * H) + V / (16 * L * H))
    assert hardware_flops(schedule) == pytest.approx(formula, rel=1e-12)
    assert model_flops(schedule) == pytest.approx(GPT.flops(batch), rel=1e-12)


def test_selective_recomputation_executes_two_products_more():
    """4 b s^2 h a layer: scores and context. (The paper prints 1 + s/3h, which repeats their backward pass as well.)"""
    schedule = recomputed("selective")
    extra = hardware_flops(schedule) - model_flops(schedule)
    assert extra == pytest.approx(L * 4 * 2 * B * S**2 * H, rel=1e-12)


def test_a_layer_is_recomputed_right_before_its_backward_pass():
    ops = recomputed("full").programs[0].ops
    for index, op in enumerate(ops):
        if op.action.phase == "B" and op.layer not in ("embedding", "head"):
            before = ops[index - 1]
            assert (before.action, before.layer) == (op.action._replace(phase="R"), op.layer)
            forward = next(one for one in ops if (one.action, one.layer) == (op.action._replace(phase="F"), op.layer))
            assert before.kernels == forward.kernels
    assert {op.layer for op in ops if op.action.phase == "R"} == {f"layer {i}" for i in range(L)}


def formulas():
    path = DATA / "korthikanti_memory_formulas.csv"
    if not path.exists():
        pytest.skip(f"{path.name} is not here; published measurements are not part of the project")
    with path.open() as file:
        return {row["configuration"]: row["formula_bytes"] for row in csv.DictReader(file)}


ROWS = {  # recomputation, tensor-parallel degree, sequence parallelism
    "no parallelism (per layer)": ("none", 1, False),
    "tensor parallel baseline": ("none", 4, False),
    "TP + sequence parallel": ("none", 4, True),
    "TP + selective recompute": ("selective", 4, False),
    "TP+SP+selective": ("selective", 4, True),
    "full recompute": ("full", 1, False),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("stages", "micro_batches"), [(4, 6), (4, 2)])
def test_a_stage_keeps_korthikantis_bytes_for_each_micro_batch_in_flight(name, stages, micro_batches):
    how, t, sequence = ROWS[name]
    sizes = {"s": S, "b": B, "h": H, "a": A, "t": t}
    formula = float(eval(formulas()[name], {"__builtins__": {}}, sizes))
    order = one_f_one_b(stages, micro_batches)
    share = sharded(GPT, t, sequence_parallel=sequence)
    schedule = compute(share, order, micro_batch_size=B, stages=stages_of(share, stages))
    schedule = tensor_parallel(schedule, share, t)
    schedule = recompute(schedule, share, how, micro_batch_size=B)
    check(schedule)
    # of two layers a stage; the second stage has neither embedding nor head
    second = replace(schedule, programs=schedule.programs[1:2] * stages)
    working = share.layers[1].activation_bytes(B) - formula
    in_flight = min(stages - 1, micro_batches)
    held = bound(second).peak.by_category["activations"]
    assert held == pytest.approx(2 * in_flight * formula + working)


def test_simulated_memory_is_that_of_program_order():
    schedule = recomputed("full")
    timeline = simulate(schedule, uniform(gpus=1, hosts=0, bandwidth=1e9, latency=0.0))
    assert peak(timeline).peak.nbytes == pytest.approx(bound(schedule).peak.nbytes)


def test_of_a_unit_model_recomputation_costs_one_forward():
    what = unit_model(3, 1.0, 2.0)
    schedule = recompute(compute(what, one_f_one_b(1, 4), micro_batch_size=1), what, "full", micro_batch_size=1)
    timeline = simulate(schedule, uniform(gpus=1, hosts=0, bandwidth=1e9, latency=0.0))
    assert timeline.step_time == pytest.approx(3 * 4 * (1 + 1 + 2))
    assert recompute(schedule_of(what), what, "selective", micro_batch_size=1) == schedule_of(what)


def schedule_of(what):
    return compute(what, one_f_one_b(1, 4), micro_batch_size=1)


def test_it_comes_from_the_order_or_from_the_pass_but_not_from_both():
    order = gpipe(2, 3, recompute=True)
    with pytest.raises(ScheduleError, match=r"stage 0 recomputes in its order already; .*twice, try none"):
        recomputed("full", order)
    assert recomputed("none", order)
    with pytest.raises(ScheduleError, match='unknown recomputation "ful"; there are: full'):
        recomputed("ful")


@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("how", ["selective", "full"])
@pytest.mark.parametrize("order", ["one_f_one_b", "zero_bubble_h1"])
def test_it_commutes_with_tensor_parallelism(how, sequence, overlap, order):
    order = function("clustersim.workloads.pipelines", order)(2, 2)
    share = sharded(GPT, 4, sequence_parallel=sequence)
    beside = {"tp": Overlap(overlap)}
    schedule = compute(share, order, micro_batch_size=B, stages=stages_of(share, 2), optimizer="adam", overlap=beside)
    before = tensor_parallel(recompute(schedule, share, how, micro_batch_size=B), share, 4)
    after = recompute(tensor_parallel(schedule, share, 4), share, how, micro_batch_size=B)
    check(before)
    assert before.programs == after.programs


@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("sequence", [False, True])
def test_a_full_recomputation_runs_the_ops_of_the_forward_pass_again(sequence, overlap):
    """An order that recomputes by itself lowers the layers anew; the pass copies their ops."""
    share = sharded(GPT, 4, sequence_parallel=sequence)
    plain, by_itself = Order.parse("0F0,0B0"), Order.parse("0F0,0R0,0B0")
    options = {"micro_batch_size": B, "overlap": {"tp": Overlap(overlap)}}
    copied = recompute(compute(share, plain, **options), share, "full", micro_batch_size=B).programs[0]
    lowered = compute(share, by_itself, **options).programs[0]

    def again(program):
        ops = (op for op in program.ops if op.action.phase == "R" and op.layer not in ("embedding", "head"))
        return {op.name: replace(op, allocates={}, frees={}) for op in ops}

    assert again(copied) == again(lowered)


@pytest.mark.parametrize("how", ["none", "selective", "full"])
@pytest.mark.parametrize("name", ORDERS)
def test_every_order_runs_with_every_choice(name, how):
    order = function("clustersim.workloads.pipelines", name)(2, 4)
    if any(action.phase == "R" for row in order.rows for action in row):
        how = "none"
    what = transformer(replace(SHAPE, num_layers=order.stages))
    share = sharded(what, 2, sequence_parallel=True)
    schedule = compute(share, order, micro_batch_size=1, stages=stages_of(share, order.stages))
    times = []
    for early in (True, False):
        made = recompute(schedule, share, how, micro_batch_size=1) if early else schedule
        made = pipeline_parallel(made, share, micro_batch_size=1)
        made = tensor_parallel(made, share, 2)
        made = made if early else recompute(made, share, how, micro_batch_size=1)
        check(made)
        times.append(simulate(made, uniform(gpus=4, hosts=0, bandwidth=1e9, latency=1e-6)).step_time)
    assert times[0] == pytest.approx(times[1])


def test_flash_attention_has_its_kernel_run_again_for_little():
    flash = model("llama2_7b", "bf16")
    flash = transformer(
        replace(flash.shape, attention=replace(flash.shape.attention, kind="flash"), num_layers=1, seq_length=256)
    )
    schedule = recomputed("selective", what=flash)
    again = [op for op in schedule.programs[0].ops if op.action.phase == "R"]
    assert [len(op.kernels) for op in again] == [1, 1]
    assert again[0].allocates == {"activations": 4 * B * flash.shape.heads * 256}


@pytest.mark.parametrize("drop", [False, True])
def test_an_early_stop_leaves_out_what_the_backward_pass_does_not_need(drop):
    """The last product, 8 h^2 of 24 h^2 a token, and the residual sum behind it; dropout has a mask to make again."""
    what = transformer(replace(SHAPE, dropout=drop))
    schedule = compute(what, one_f_one_b(1, 2), micro_batch_size=B)
    whole, early = (recompute(schedule, what, "full", micro_batch_size=B, early_stop=stop) for stop in (False, True))
    check(early)
    left_out = 0 if drop else 2 * L * B * S * 2 * H * 4 * H
    assert hardware_flops(whole) - hardware_flops(early) == left_out
    assert bound(early) == bound(whole)


def test_an_early_stop_leaves_out_the_exchange_of_the_last_product():
    what = sharded(transformer(replace(SHAPE, dropout=False)), 2)
    schedule = tensor_parallel(compute(what, one_f_one_b(1, 2), micro_batch_size=B), what, 2)
    whole, early = (recompute(schedule, what, "full", micro_batch_size=B, early_stop=s) for s in (False, True))
    check(early)

    def exchanges(made):
        return sum(isinstance(op, Collective) and op.action.phase == "R" for op in made.programs[0].ops)

    assert exchanges(whole) == 2 * exchanges(early) > 0
