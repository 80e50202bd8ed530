"""What no kernel accounts for is paid once a step and once a message."""

from dataclasses import replace

import pytest

from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.reading.lookup import names
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Compute, Delay, Recv
from clustersim.simulator.simulate import simulate
from clustersim.topologies import cluster
from clustersim.workloads.architectures.shape import Mlp, SelfAttention, Shape
from clustersim.workloads.architectures.timed_models import unit_model
from clustersim.workloads.architectures.transformer import transformer
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.operators.stages import stages_of
from clustersim.workloads.parallelism.ddp import data_parallel
from clustersim.workloads.parallelism.pipeline import pipeline_parallel
from clustersim.workloads.pipelines.interleaved import interleaved
from clustersim.workloads.pipelines.one_f_one_b import one_f_one_b
from clustersim.workloads.pipelines.pipedream import pipedream
from clustersim.workloads.software_stack import HostTime, aliases, fixed_costs, software


def step_time(stages, micro_batches, load=0.0, exchange=0.0):
    model = unit_model(stages, 1.0, 2.0)
    schedule = compute(model, one_f_one_b(stages, micro_batches), micro_batch_size=1, stages=stages_of(model, stages))
    schedule = fixed_costs(pipeline_parallel(schedule, model, micro_batch_size=1), model, HostTime(load=load), exchange)
    check(schedule)
    ideal = {"preset": "uniform", "gpus": stages, "bandwidth": "1 GB/s", "latency": "0 s", "accelerator": "unit"}
    return simulate(schedule, cluster(ideal)).step_time


def test_a_step_costs_once():
    assert step_time(1, 4, load=0.5, exchange=0.25) == 4 * 3.0 + 0.5


def test_each_message_costs_who_waits_for_it():
    # two stages: the last one waits for an activation, the first for a gradient; neither for the other in between
    free, costly = (step_time(2, 1, exchange=exchange) for exchange in (0.0, 0.25))
    assert (free, costly) == (6.0, 6.5)


def test_messages_of_the_last_micro_batch_cost_too():
    model = unit_model(4, 1.0, 2.0)
    schedule = compute(model, interleaved(2, 4, 2), micro_batch_size=1, stages=stages_of(model, 4))
    reduced = data_parallel(pipeline_parallel(schedule, model, micro_batch_size=1), model, 2)
    for program in fixed_costs(reduced, model, HostTime(), 0.25).programs:
        messages = {op.name for op in program.ops if isinstance(op, Recv)}
        paid = [op for op in program.ops if isinstance(op, Compute) and measured(0.25) in op.kernels]
        assert len(paid) == len(messages) == sum(not messages.isdisjoint(op.after) for op in paid)


@pytest.mark.parametrize("micro_batches", [4, 9])
def test_no_cost_changes_nothing(micro_batches):
    assert step_time(3, micro_batches, exchange=0.0) == (micro_batches + 2) * 3.0


def test_an_asynchronous_order_pays_a_step_once_a_batch():
    model = unit_model(2, 1.0, 2.0)
    schedule = compute(model, pipedream(2, 12), micro_batch_size=1, stages=stages_of(model, 2))
    for program in fixed_costs(replace(schedule, batches=3), model, HostTime(load=0.5), 0.0).programs:
        assert [op.name[1:] for op in program.ops if isinstance(op, Delay)] == [
            "O3.host",
            "O7.host",
            "O11.host",
        ]


def gpt(layers, hidden):
    return transformer(Shape(layers, hidden, 64, 512, SelfAttention(8, 8), Mlp(4 * hidden)))


def delays(model, host, stages=1):
    schedule = compute(model, one_f_one_b(stages, 2 * stages), micro_batch_size=1, stages=stages_of(model, stages))
    programs = fixed_costs(schedule, model, host, 0.0).programs
    return [sum(op.seconds for op in program.ops if isinstance(op, Delay)) for program in programs]


def test_twice_as_many_tensors_double_the_time_of_the_host_for_tensors_only():
    # a layer of a GPT has 12 tensors and 12 h^2 + 13 h parameters: four times the layers at half the width have about
    # as many parameters
    few, many = gpt(2, 512), gpt(8, 256)
    assert many.parameters == pytest.approx(few.parameters, rel=0.2)
    outside = sum(len(layer.tensors) for layer in few.layers if layer.name in ("embedding", "head"))
    for model, layers in ((few, 2), (many, 8)):
        tensors = 12 * layers + outside
        assert delays(model, HostTime(tensor=1e-3)) == pytest.approx([1e-3 * tensors])
        assert delays(model, HostTime(load=0.5)) == [0.5]
        assert delays(model, HostTime(1e-3, 0.5)) == pytest.approx([0.5 + 1e-3 * tensors])


def test_each_stage_pays_for_its_own_tensors():
    model = gpt(4, 64)
    whole = sum(len(layer.tensors) for layer in model.layers) + 1  # the copy of the tied embedding
    assert sum(delays(model, HostTime(tensor=1.0), stages=2)) == whole


@pytest.mark.parametrize("name", [*names("clustersim.workloads.software"), *aliases()])
def test_the_host_time_of_a_stack_scales_with_tensors_and_not_with_jobs(name):
    stack = software(name)
    host = HostTime.of(stack)
    assert host.tensor == stack.tensor_operators * 8e-6 + stack.tensor_seconds
    assert host.load <= 0.02
