"""A comparison of two timelines counts each communication once, and detects ops in another order."""

from math import isnan

import pytest

from clustersim.scenarios.run.running import simulated
from clustersim.simulator.analysis.timeline import Columns, Timeline
from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.replay import comparison
from clustersim.simulator.replay.comparison import OpTime, Swap
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective, Compute
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from tests.simulator.replay.schedules import KINDS, scenario

OPS = (
    Compute(name="a", kernels=(measured(1.0),)),
    Collective(name="sum", kind="all_reduce", over="dp", nbytes=8.0, stream="dp"),
    Compute(name="b", kernels=(measured(1.0),)),
)
SCHEDULE = Schedule(Mesh.regular({"dp": 2}), (Program("rank", OPS),), (0, 0))


def timeline(*ranks):
    """(ready, begin, end) of the three ops of both ranks."""
    columns = [Columns.of((op, 0, *times) for op, times in enumerate(rank)) for rank in ranks]
    return Timeline.unfolded(SCHEDULE, columns)


SIMULATED = timeline(*[[(0, 0, 1), (0, 2, 3), (4, 4, 5)]] * 2)


def test_a_communication_lasts_until_its_last_partner_has_it():
    real = timeline([(0, 0, 2), (0, 2, 3), (4, 4, 5)], [(0, 0, 4), (2, 2, 6), (6, 6, 7)])
    communication, computation = comparison.by_kind(SIMULATED, real)
    assert (communication.what, communication.count, communication.nbytes) == ("dp all_reduce", 1, 8.0)
    assert (communication.simulated, communication.measured, communication.error) == (1.0, 4.0, -0.75)
    assert (computation.what, computation.count) == ("computation", 4)
    assert (computation.simulated, computation.measured) == (1.0, (2 + 1 + 4 + 1) / 4)


def test_each_op_of_each_rank():
    real = timeline([(0, 0, 2), (0, 2, 3), (4, 4, 5)], [(0, 0, 4), (2, 2, 6), (6, 6, 7)])
    times = list(comparison.op_times(SIMULATED, real))
    assert times[:2] == [OpTime(0, "a", 1.0, 2.0), OpTime(0, "sum", 1.0, 1.0)]
    assert times[-2:] == [OpTime(1, "sum", 1.0, 4.0), OpTime(1, "b", 1.0, 1.0)]


def test_overlapping_ops_are_not_swapped():
    assert comparison.swaps(SIMULATED, timeline(*[[(0, 0, 1), (0, 2, 4.5), (4, 4, 5)]] * 2)) == []


def test_the_pair_with_the_largest_gap_is_reported():
    late = [(0, 0, 1), (5, 5, 6), (4, 4, 5)]
    real = timeline([(0, 0, 1), (0, 2, 3), (4, 4, 5)], late)
    assert comparison.swaps(SIMULATED, real) == [Swap(1, "sum", "b", 1.0)]
    assert comparison.same_order(SIMULATED, real)


def test_another_order_on_a_stream_is_detected():
    assert not comparison.same_order(SIMULATED, timeline([(4, 4, 5), (0, 2, 3), (0, 0, 1)], [(0, 0, 1)] * 3))


def test_a_time_of_zero_has_no_error():
    assert isnan(comparison.relative_error(1.0, 0.0))


@pytest.mark.parametrize("kind", KINDS)
def test_a_timeline_equals_itself(kind):
    one = scenario(*KINDS[kind])
    itself = simulated(one, one.schedule())
    assert comparison.same_order(itself, itself)
    assert comparison.swaps(itself, itself) == []
    assert all(line.simulated == line.measured for line in comparison.by_kind(itself, itself))
