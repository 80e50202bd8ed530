"""Fixed methods against Megatron-LM's rules by hand, and what a program runs against the sequence it was made from."""

from dataclasses import replace

import pytest

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.reading.lookup import function, names
from clustersim.simulator.schedule.check import check
from clustersim.workloads.architectures.shape import Mlp, SelfAttention, Shape
from clustersim.workloads.architectures.timed_models import unit_model
from clustersim.workloads.architectures.transformer import transformer
from clustersim.workloads.memory.chain_sequence import ChainSequence, fixed_sequence, observed, saving_all
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.memory.recompute import recompute, recompute_by
from clustersim.workloads.operators.stages import stages_of
from clustersim.workloads.pipelines.gpipe import gpipe
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b

SHAPE = Shape(8, 256, 128, 1024, SelfAttention(4, 4), Mlp(1024), precision="bf16")
GPT = transformer(SHAPE)
ENDS = [False, True, True, True, False]


@pytest.mark.parametrize(
    ("method", "layers", "text"),
    [
        ("full", 1, "F1e F2c F3c F4c F5e Loss BLoss B5 F4e B4 F3e B3 F2e B2 B1"),
        ("uniform", 1, "F1e F2c F3c F4c F5e Loss BLoss B5 F4e B4 F3e B3 F2e B2 B1"),
        # the last group is smaller
        ("uniform", 2, "F1e F2c F3n F4c F5e Loss BLoss B5 F4e B4 F2e F3e B3 B2 B1"),
        ("uniform", 3, "F1e F2c F3n F4n F5e Loss BLoss B5 F2e F3e F4e B4 B3 B2 B1"),
        # the first layers, one by one
        ("block", 2, "F1e F2c F3c F4e F5e Loss BLoss B5 B4 F3e B3 F2e B2 B1"),
    ],
)
def test_a_method_is_megatrons(method, layers, text):
    assert str(fixed_sequence(method, ENDS, layers)) == text


def test_more_layers_than_the_stage_has_are_refused():
    with pytest.raises(ScheduleError, match="num_layers = 4 is more than the 3 layers of a stage"):
        fixed_sequence("block", ENDS, 4)


def program_of(how, what=GPT, **options):
    schedule = compute(what, one_f_one_b(1, 2), micro_batch_size=2, stages=stages_of(what, 1))
    schedule = recompute(schedule, what, how, micro_batch_size=2, **options)
    check(schedule)
    return schedule.programs[0]


NAMES = [layer.name for layer in GPT.layers]
REPEATABLE = [False, *[True] * 8, False]


@pytest.mark.parametrize(("how", "layers"), [("full", 1), ("uniform", 2), ("uniform", 3), ("block", 5)])
def test_the_program_runs_the_sequence(how, layers):
    program = program_of(how, num_layers=layers)
    assert observed(program, 0, NAMES) == fixed_sequence(how, REPEATABLE, layers)
    assert observed(program, 0, NAMES, micro_batch=1) == fixed_sequence(how, REPEATABLE, layers)


@pytest.mark.parametrize("how", [("uniform", 2), ("block", 1)], ids=str)
@pytest.mark.parametrize("name", [name for name in names("clustersim.workloads.pipelines") if name != "varuna"])
def test_every_order_bears_groups_and_blocks(name, how):
    order = function("clustersim.workloads.pipelines", name)(2, 4)
    schedule = compute(GPT, order, micro_batch_size=1, stages=stages_of(GPT, order.stages, "balanced"))
    check(recompute(schedule, GPT, how[0], micro_batch_size=1, num_layers=how[1]))


def test_uniform_with_one_layer_is_full():
    assert list(program_of("uniform", num_layers=1).ops) == list(program_of("full").ops)


def test_nested_repetitions_are_ops_of_their_own():
    model = unit_model(3, 1.0, 2.0, activations=1.0)
    text = "F1c F2n F3n Loss BLoss F1c F2n F3e B3 F1c F2e B2 F1e B1"
    schedule = compute(model, one_f_one_b(1, 2), micro_batch_size=1)
    schedule = recompute_by(schedule, model, {0: ChainSequence.parse(text)}, micro_batch_size=1)
    check(schedule)
    assert str(observed(schedule.programs[0], 0, [layer.name for layer in model.layers])) == text
    names = [op.name for op in schedule.programs[0].ops if op.layer == "layer 0" and op.action.micro_batch == 1]
    assert names == ["0F1.layer 0", "0R1.layer 0", "0R1.layer 0 run 2", "0R1.layer 0 run 3", "0B1.layer 0"]


def test_an_order_that_recomputes_its_stage_is_observed_too():
    model = unit_model(2, 1.0, 2.0)
    schedule = compute(model, gpipe(1, 2, recompute=True), micro_batch_size=1)
    names = [layer.name for layer in model.layers]
    assert str(observed(schedule.programs[0], 0, names)) == "F1c F2n Loss BLoss F1e F2e B2 B1"
    assert observed(schedule.programs[0], 0, names, micro_batch=1) == saving_all(2)


def test_early_stop_cuts_the_last_layer_of_a_group_only():
    what = transformer(replace(SHAPE, dropout=False))
    unneeded = what.layers[1].unneeded_forward(2)
    assert unneeded
    whole, stopped = (program_of("uniform", what=what, num_layers=2, early_stop=early) for early in (False, True))

    def kernels(program, layer):
        return sum(len(op.kernels) for op in program.ops if op.layer == layer and op.action.phase == "R")

    assert kernels(stopped, "layer 0") == kernels(whole, "layer 0")
    assert kernels(stopped, "layer 1") == kernels(whole, "layer 1") - 2 * unneeded
