"""Shifts become messages between neighbours, with a program for each coordinate of the axis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.mesh import Axis, Mesh
from clustersim.simulator.schedule.ops import Compute, Recv, Send
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from clustersim.workloads.operators.by_coordinate import ShiftRecv, ShiftSend, with_neighbours


def shifting(axis="cp", distance=1, role="rank"):
    common = {"action": Action("F", 0, 0), "over": axis, "distance": distance, "nbytes": 1e6}
    send = ShiftSend(name="send", stream="to", **common)
    receive = ShiftRecv(name="receive", stream="from", **common)
    return Program(role, (send, receive, Compute(name="next", kernels=(), after=("send", "receive"))))


def mesh(sizes):
    return Mesh.regular(sizes)


@given(st.integers(2, 6), st.integers(1, 3), st.integers(-3, 3).filter(bool))
def test_each_rank_sends_to_the_rank_that_far_on(size, others, distance):
    if distance % size == 0:
        distance = 1
    ranks = size * others
    schedule = with_neighbours(Schedule(mesh({"dp": others, "cp": size}), (shifting(distance=distance),), (0,) * ranks))
    check(schedule)
    assert len(schedule.programs) == size
    for rank in range(ranks):
        send, receive, _ = schedule.program(rank).ops
        coordinate = rank // others
        assert isinstance(send, Send)
        assert isinstance(receive, Recv)
        assert (send.peer, receive.peer) == ((coordinate + distance) % size, (coordinate - distance) % size)


def test_a_ring_takes_as_long_as_one_message():
    schedule = with_neighbours(Schedule(mesh({"cp": 4}), (shifting(),), (0,) * 4))
    timeline = simulate(schedule, uniform(4, bandwidth=1e9, latency=1e-3, hosts=0))
    assert timeline.step_time == pytest.approx(1e-3 + 1e6 / 1e9)


def test_programs_that_do_not_shift_stay():
    plain = Program("plain", (Compute(name="work", kernels=()),))
    schedule = Schedule(Mesh(3, {"cp": Axis(((0, 1),))}), (shifting(), plain), (0, 0, 1))
    made = with_neighbours(schedule)
    assert [program.role for program in made.programs] == ["rank, cp 0", "rank, cp 1", "plain"]
    assert made.program(2) is plain
    assert with_neighbours(made) is made


def test_what_has_no_neighbour_is_told():
    with pytest.raises(ScheduleError, match="an operator shifts over cp; the axes are dp"):
        with_neighbours(Schedule(mesh({"dp": 2}), (shifting(),), (0, 0)))
    with pytest.raises(ScheduleError, match="rank shifts over cp, but is alone on that axis"):
        with_neighbours(Schedule(mesh({"cp": 1}), (shifting(),), (0,)))
