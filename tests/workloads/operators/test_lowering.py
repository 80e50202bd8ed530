"""Segments become ops: what blocks, what runs beside kernels, and what the next computation waits for."""

import pytest

from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.reading.errors import ScheduleError
from clustersim.simulator.schedule.ops import Collective, Compute
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.workloads.operators.by_coordinate import ShiftRecv, ShiftSend
from clustersim.workloads.operators.lowering import Overlap, lowered
from clustersim.workloads.operators.model import OperatorLayer
from clustersim.workloads.operators.operator import SHIFT, Exchange, Operator, Segment

SUM = Exchange("all_reduce", 80.0, "tp", divisible=True)
GATHER = Exchange("all_gather", 40.0, "cp")
RING = Exchange(SHIFT, 10.0, "cp")


class Given(Operator):
    def __init__(self, *segments):
        self.given = segments

    def forward(self, samples):
        return tuple(kernel for segment in self.given for kernel in segment.kernels)

    def backward_input(self, samples):
        return ()

    def segments(self, phase, samples):
        return self.given


def kernels(*seconds):
    return tuple(map(measured, seconds))


def ops(*segments, **overlap):
    layer = OperatorLayer("layer", "layer", (Given(*segments),), 0.0)
    return lowered(Action("F", 0, 0), layer, 1, overlap)


def shown(made):
    """(name, seconds or kind, stream, what it waits for), names without their layer."""

    def what(op):
        if isinstance(op, Compute):
            return sum(kernel.seconds for kernel in op.kernels)
        return op.kind if isinstance(op, Collective) else type(op).__name__

    def suffix(name):
        return name.removeprefix("0F0.layer")

    return [(suffix(op.name), what(op), op.stream, tuple(map(suffix, op.after))) for op in made]


def test_a_layer_without_exchanges_is_one_op():
    assert shown(ops(Segment(kernels(1.0)), Segment(kernels(2.0)))) == [("", 3.0, "compute", ())]


def test_exchanges_before_and_after_block():
    assert shown(ops(Segment(kernels(1.0), before=(GATHER,), after=(SUM,)), Segment(kernels(2.0)))) == [
        (".0", 0, "compute", ()),
        (".1 all_gather", "all_gather", "compute", ()),
        (".2", 1.0, "compute", ()),
        (".3 all_reduce", "all_reduce", "compute", ()),
        ("", 2.0, "compute", ()),
    ]


def test_an_exchange_within_begins_with_the_kernels_and_the_next_ones_wait():
    assert shown(ops(Segment(kernels(1.0), within=(GATHER,)), Segment(kernels(2.0)))) == [
        (".0", 0, "compute", ()),
        (".1", 1.0, "compute", ()),
        (".2 all_gather", "all_gather", "cp", (".0",)),
        ("", 2.0, "compute", (".2 all_gather",)),
    ]


def test_an_exchange_within_waits_for_one_before():
    made = shown(ops(Segment(kernels(1.0), before=(SUM,), within=(GATHER,))))
    assert made[:4] == [
        (".0", 0, "compute", ()),
        (".1 all_reduce", "all_reduce", "compute", ()),
        (".2", 0, "compute", ()),
        (".3", 1.0, "compute", ()),
    ]
    assert made[4] == (".4 all_gather", "all_gather", "cp", (".2",))


def test_a_ring_sends_and_receives_beside_each_block():
    """Three blocks, two hops: each hop begins with a block, and the next block waits for it."""
    block = Segment(kernels(1.0))
    hop = Segment(kernels(1.0), within=(RING,))
    made = ops(hop, hop, block)
    assert shown(made) == [
        (".0", 0, "compute", ()),
        (".1", 1.0, "compute", ()),
        (".2 send", "ShiftSend", "cp to +1", (".0",)),
        (".2 receive", "ShiftRecv", "cp from -1", (".0",)),
        (".4", 0, "compute", (".2 send", ".2 receive")),
        (".5", 1.0, "compute", ()),
        (".6 send", "ShiftSend", "cp to +1", (".4",)),
        (".6 receive", "ShiftRecv", "cp from -1", (".4",)),
        ("", 1.0, "compute", (".6 send", ".6 receive")),
    ]
    held = [(op.allocates.get("buffers", 0), op.frees.get("buffers", 0)) for op in made]
    assert [sum(column) for column in zip(*held, strict=True)] == [20.0, 20.0]


def test_a_ring_that_blocks():
    made = ops(Segment(kernels(1.0), before=(RING, RING)))
    assert [isinstance(op, ShiftSend | ShiftRecv) for op in made] == [False, True, True, False, True, True, False]
    assert shown(made)[-1][3] == (".4 send", ".4 receive")


def test_part_of_a_divisible_exchange_runs_beside_its_product():
    made = ops(Segment(kernels(1.0), after=(SUM,)), tp=Overlap(0.25))
    assert shown(made) == [
        (".0", 0, "compute", ()),
        (".1", 1.0, "compute", ()),
        (".2 all_reduce", "all_reduce", "tp", (".0",)),
        (".3", 0, "compute", (".2 all_reduce",)),
        (".4 all_reduce", "all_reduce", "compute", ()),
        ("", 0, "compute", ()),
    ]
    assert [op.nbytes for op in made if isinstance(op, Collective)] == [20.0, 60.0]
    with pytest.raises(ScheduleError, match=r"overlap = 2: must be between 0"):
        Overlap(2)


def test_an_all_to_all_has_bytes_for_each_peer():
    dispatch = Exchange("all_to_all", 6.0, "ep", per_peer=(1.0, 5.0))
    made = ops(Segment(kernels(1.0), before=(dispatch.times(2),)))
    assert [(op.nbytes, op.per_peer) for op in made if isinstance(op, Collective)] == [(12.0, (2.0, 10.0))]


def test_overlap_is_that_of_the_axis():
    assert shown(ops(Segment(kernels(1.0), after=(SUM,)), cp=Overlap(0.5))) == shown(
        ops(Segment(kernels(1.0), after=(SUM,)))
    )
