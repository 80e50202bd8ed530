"""What no kernel accounts for is paid once a step and once a message."""

from dataclasses import replace

import pytest

from simulator.engine.simulate import simulate
from simulator.kernel import measured
from simulator.schedule import Compute, Recv
from simulator.schedule.check import check
from topologies import cluster
from workloads.compute import compute
from workloads.fixed_cost import fixed_costs
from workloads.parallelism.ddp import data_parallel
from workloads.parallelism.pipeline import pipeline_parallel
from workloads.pipelines.interleaved import interleaved
from workloads.pipelines.one_f_one_b import one_f_one_b
from workloads.pipelines.pipedream import pipedream
from workloads.stages import stages_of
from workloads.unit import unit_model


def step_time(stages, micro_batches, **costs):
    model = unit_model(stages, 1.0, 2.0)
    schedule = compute(model, one_f_one_b(stages, micro_batches), micro_batch_size=1, stages=stages_of(model, stages))
    schedule = fixed_costs(pipeline_parallel(schedule, model, micro_batch_size=1), **costs)
    check(schedule)
    ideal = {"preset": "uniform", "gpus": stages, "bandwidth": "1 GB/s", "latency": "0 s", "accelerator": "unit"}
    return simulate(schedule, cluster(ideal)).step_time


def test_a_step_costs_once():
    assert step_time(1, 4, step=0.5, exchange=0.25) == 4 * 3.0 + 0.5


def test_each_message_costs_who_waits_for_it():
    # two stages: the last one waits for an activation, the first for a gradient; neither for the other in between
    free, costly = (step_time(2, 1, step=0.0, exchange=exchange) for exchange in (0.0, 0.25))
    assert (free, costly) == (6.0, 6.5)


def test_messages_of_the_last_micro_batch_cost_too():
    model = unit_model(4, 1.0, 2.0)
    schedule = compute(model, interleaved(2, 4, 2), micro_batch_size=1, stages=stages_of(model, 4))
    reduced = data_parallel(pipeline_parallel(schedule, model, micro_batch_size=1), model, 2)
    for program in fixed_costs(reduced, 0.0, 0.25).programs:
        messages = {op.name for op in program.ops if isinstance(op, Recv)}
        paid = [op for op in program.ops if isinstance(op, Compute) and measured(0.25) in op.kernels]
        assert len(paid) == len(messages) == sum(not messages.isdisjoint(op.after) for op in paid)


@pytest.mark.parametrize("micro_batches", [4, 9])
def test_no_cost_changes_nothing(micro_batches):
    assert step_time(3, micro_batches, step=0.0, exchange=0.0) == (micro_batches + 2) * 3.0


def test_an_asynchronous_order_pays_a_step_once_a_batch():
    model = unit_model(2, 1.0, 2.0)
    schedule = compute(model, pipedream(2, 12), micro_batch_size=1, stages=stages_of(model, 2))
    for program in fixed_costs(replace(schedule, batches=3), 0.5, 0.0).programs:
        assert [op.name[1:] for op in program.ops if measured(0.5) in getattr(op, "kernels", ())] == [
            "O3.host",
            "O7.host",
            "O11.host",
        ]
