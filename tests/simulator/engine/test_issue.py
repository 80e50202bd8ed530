"""Programs as they are issued: runs of a template, their turns, and what stands beside them."""

from simulator.engine.issue import enclosed, issue
from simulator.order import PLACEHOLDER, Action
from simulator.program import TemplatedOps
from simulator.schedule import Block, Collective, Compute, Program, Recv


def work(name, *after, action=None):
    return Compute(name=name, action=action, kernels=(), after=after)


def sums(name, *after, stream="tp"):
    return Collective(name=name, kind="all_reduce", over="tp", nbytes=8.0, stream=stream, after=after)


def runs(program, private=()):
    """(names, how many of them beside) of each run of the compute stream."""
    turns = issue(program, True, private).streams["compute"]
    return [
        ([program.ops[turn.first + place].name for place in turn.run.ops], len(turn.run.ops) - turn.run.pattern.main)
        for turn in turns
    ]


def test_what_is_written_out_may_wait_for_any_micro_batch():
    action = Action("F", 0, PLACEHOLDER)
    receive = Recv(name="0F□.recv", action=action, over="pp", peer=1, nbytes=8.0, stream="from")
    blocks = [Block((receive, work("0F□.a", "0F□.recv", action=action)), number) for number in (0, 1)]
    program = Program("stage 0", TemplatedOps([*blocks, Block((work("end", "0F0.recv", "0F1.recv"),))]))
    last = issue(program, False).streams["compute"][-1]
    assert [program.ops[number].name for number in last.waits] == ["0F0.recv", "0F1.recv"]


def test_collectives_forked_and_joined_stand_beside_their_run():
    ops = (work("a"), sums("s", "a"), work("b", "a"), sums("t", "b"), work("c", "s", "t"))
    assert enclosed(Program("rank", ops), "tp")
    assert runs(Program("rank", ops), ("tp",)) == [(["a", "b", "c", "s", "t"], 2)]


def test_what_is_not_joined_or_joined_behind_one_that_blocks_is_not_enclosed():
    assert not enclosed(Program("rank", (work("a"), sums("s", "a"), work("b", "a"))), "tp")
    blocked = (work("a"), sums("s", "a"), sums("t", "a", stream="compute"), work("b", "s"))
    assert not enclosed(Program("rank", blocked), "tp")
    assert not enclosed(Program("rank", (sums("s"), work("a", "s"))), "tp")


def test_a_run_ends_where_another_stream_waits_for_it():
    reduced = Collective(name="r", kind="all_reduce", over="dp", nbytes=8.0, stream="dp", after=("a",))
    assert runs(Program("rank", (work("a"), reduced, work("b"), work("c", "r")))) == [
        (["a"], 0),
        (["b"], 0),
        (["c"], 0),
    ]
