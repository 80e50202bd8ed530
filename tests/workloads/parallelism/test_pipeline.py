"""Pipelines on the simulator: bubbles as theory has them, messages where stages meet, no deadlock in any order."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.simulate import simulate
from simulator.errors import ScheduleError
from simulator.lookup import function, names
from simulator.schedule import Collective, Recv, Send
from simulator.schedule.check import check
from topologies.uniform import uniform
from workloads.compute import compute
from workloads.gradients.tied_embeddings import tied_embeddings
from workloads.parallelism.pipeline import pipeline_parallel
from workloads.specification import model
from workloads.stages import stages_of
from workloads.unit import unit_model

ORDERS = names("workloads.pipelines")


def pipeline(order, what):
    schedule = compute(what, order, micro_batch_size=1, stages=stages_of(what, order.stages))
    schedule = pipeline_parallel(schedule, what, micro_batch_size=1)
    check(schedule)
    return schedule


def step_time(name, stages, micro_batches, *virtual, forward=1.0, backward=2.0, activations=0.0, bandwidth=1e9):
    order = function("workloads.pipelines", name)(stages, micro_batches, *virtual)
    what = unit_model(order.stages, forward, backward, activations=activations)
    cluster = uniform(gpus=stages, hosts=0, bandwidth=bandwidth, latency=0.0)
    return simulate(pipeline(order, what), cluster).step_time


counts = {"p": st.integers(1, 6), "m": st.integers(1, 10), "f": st.floats(0.1, 3.0), "b": st.floats(0.1, 3.0)}


@settings(deadline=None, max_examples=40)
@given(name=st.sampled_from(["gpipe", "one_f_one_b"]), **counts)
def test_bubble_of_gpipe_and_1f1b(name, p, m, f, b):
    # (p - 1) / (m + p - 1): m + p - 1 slots of one forward and one backward
    assert step_time(name, p, m, forward=f, backward=b) == pytest.approx((m + p - 1) * (f + b), rel=1e-9)


@settings(deadline=None, max_examples=30)
@given(p=st.integers(2, 4), rounds=st.integers(1, 3), v=st.integers(1, 3), f=st.floats(0.1, 3.0))
def test_bubble_of_interleaved(p, rounds, v, f):
    m = p * rounds
    # Narayanan et al. 2021: (p - 1) / (v m + p - 1) of the step
    assert step_time("interleaved", p, m, v, forward=f, backward=2 * f) == pytest.approx((v * m + p - 1) * 3 * f)


@settings(deadline=None, max_examples=15)
@given(p=st.integers(1, 6), m=st.integers(1, 4))
def test_naive_leaves_one_stage_in_p_at_work(p, m):
    assert step_time("naive", p, m) == pytest.approx(p * m * 3.0)


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("micro_batches", [8, 16])
def test_every_order_runs_with_messages_that_take_time(name, micro_batches):
    free = step_time(name, 4, micro_batches)
    assert step_time(name, 4, micro_batches, activations=1e8) > free


def test_each_boundary_is_crossed_once_forward_and_once_backward():
    order = function("workloads.pipelines", "one_f_one_b")(4, 8)
    what = unit_model(4, 1.0, 2.0, activations=1e6)
    schedule = pipeline(order, what)
    sends = [op for _, op in schedule.ops() if isinstance(op, Send)]
    assert len(sends) == 2 * 3 * 8
    assert {op.nbytes for op in sends} == {1e6}
    timeline = simulate(schedule, uniform(gpus=4, hosts=0, bandwidth=1e9, latency=0.0))
    assert timeline.axis_bytes == {"pp": 48e6}


def test_stages_on_one_rank_send_nothing_to_each_other():
    order = function("workloads.pipelines", "zero_bubble_v")(2, 4)
    schedule = pipeline(order, unit_model(4, 1.0, 2.0, activations=1e6))
    # the V turns on the last rank: stages 1 and 2 are both there
    assert not [
        op
        for _, op in schedule.ops()
        if isinstance(op, Send | Recv) and op.name.startswith(("1F", "2B", "2I")) and isinstance(op, Send)
    ]


@pytest.mark.parametrize("name", ORDERS)
def test_receives_stand_in_the_senders_order(name):
    order = function("workloads.pipelines", name)(4, 8)
    schedule = pipeline(order, unit_model(order.stages, 1.0, 2.0, activations=1e6))
    for sender, program in enumerate(schedule.programs):
        for receiver, other in enumerate(schedule.programs):
            sent = [op.action for op in program.ops if isinstance(op, Send) and op.peer == receiver]
            taken = [op.action for op in other.ops if isinstance(op, Recv) and op.peer == sender]
            assert sent == taken


def test_tied_embeddings_are_reduced_between_the_ends():
    gpt2 = model("gpt2", "fp32")
    order = function("workloads.pipelines", "one_f_one_b")(4, 4)
    schedule = tied_embeddings(pipeline(order, gpt2), gpt2)
    check(schedule)
    found = [
        (rank, op) for rank, program in enumerate(schedule.programs) for op in program.ops if isinstance(op, Collective)
    ]
    assert [(rank, op.nbytes) for rank, op in found] == [(0, 4 * 50257 * 768), (3, 4 * 50257 * 768)]


def test_other_axes_may_be_there_before():
    order = function("workloads.pipelines", "one_f_one_b")(2, 2)
    what = unit_model(2, 1.0, 2.0)
    schedule = compute(what, order, micro_batch_size=1, stages=stages_of(what, 2))
    early = pipeline_parallel(schedule, what, micro_batch_size=1).replicate("dp", 2)
    late = pipeline_parallel(schedule.replicate("dp", 2), what, micro_batch_size=1)
    assert early.programs == late.programs
    with pytest.raises(ScheduleError, match="wants one program for each coordinate of pp"):
        pipeline_parallel(replace(schedule, program_of=(1, 0)), what, micro_batch_size=1)
