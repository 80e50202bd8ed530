"""Gradients of programs that hold several stages, or update several times: whose buckets, and who waits for them."""

from dataclasses import replace

import pytest

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Collective, Compute
from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.workloads.architectures.timed_models import unit_model
from clustersim.workloads.data_parallel.buckets import Weights
from clustersim.workloads.data_parallel.gradients import updated_stages, weights_by_stage
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import parameter_tensors
from clustersim.workloads.parallelism.ddp import data_parallel
from clustersim.workloads.parallelism.zero import zero
from clustersim.workloads.pipelines.interleaved import interleaved


def collectives(program):
    return [op for op in program.ops if isinstance(op, Collective)]


def updates(program):
    return {op.name: op.after for op in program.ops if isinstance(op, Compute) and op.action.phase == "O"}


def virtual(what, micro_batches=2):
    """Two ranks with two stages each: stages 0 and 2, 1 and 3."""
    return compute(
        what, interleaved(2, micro_batches, 2), micro_batch_size=1, stages=[[layer] for layer in what.layers]
    )


def test_each_stage_of_a_program_fills_buckets_of_its_own():
    what = unit_model(4, 1, 2, parameters=4000)
    schedule = data_parallel(virtual(what), what, 2, bucket=1e9)
    check(schedule)
    first = [(str(op.action), op.nbytes, op.after) for op in collectives(schedule.programs[0])]
    assert first == [("2B1", 4000.0, ("2B1.layer 2",)), ("0B1", 4000.0, ("0B1.layer 0",))]
    # on one stream, the last reduction is the end of all
    assert updates(schedule.programs[0])["0O"][-1] == "0B1.bucket0"


def test_without_overlap_all_stages_are_reduced_at_the_end():
    what = unit_model(4, 1, 2, parameters=4000)
    schedule = data_parallel(virtual(what), what, 2, overlap=False)
    check(schedule)
    for program in schedule.programs:
        (op,) = collectives(program)
        assert (op.nbytes, program.ops[-2].name) == (8000.0, op.name)


def test_each_update_of_an_order_waits_for_the_gradients_of_its_own_stage():
    what = unit_model(2, 1, 2, parameters=2000)
    order = Order.parse("0F0,1F0,1B0,0B0,1O0,0O0,0F1,1F1,1B1,1O1,0B1,0O1")
    base = compute(what, order, micro_batch_size=1, stages=[[layer] for layer in what.layers])
    program = data_parallel(base, what, 2).programs[0]
    assert [op.name for op in collectives(program)] == ["1B0.bucket0", "0B0.bucket0", "1B1.bucket0", "0B1.bucket0"]
    waited = {name: after[-1] for name, after in updates(program).items()}
    assert waited == {"1O0": "1B0.bucket0", "0O0": "0B0.bucket0", "1O1": "1B1.bucket0", "0O1": "0B1.bucket0"}
    gathers = [op for op in collectives(zero(base, what, 2, stage=1).programs[0]) if op.kind == "all_gather"]
    assert [(op.name, op.nbytes) for op in gathers] == [(f"{name}.gather0", 4000.0) for name in waited]


def test_one_update_at_the_end_is_for_all_stages_of_its_rank():
    what = unit_model(4, 1, 2, parameters=4000)
    assert [updated_stages(program) for program in virtual(what).programs] == [{"0O": {0, 2}}, {"1O": {1, 3}}]


def test_the_last_stage_of_a_pipeline_holds_a_copy_of_what_is_tied():
    what = replace(unit_model(4, 1, 2, parameters=4000), tied_parameters=600)
    held = [weights_by_stage(program, what) for program in virtual(what).programs]
    assert held[0] == {
        0: [Weights("layer 0", parameter_tensors(1000))],
        2: [Weights("layer 2", parameter_tensors(1000))],
    }
    assert held[1] == {
        1: [Weights("layer 1", parameter_tensors(1000))],
        3: [Weights("layer 3", parameter_tensors(1000, 600))],
    }


def test_a_layer_that_the_model_has_not_is_told():
    what = unit_model(4, 1, 2, parameters=4000)
    other = Model("other", what.layers[:2], sample_bytes=0.0)
    with pytest.raises(ScheduleError, match=r"stage 0: other has no layer layer 2"):
        data_parallel(compute(what, Order.parse("0F0,0B0"), micro_batch_size=1), other, 2)
