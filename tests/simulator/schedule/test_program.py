"""Blocks: a template is stored once and filled in for each micro-batch; passes work on templates."""

from dataclasses import replace

import pytest

from clustersim.simulator.hardware.kernel import Kernel
from clustersim.simulator.schedule.ops import Collective, Compute, Copy, Delay, Recv, Send
from clustersim.simulator.schedule.pipeline_order import PLACEHOLDER, Action
from clustersim.simulator.schedule.program import OpBlock, Program, TemplatedOps
from clustersim.simulator.schedule.records import changed
from clustersim.workloads.operators.by_coordinate import ShiftSend

FORWARD = (
    Compute(name="0F□.a", action=Action("F", 0, PLACEHOLDER), layer="a", kernels=()),
    Compute(name="0F□.b", action=Action("F", 0, PLACEHOLDER), layer="b", kernels=(), after=("0F□.a", "start")),
)
START = (Compute(name="start", kernels=()),)


def program():
    return Program("stage 0", TemplatedOps([OpBlock(START), OpBlock(FORWARD, 0), OpBlock(FORWARD, 7)]))


def test_a_block_prints_with_its_micro_batch():
    assert str(program()).splitlines() == [
        "program stage 0",
        "   start: compute 0 kernels [compute]",
        "   0F0.a: compute 0 kernels [compute]",
        "   0F0.b: compute 0 kernels [compute] after 0F0.a, start",
        "   0F7.a: compute 0 kernels [compute]",
        "   0F7.b: compute 0 kernels [compute] after 0F7.a, start",
    ]


def test_ops_are_a_sequence_that_knows_its_length_and_any_place():
    ops = program().ops
    assert len(ops) == 5
    assert [op.name for op in ops] == [ops[i].name for i in range(5)]
    assert ops[-1].action == Action("F", 0, 7)
    assert [op.name for op in ops[1:3]] == ["0F0.a", "0F0.b"]
    assert ops == tuple(ops)
    with pytest.raises(IndexError):
        ops[5]


def test_a_template_is_looked_at_once():
    seen = []
    assert program().per_op(lambda op: seen.append(op.name) or op.layer) == [None, "a", "b", "a", "b"]
    assert seen == ["start", "0F□.a", "0F□.b"]
    assert [(len(ops), times) for ops, times in program().templates()] == [(1, 1), (2, 2)]


def test_column_equals_per_op():
    def known(op):
        return {"a": 1, "b": 2}.get(op.layer, 0)

    assert program().column(known, int).tolist() == program().per_op(known) == [0, 1, 2, 1, 2]
    assert not len(Program("idle", ()).column(known))


def test_a_column_may_count_only_some_kinds_of_ops():
    program = Program("a", (Delay(name="x", seconds=3.0), Compute(name="y", kernels=())))
    assert program.column(lambda op: op.seconds, only=(Delay,)).tolist() == [3.0, 0.0]


def test_a_program_knows_its_computations_and_servers():
    ops = (
        Delay(name="wait", seconds=1.0),
        Compute(name="sum", kernels=(), server="cpu 1"),
        Compute(name="update", kernels=(), on="host", releases="cpu 0"),
    )
    program = Program("a", ops)
    assert [op.name for op in program.computations()] == ["sum", "update"]
    assert program.servers() == ["cpu 1", "cpu 0"]
    assert program.computes_on_host
    assert not Program("b", ops[:2]).computes_on_host


def test_mapping_templates_equals_mapping_all_ops():
    def change(op):
        yield op
        if op.layer == "b":
            yield Collective(name=f"{op.name}.sum", action=op.action, kind="all_reduce", over="tp", nbytes=8.0)

    mapped = program().map_ops(change)
    plain = replace(program(), ops=tuple(program().ops)).map_ops(change)
    assert mapped.ops == plain.ops
    assert mapped.ops[-1].name == "0F7.b.sum"


def test_only_named_ops_are_mapped():
    """The others are kept as they are, and *change* does not see them."""
    seen = []

    def change(op):
        seen.append(op.name)
        yield replace(op, stream="other")

    changed = program().map_ops(change, only={"start"})
    assert seen == ["start"]
    assert [op.stream == "other" for op in changed.ops] == [op.name == "start" for op in program().ops]


def test_ops_are_found_by_kind_and_phase():
    ops = (
        Delay(name="wait", seconds=1.0),
        Compute(name="0F0.a", action=Action("F", 0, 0), kernels=()),
        Compute(name="0O", action=Action("O", 0), kernels=()),
    )
    program = Program("a", ops)
    assert [op.name for op in program.distinct(Delay)] == ["wait"]
    assert [op.name for op in program.distinct(Delay, Compute)] == [op.name for op in program.distinct()]
    assert [op.name for op in program.in_phase("O")] == ["0O"]


def test_materialised_micro_batches_can_differ():
    written = program().materialise({7})
    assert written.ops == program().ops
    last = written.map_ops(lambda op: () if op.name == "0F7.b" else (op,))
    assert [op.name for op in last.ops] == ["start", "0F0.a", "0F0.b", "0F7.a"]


def test_micro_batches_with_equal_templates_are_changed_together():
    parts = []

    def change(part):
        parts.append([op.name for op in part.ops])
        return part.map_ops(lambda op: (replace(op, stream="other"),))

    changed = program().by_micro_batch(change)
    assert parts == [["start"], ["0F□.a", "0F□.b"]]
    assert {op.stream for op in changed.ops} == {"other"}
    assert [op.name for op in changed.ops] == [op.name for op in program().ops]


def test_with_ops_keeps_the_blocks():
    blank = replace(program(), ops=TemplatedOps([OpBlock(START), OpBlock(FORWARD, 3)]))
    changed = blank.with_ops([replace(op, stream=str(number)) for number, op in enumerate(blank.ops)])
    assert [len(block.ops) for block in changed.blocks] == [1, 2]
    assert [op.stream for op in changed.ops] == ["0", "1", "2"]


def test_changed_ops_are_those_that_replace_makes() -> None:
    kernels = (Kernel(nbytes=4.0),)
    ops = [
        Compute(name="F", action=Action("F", 0, 1), layer="a", after=("x",), kernels=kernels, on="host", priority=2),
        Delay(name="wait", seconds=1.0, releases="server"),
        Send(name="send", over="pp", peer=1, nbytes=8.0, buffered=True),
        Recv(name="receive", over="pp", peer=0, nbytes=8.0),
        Collective(name="sum", kind="all_reduce", over="dp", nbytes=8.0, allocates={"buffers": 8.0}),
        Copy(name="copy", nbytes=8.0, to="host"),
        # its class adds no slots to those of its base
        ShiftSend(name="shift", over="cp", distance=1, nbytes=8.0),
    ]
    action, after = Action("B", 2, 3), ("y", "z")
    for op in ops:
        assert changed(op, name="new", action=action, after=after) == replace(
            op, name="new", action=action, after=after
        )
    assert changed(ops[0], action=None).action is None
    assert ops[0].name == "F"
