"""A replay runs every kind of schedule on real processes, op by op as in the simulation."""

import numpy as np
import pytest

from clustersim.scenarios.accuracy.validation import modelled
from clustersim.scenarios.run.running import simulated
from clustersim.simulator.hardware.kernel import Kernel, matmul, measured, memory_bound
from clustersim.simulator.replay import comparison
from clustersim.simulator.replay.replay import BrokenReplayError, replay, scaled
from clustersim.simulator.replay.replay import measured as timeline_of
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective, Compute, Copy, Recv, Send
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from tests.extras import require
from tests.simulator.replay.benches import shortest
from tests.simulator.replay.schedules import KINDS, scenario

require("torch")


def replayed(schedule, seconds=None, **options):
    zeros = [[0.0] * len(schedule.program(rank).ops) * schedule.steps for rank in range(schedule.mesh.world_size)]
    return replay(schedule, seconds or zeros, timeout=300, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_schedule_is_replayed_in_order(kind):
    gpus, parallelism, model = KINDS[kind]
    one = scenario(gpus, parallelism, model)
    schedule = one.schedule()
    seconds = modelled(one, schedule)
    real = replay(schedule, seconds, repeat=1, timeout=300).median
    ours = simulated(one, schedule)
    assert comparison.same_order(ours, real)
    for rank in range(schedule.mesh.world_size):
        own = real.of(rank)
        assert len(own.op) == len(schedule.program(rank).ops) * schedule.steps
        assert ((own.ready <= own.begin) & (own.begin <= own.end)).all()
        waits_are_held(schedule, real, rank)
        # a sleep is never too short, however busy the machine is; here one stream of each rank computes
        assert real.makespan >= sum(seconds[rank])


def waits_are_held(schedule, timeline, rank):
    spans = {span.op.name: span for span in timeline.spans(rank)}
    for span in spans.values():
        for name in span.op.after:
            assert spans[name].end <= span.end
            if spans[name].op.stream != span.op.stream:
                assert spans[name].end <= span.ready


def test_sleeping_takes_as_long_as_asked():
    ops = tuple(Compute(name=f"op {number}", kernels=(measured(2e-3),)) for number in range(50))
    schedule = Schedule(Mesh.regular({"dp": 1}), (Program("rank", ops),), (0,))

    def steps():
        times = replayed(schedule, [[2e-3] * 50], repeat=5).step_times
        assert all(time >= 0.1 for time in times)
        return [min(times)]

    # late wakings do not add up: on a quiet machine the step ends a millisecond late
    (step,) = shortest(steps, lambda times: times[0] >= 0.11)
    assert step < 0.11


def test_streams_run_at_once():
    ops = tuple(
        Compute(name=f"{stream} {number}", stream=stream, kernels=(measured(10e-3),))
        for number in range(5)
        for stream in ("compute", "other")
    )
    schedule = Schedule(Mesh.regular({"dp": 1}), (Program("rank", ops),), (0,))

    def steps():
        return [min(replayed(schedule, [[10e-3] * 10], repeat=5).step_times)]

    (step,) = shortest(steps, lambda times: times[0] >= 0.075)
    assert step < 0.075


@pytest.mark.parametrize("compute", ["spin", "kernels"])
def test_other_ways_to_compute(compute):
    kernels = (matmul(8, 8, 8), memory_bound(1024.0, launches=2), measured(1e-3))
    ops = (Compute(name="a", kernels=kernels), Compute(name="b", kernels=kernels, on="host", after=("a",)))
    schedule = Schedule(Mesh.regular({"dp": 1}), (Program("rank", ops),), (0,))
    assert min(replayed(schedule, [[1e-3] * 2], compute=compute).step_times) >= 2e-3


def test_fused_attention_is_executed():
    """Forward and backward passes of torch's own, of the shape that the kernel has; a stream keeps its thread."""
    kernels = tuple(
        Kernel(1.0, 1.0, (heads, 16, 12, 8), "fp32", attention=which)
        for heads, which in ((4, "forward"), (10, "backward"))
    )
    schedule = Schedule(Mesh.regular({"dp": 1}), (Program("rank", (Compute(name="a", kernels=kernels),)),), (0,))
    assert all(time > 0 for time in replayed(schedule, [[0.0]], compute="kernels", repeat=3).step_times)


def test_steps_are_repeated():
    op = Collective(name="sum", kind="all_reduce", over="dp", nbytes=100.0)
    schedule = Schedule(Mesh.regular({"dp": 2}), (Program("rank", (op,)),), (0, 0), steps=3)
    real = replayed(schedule, repeat=1).median
    assert real.of(0).step.tolist() == [0, 1, 2]


def test_messages_meet_by_action_in_whatever_order_they_are_received():
    from clustersim.simulator.schedule.pipeline_order import Action

    one, two = Action("F", 0, 1), Action("F", 0, 2)
    sends = [
        Send(name=f"send {action}", action=action, over="pp", peer=1, nbytes=8.0, stream=f"to {action}")
        for action in (one, two)
    ]
    receives = [
        Recv(name=f"receive {action}", action=action, over="pp", peer=0, nbytes=8.0, stream="from")
        for action in (two, one)
    ]
    schedule = Schedule(
        Mesh.regular({"pp": 2}), (Program("first", tuple(sends)), Program("last", tuple(receives))), (0, 1)
    )
    assert len(replayed(schedule, repeat=1).median.of(1).op) == 2


def test_copies_go_between_device_and_host():
    ops = (Copy(name="out", nbytes=1e6, to="host"), Copy(name="in", nbytes=1e6, to="gpu"))
    schedule = Schedule(Mesh.regular({"dp": 1}), (Program("rank", ops),), (0,))
    assert replayed(schedule, repeat=1).median.of(0).op.tolist() == [0, 1]


def test_a_communication_begins_when_its_last_partner_is_ready():
    op = Collective(name="sum", kind="all_reduce", over="dp", nbytes=8.0)
    schedule = Schedule(Mesh.regular({"dp": 2}), (Program("rank", (op,)),), (0, 0))
    timeline = timeline_of(schedule, [np.array([[1.0, 5.0]]), np.array([[3.0, 4.0]])])
    assert [span[3:] for rank in range(2) for span in timeline.spans(rank)] == [(1.0, 3.0, 5.0), (3.0, 3.0, 4.0)]
    assert timeline.step_time == 5.0


def test_a_message_ends_for_both_when_its_receiver_has_it():
    send = Send(name="send", over="pp", peer=1, nbytes=8.0)
    receive = Recv(name="receive", over="pp", peer=0, nbytes=8.0)
    schedule = Schedule(Mesh.regular({"pp": 2}), (Program("first", (send,)), Program("last", (receive,))), (0, 1))
    timeline = timeline_of(schedule, [np.array([[2.0, 2.5]]), np.array([[1.0, 4.0]])])
    assert [span[3:] for rank in range(2) for span in timeline.spans(rank)] == [(2.0, 2.0, 4.0), (1.0, 2.0, 4.0)]


def test_finished_repetitions_of_a_broken_replay_are_kept():
    op = Compute(name="nap", kernels=(measured(0.05),))
    schedule = Schedule(Mesh.regular({"dp": 1}), (Program("rank", (op,)),), (0,))
    replayed(schedule, repeat=1)  # from now on there is a fork server
    for seconds in (3, 12, 48):  # the start of a process counts, and takes longer on a busy machine
        with pytest.raises(BrokenReplayError, match=f"no end after {seconds} s: rank 0 is still at work") as caught:
            replay(schedule, [[0.05]], repeat=20 * seconds + 1, timeout=seconds)
        if caught.value.timelines:
            break
    assert 1 <= len(caught.value.timelines) <= 20 * seconds
    assert caught.value.timelines[-1].step_time >= 0.05


def test_scaling_touches_communication_alone():
    gpus, parallelism, model = KINDS["3-D"]
    schedule = scenario(gpus, parallelism, model).schedule()
    half = scaled(schedule, 0.5)
    check(half)
    for (_, before), (_, after) in zip(schedule.ops(), half.ops(), strict=True):
        assert getattr(after, "nbytes", 0.0) == 0.5 * getattr(before, "nbytes", 0.0)
        assert after.name == before.name
