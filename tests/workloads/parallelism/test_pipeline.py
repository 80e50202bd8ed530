"""Pipelines on the simulator: bubbles as theory has them, messages where stages meet, no deadlock in any order."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.reading.lookup import function, names
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.ops import Collective, Compute, Recv, Send
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from clustersim.workloads.architectures.shape import Mlp, SelfAttention, Shape
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.architectures.timed_models import unit_model
from clustersim.workloads.architectures.transformer import transformer
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.operators.stages import stages_of
from clustersim.workloads.parallelism._tied_embeddings import tied_embeddings
from clustersim.workloads.parallelism.pipeline import pipeline_parallel
from clustersim.workloads.parallelism.tensor import sharded, tensor_parallel

ORDERS = names("clustersim.workloads.pipelines")


def pipeline(order, what):
    schedule = compute(what, order, micro_batch_size=1, stages=stages_of(what, order.stages))
    schedule = pipeline_parallel(schedule, what, micro_batch_size=1)
    check(schedule)
    return schedule


def step_time(name, stages, micro_batches, *virtual, forward=1.0, backward=2.0, activations=0.0, bandwidth=1e9):
    order = function("clustersim.workloads.pipelines", name)(stages, micro_batches, *virtual)
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
    order = function("clustersim.workloads.pipelines", "one_f_one_b")(4, 8)
    what = unit_model(4, 1.0, 2.0, activations=1e6)
    schedule = pipeline(order, what)
    sends = [op for _, op in schedule.ops() if isinstance(op, Send)]
    assert len(sends) == 2 * 3 * 8
    assert {op.nbytes for op in sends} == {1e6}
    timeline = simulate(schedule, uniform(gpus=4, hosts=0, bandwidth=1e9, latency=0.0))
    assert timeline.axis_bytes == {"pp": 48e6}


def test_stages_on_one_rank_send_nothing_to_each_other():
    order = function("clustersim.workloads.pipelines", "zero_bubble_v")(2, 4)
    schedule = pipeline(order, unit_model(4, 1.0, 2.0, activations=1e6))
    # the V turns on the last rank: stages 1 and 2 are both there
    assert not [
        op
        for _, op in schedule.ops()
        if isinstance(op, Send | Recv) and op.name.startswith(("1F", "2B", "2I")) and isinstance(op, Send)
    ]


@pytest.mark.parametrize("name", ORDERS)
def test_receives_stand_in_the_senders_order(name):
    order = function("clustersim.workloads.pipelines", name)(4, 8)
    schedule = pipeline(order, unit_model(order.stages, 1.0, 2.0, activations=1e6))
    for sender, program in enumerate(schedule.programs):
        for receiver, other in enumerate(schedule.programs):
            sent = [op.action for op in program.ops if isinstance(op, Send) and op.peer == receiver]
            taken = [op.action for op in other.ops if isinstance(op, Recv) and op.peer == sender]
            assert sent == taken


def test_tied_embeddings_are_reduced_between_the_ends():
    gpt2 = model("gpt2", "fp32")
    order = function("clustersim.workloads.pipelines", "one_f_one_b")(4, 4)
    schedule = tied_embeddings(pipeline(order, gpt2), gpt2)
    check(schedule)
    found = [
        (rank, op) for rank, program in enumerate(schedule.programs) for op in program.ops if isinstance(op, Collective)
    ]
    assert [(rank, op.nbytes) for rank, op in found] == [(0, 4 * 50257 * 768), (3, 4 * 50257 * 768)]


def test_other_axes_may_be_there_before():
    order = function("clustersim.workloads.pipelines", "one_f_one_b")(2, 2)
    what = unit_model(2, 1.0, 2.0)
    schedule = compute(what, order, micro_batch_size=1, stages=stages_of(what, 2))
    early = pipeline_parallel(schedule, what, micro_batch_size=1).replicate("dp", 2)
    late = pipeline_parallel(schedule.replicate("dp", 2), what, micro_batch_size=1)
    assert early.programs == late.programs
    with pytest.raises(ScheduleError, match="wants one program for each coordinate of pp"):
        pipeline_parallel(replace(schedule, program_of=(1, 0)), what, micro_batch_size=1)


SHAPE = Shape(4, 64, 32, 128, SelfAttention(4, 4), Mlp(256), precision="bf16")
BOUNDARY = 2 * 3 * 32 * 64
"""Bytes of b s h activations in 16 bits, micro-batches of 3."""


def over_tensors_and_stages(tp, pp, micro_batches, *, scatter_gather=True, sequence_parallel=False):
    share = sharded(transformer(SHAPE), tp, sequence_parallel=sequence_parallel)
    order = function("clustersim.workloads.pipelines", "one_f_one_b")(pp, micro_batches)
    schedule = compute(share, order, micro_batch_size=3, stages=stages_of(share, pp))
    schedule = tensor_parallel(schedule, share, tp)
    schedule = pipeline_parallel(schedule, share, micro_batch_size=3, scatter_gather=scatter_gather)
    check(schedule)
    return schedule


@pytest.mark.parametrize(("tp", "pp", "m"), [(2, 2, 3), (4, 2, 2), (4, 4, 5)])
def test_scattered_boundaries_cross_once_in_all_and_are_gathered(tp, pp, m):
    """Megatron-LM, scatter_gather_tensors_in_pipeline: the tp ranks together send each boundary once."""
    cluster = uniform(gpus=tp * pp, hosts=0, bandwidth=1e9, latency=0.0)
    whole, parts = (
        simulate(over_tensors_and_stages(tp, pp, m, scatter_gather=one), cluster).axis_bytes for one in (False, True)
    )
    crossings = 2 * (pp - 1) * m
    assert whole["pp"] == tp * crossings * BOUNDARY
    assert parts["pp"] == crossings * BOUNDARY
    # an all-gather sends (t - 1) / t of the vector from each of t ranks
    assert parts["tp"] - whole["tp"] == pytest.approx(crossings * (tp - 1) * BOUNDARY)


@pytest.mark.parametrize("name", ["one_f_one_b", "interleaved", "zero_bubble_v", "gpipe"])
def test_parts_are_gathered_between_receive_and_first_computation(name):
    order = function("clustersim.workloads.pipelines", name)(2, 4)
    what = replace(SHAPE, num_layers=order.stages)
    share = sharded(transformer(what), 2)
    schedule = compute(share, order, micro_batch_size=3, stages=stages_of(share, order.stages))
    schedule = tensor_parallel(schedule, share, 2)
    schedule = pipeline_parallel(schedule, share, micro_batch_size=3, scatter_gather=True)
    check(schedule)
    for program in schedule.programs:
        ops = list(program.ops)
        received = {op.name for op in ops if isinstance(op, Recv)}
        gathers = [op for op in ops if op.name.endswith(".gather")]
        assert {op.nbytes for op in ops if isinstance(op, Send | Recv)} == {BOUNDARY / 2}
        assert [(op.kind, op.over, op.nbytes) for op in gathers] == [("all_gather", "tp", BOUNDARY)] * len(received)
        assert {name for op in gathers for name in op.after} == received
        for place, op in enumerate(ops):
            if op in gathers:
                waiting = ops[place + 1]
                assert waiting is next(one for one in ops if isinstance(one, Compute) and one.action == op.action)
                assert set(op.after) <= set(waiting.after)
    assert simulate(schedule, uniform(gpus=4, hosts=0, bandwidth=1e9, latency=1e-6)).step_time > 0


def test_a_shard_of_the_sequence_is_sent_as_it_is():
    one, other = (
        over_tensors_and_stages(4, 2, 3, sequence_parallel=True, scatter_gather=given) for given in (False, True)
    )
    assert one.programs == other.programs
    assert {op.nbytes for _, op in one.ops() if isinstance(op, Send)} == {BOUNDARY / 4}
