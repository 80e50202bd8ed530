"""Schedules: other numberings of ranks, and a violation of each check rule with its op marked."""

from dataclasses import replace

import pytest

from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.check import check
from clustersim.simulator.schedule.mesh import Axis, Mesh
from clustersim.simulator.schedule.ops import Collective, Compute, Delay, Recv, Send
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule

F0, B0 = Action("F", 0, 0), Action("B", 0, 0)


def work(name, action=None, **fields):
    return Compute(name=name, action=action, kernels=(measured(1.0),), **fields)


def reduce(name="reduce", nbytes=8.0, **fields):
    return Collective(name=name, kind="all_reduce", over="dp", nbytes=nbytes, **fields)


def pair(first, second, axis="dp"):
    """Two ranks on one axis, each with its own ops."""
    mesh = Mesh(2, {axis: Axis(((0, 1),))})
    return Schedule(mesh, (Program("one", tuple(first)), Program("two", tuple(second))), (0, 1))


def single(*ops):
    return Schedule(Mesh.regular({"dp": 1}), (Program("only", ops),), (0,))


RULES = [
    (single(work("a"), work("a")), "only, a: another op has the same name"),
    (single(work("a", after=("b",)), work("b")), "only, a: after b, which comes later"),
    (single(work("a", after=("c",))), "only, a: after c, which does not exist"),
    (single(work("b", B0), work("f", F0)), "only, b: B precedes F of the same micro-batch"),
    (single(work("b", B0)), "only, b: B precedes F of the same micro-batch"),
    (
        single(work("f", F0), work("b", B0), work("r", Action("R", 0, 0))),
        "only, b: B precedes R of the same micro-batch",
    ),
    (single(work("f", F0, allocates={"activations": 5.0})), "only, f: 5 B of activations are allocated and not freed"),
    (single(replace(reduce(), over="tp")), "only, reduce: no axis tp; the mesh has dp"),
    (single(replace(reduce(), kind="all_redcue")), "only, reduce: all_redcue is not a collective"),
    (single(replace(reduce(), root=1)), "only, reduce: coordinate 1 is not on the axis dp of 1"),
    (pair([reduce()], [reduce(nbytes=9.0)]), "two, reduce: does not agree with one"),
    (pair([reduce()], []), "one, reduce: two of its group has no such collective on stream compute"),
    (
        pair([Send(name="s", over="dp", peer=1, nbytes=4)], [Recv(name="r", over="dp", peer=0, nbytes=5)]),
        "one, s: two, its peer, receives 5 B",
    ),
    (pair([Send(name="s", over="dp", peer=1, nbytes=4)], []), "one, s: two, its peer, has no such receive"),
    (
        pair(
            [Send(name="s", over="dp", peer=1, nbytes=4, buffered=True)], [Recv(name="r", over="dp", peer=0, nbytes=5)]
        ),
        "one, s: two, its peer, receives 5 B",
    ),
    (single(Delay(name="d", seconds=-1.0)), "only, d: a delay of -1 s; it must be finite and not negative"),
    (single(Delay(name="d", seconds=float("inf"))), "only, d: a delay of inf s"),
    (single(work("a", priority=1)), "only, a: priority 1 without a server"),
    (single(work("a", server="s", holds=True)), "only, a: holds s, and no later op of its stream releases it"),
    (single(work("a", holds=True)), "only, a: holds a server and names none"),
    (single(work("a", releases="s")), "only, a: releases s, which no op before it on its stream holds"),
    (
        single(work("a", server="s", holds=True), work("b", server="s", holds=True), work("c", releases="s")),
        "only, b: holds s twice",
    ),
    (pair([], [Recv(name="r", over="dp", peer=0, nbytes=4)]), "two, r: one, its peer, has no such send"),
]


@pytest.mark.parametrize(("schedule", "message"), RULES)
def test_a_violation_is_reported_with_the_op_marked(schedule, message):
    with pytest.raises(ScheduleError) as caught:
        check(schedule)
    text = str(caught.value)
    assert text.startswith(message)
    name = message.split(",")[1].split(":")[0].strip()
    assert f">> {name}: " in text


def test_a_rank_off_the_axis_is_told():
    mesh = Mesh(2, {"dp": Axis(((0,),))})
    with pytest.raises(ScheduleError, match="rank 1 runs it, but is not on the axis dp"):
        check(Schedule(mesh, (Program("all", (reduce(),)),), (0, 0)))


def test_a_schedule_without_violations_passes():
    sends = [work("f", F0), Send(name="s", over="dp", peer=1, nbytes=4, action=F0, stream="out"), reduce()]
    check(pair(sends, [Recv(name="r", over="dp", peer=0, nbytes=4, action=F0), reduce()]))


def test_only_what_surrounds_the_op_is_printed():
    program = Program("long", tuple(work(f"op{i}") for i in range(100)))
    assert program.printed(50).splitlines()[:2] == ["program long", "   ... 44 ops before"]
    assert len(program.printed(50).splitlines()) == 16


def test_arranged_puts_the_fastest_axis_first_and_keeps_who_talks_to_whom():
    schedule = single(reduce()).replicate("tp", 2).replicate("pp", 3)
    programs = tuple(Program(f"stage {s}", ()) for s in range(3))
    schedule = replace(schedule, programs=programs, program_of=(0, 0, 1, 1, 2, 2))
    arranged = schedule.arranged("pp", "tp")
    assert arranged.mesh.axes["pp"].groups == ((0, 1, 2), (3, 4, 5))
    assert arranged.program_of == (0, 1, 2, 0, 1, 2)
    assert arranged.arranged("tp", "pp").program_of == schedule.program_of


def test_axes_that_do_not_tell_ranks_apart_cannot_arrange_them():
    with pytest.raises(ScheduleError, match="axes tp give two ranks the same coordinates"):
        single(reduce()).replicate("tp", 2).replicate("pp", 3).arranged("tp")


def test_programs_must_cover_the_mesh():
    with pytest.raises(ScheduleError, match="program_of names 1 ranks, but the mesh has 2"):
        Schedule(Mesh.regular({"dp": 2}), (Program("all", ()),), (0,))


def test_degrees_by_program():
    mesh = Mesh(5, {"dp": Axis(((0, 1, 2), (3,)))})
    programs = (Program("first", ()), Program("second", ()), Program("alone", ()))
    schedule = Schedule(mesh, programs, (0, 0, 0, 1, 2))
    assert schedule.degrees("dp") == [3, 1, 1]
    assert schedule.degrees("tp") == [1, 1, 1]
    with pytest.raises(ScheduleError, match=r"first runs in groups of different size on dp: \[1, 3\]"):
        replace(schedule, program_of=(0, 0, 0, 0, 2)).degrees("dp")
