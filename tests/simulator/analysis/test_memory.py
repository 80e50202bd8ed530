from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.simulator.analysis import memory
from clustersim.simulator.analysis.timeline import Columns, Timeline
from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Collective, Compute, Op
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from tests.simulator.conftest import crossbar


def holding(name: str, stream: str = "compute", takes: float = 0.0, gives: float = 0.0, after: str = "") -> Op:
    return Compute(
        name=name, stream=stream, kernels=(measured(1.0),), after=(after,) if after else (),
        allocates={"activations": takes} if takes else {}, frees={"activations": gives} if gives else {},
    )  # fmt: skip


Row = tuple[int, int, float, float, float]
"""(op, step, ready, begin, end)."""


def alone(ops: list[Op], rows: list[Row], resident: dict[str, float] | None = None) -> Timeline:
    schedule = Schedule(Mesh(1, {}), (Program("all", tuple(ops), resident or {}),), (0,))
    return Timeline.unfolded(schedule, [Columns.of(rows)])


def test_a_curve_steps_at_begins_and_ends() -> None:
    ops = [holding("a", takes=3.0), holding("b", gives=3.0)]
    line = alone(ops, [(0, 0, 0.0, 1.0, 2.0), (1, 0, 2.0, 2.0, 5.0)], {"parameters": 10.0})
    held = memory.curve(line, 0)
    assert held.times.tolist() == [0.0, 1.0, 5.0]
    assert held.total.tolist() == [10.0, 13.0, 10.0]


def test_what_ends_frees_before_what_begins_allocates() -> None:
    ops = [holding("a", takes=3.0, gives=3.0), holding("b", takes=3.0, gives=3.0)]
    one_after_the_other = alone(ops, [(1, 0, 0.0, 1.0, 2.0), (0, 0, 0.0, 0.0, 1.0)])
    assert memory.peak(one_after_the_other).peak.nbytes == 3.0


def test_an_op_of_no_length_still_holds_what_it_allocates() -> None:
    line = alone([holding("a", takes=3.0, gives=3.0)], [(0, 0, 1.0, 1.0, 1.0)])
    assert memory.peak(line).peak == memory.Peak(3.0, 0, 1.0, {"activations": 3.0})


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=10))
def test_the_integral_is_the_sum_over_ops_of_bytes_times_duration(spans: list[tuple[int, int, int]]) -> None:
    ops = [holding(f"op {i}", f"stream {i}", float(size), float(size)) for i, (_, _, size) in enumerate(spans)]
    rows = [(i, 0, float(b), float(b), float(b + length)) for i, (b, length, _) in enumerate(spans)]
    held = memory.curve(alone(ops, rows), 0)
    byte_seconds = np.sum(held.total[:-1] * np.diff(held.times))
    assert byte_seconds == sum(length * size for _, length, size in spans)
    assert held.total[-1] == 0
    at_each_moment = [sum(s for b, length, s in spans if b <= t < b + length) for t in range(20)]
    assert held.total.max() == max(at_each_moment)


def test_peak_names_rank_moment_and_categories(ddp: Callable[[int], Timeline]) -> None:
    found = memory.peak(ddp(4))
    assert found.peak.rank == 0
    assert found.peak.nbytes == pytest.approx(4e8 + 4e8 + 8e8 + 12e8)
    assert found.peak.time == pytest.approx(0.002 + 11 * 0.003)
    assert found.peak.by_category["activations"] == pytest.approx(12e8)
    assert "host.buffers" not in found.peak.by_category
    # four ranks of one server hold 10 MB each in its memory
    assert found.host_bytes == 4e7


def test_gpipe_keeps_every_micro_batch_on_every_stage(gpipe: Callable[[int, int], Timeline]) -> None:
    assert memory.peak(gpipe(4, 8)).stages == (8e9,) * 4


def test_program_order_bounds_what_a_simulation_needs(
    gpipe: Callable[[int, int], Timeline], ddp: Callable[[int], Timeline]
) -> None:
    for line in (gpipe(3, 5), ddp(4)):
        bound, found = memory.bound(line.schedule, ranks_per_host=4), memory.peak(line)
        assert bound.peak.nbytes >= found.peak.nbytes
        assert all(np.array(bound.stages) >= np.array(found.stages))
        assert bound.host_bytes >= found.host_bytes


def test_program_order_is_exact_where_nothing_overlaps() -> None:
    ops = [holding("a", takes=5.0), holding("b", takes=2.0, gives=2.0), holding("c", takes=1.0, gives=6.0)]
    bound = memory.bound(Schedule(Mesh(1, {}), (Program("all", tuple(ops)),), (0,)))
    assert (bound.peak.nbytes, bound.stages) == (7.0, (7.0,))


def test_an_overlapped_transfer_counts_until_its_stream_goes_on_or_someone_waits_for_it() -> None:
    gather = [
        Collective(name=f"gather {i}", stream="dp", kind="all_gather", over="dp", nbytes=1.0,
                   allocates={"buffers": 4.0}, frees={"buffers": 4.0})
        for i in range(3)
    ]  # fmt: skip
    between = [Compute(name=f"F{i}", action=Action("F", 0, i), kernels=(measured(1.0),)) for i in range(3)]
    ops = (gather[0], between[0], gather[1], between[1], replace(between[2], after=("gather 1",)), gather[2])
    bound = memory.bound(Schedule(Mesh.regular({"dp": 1}), (Program("all", ops),), (0,)))
    assert bound.peak.nbytes == 4.0


def test_a_server_on_the_host_fills_the_host_alone() -> None:
    programs = Program("gpu", (), {"parameters": 1.0}), Program("server", (), {"parameters": 7.0}, on="host")
    schedule = Schedule(Mesh(2, {}), programs, (0, 1))
    found = memory.peak(Timeline.unfolded(schedule, [Columns.of([])] * 2))
    assert (found.peak.nbytes, found.host_bytes) == (1.0, 7.0)
    assert memory.bound(schedule).host_bytes == 7.0


def test_what_begins_a_rounding_before_another_ends_does_not_meet_it() -> None:
    """Folded FSDP runs had such begins: of two shards one was held, and two were counted."""
    ops = [holding("a", takes=3.0, gives=3.0), holding("b", "other", takes=3.0, gives=3.0)]
    early = 1.0 - 3e-17 * 4
    assert early < 1.0
    line = alone(ops, [(0, 0, 0.0, 0.0, 1.0), (1, 0, 0.0, early, 2.0)])
    assert memory.peak(line).peak.nbytes == 3.0
    assert memory.peak(alone(ops, [(0, 0, 0.0, 0.0, 1.0), (1, 0, 0.0, 1.0 - 1e-9, 2.0)])).peak.nbytes == 6.0


def test_at_one_instant_frees_come_first_then_ops_of_no_length_then_allocations() -> None:
    ops = [
        holding("ends", takes=5.0, gives=5.0),
        holding("begins", "second", takes=4.0, gives=4.0),
        holding("passes", "third", takes=3.0, gives=3.0),
        holding("passes too", "third", takes=2.0, gives=2.0),
    ]
    moment = [(1, 0, 1.0, 1.0, 2.0), (2, 0, 1.0, 1.0, 1.0), (3, 0, 1.0, 1.0, 1.0), (0, 0, 0.0, 0.0, 1.0)]
    held = memory.curve(alone(ops, moment), 0)
    assert held.total.tolist() == [0.0, 5.0, 0.0, 3.0, 0.0, 2.0, 0.0, 4.0, 0.0]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=8), st.data())
def test_rounding_never_changes_a_peak(spans: list[tuple[int, int, int]], data: st.DataObject) -> None:
    ops = [holding(f"op {i}", f"stream {i}", float(size), float(size)) for i, (_, _, size) in enumerate(spans)]
    exact = [(i, 0, float(b), float(b), float(b + length)) for i, (b, length, _) in enumerate(spans)]
    off = st.sampled_from([-1e-15, 0.0, 1e-15])
    rounded = [(i, 0, b + data.draw(off), b + data.draw(off), e + data.draw(off)) for i, _, b, _, e in exact]
    rounded = [(i, step, ready, begin, max(begin, end)) for i, step, ready, begin, end in rounded]
    ops.append(holding("last", "last"))  # as long as the makespan, of which an instant is a share
    one, other = (memory.curve(alone(ops, [*rows, (len(spans), 0, 0.0, 0.0, 12.0)]), 0) for rows in (exact, rounded))
    assert one.total.max() >= max(size for _, _, size in spans)
    # of ops of no length at one instant the order is that of their ends, which rounding may change
    if all(length for _, length, _ in spans):
        assert one.total.max() == other.total.max()


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 3), st.integers(1, 9)), min_size=1, max_size=30))
def test_a_thinned_curve_keeps_its_maximum_and_its_categories(spans: list[tuple[float, float, int]]) -> None:
    ops = [holding(f"op {i}", f"stream {i}", float(size), float(size)) for i, (_, _, size) in enumerate(spans)]
    rows = [(i, 0, b, b, b + length) for i, (b, length, _) in enumerate(spans)]
    held = memory.curve(alone(ops, rows, {"parameters": 2.0}), 0)
    edges = np.linspace(0.0, 13.0, 8)
    thin = held.highest(edges)
    assert len(thin.times) <= 7
    assert thin.total.max() == held.total.max()
    for bin_, (low, high) in enumerate(pairwise(edges)):
        at = held.total[max(0, int(np.searchsorted(held.times, low, "right")) - 1)]
        within = held.total[(held.times >= low) & ((held.times < high) | (bin_ == 6))]
        drawn = thin.total[int(np.searchsorted(thin.times, low, "right")) - 1]
        assert drawn == max([at, *within])
    assert (thin.by_category["parameters"] == 2.0).all()


def on_hosts(representative: list[int], rows: dict[int, list[Row]]) -> float:
    """The peak of the host of four ranks whose ops hold 2 and 3 bytes in its memory."""
    ops = tuple(
        Compute(name=f"op {i}", stream=f"{i}", kernels=(measured(1.0),), allocates={"host.buffers": size},
                frees={"host.buffers": size})
        for i, size in enumerate((2.0, 3.0))
    )  # fmt: skip
    ranks = len(representative)
    schedule = Schedule(Mesh(ranks, {}), (Program("all", ops, {"host.optimizer": 1.0}),), (0,) * ranks)
    columns = {rank: Columns.of(rows[rank]) for rank in set(representative)}
    devices = [f"gpu {rank}" for rank in range(ranks)]
    line = Timeline(schedule, crossbar(ranks), columns, np.array(representative), devices=devices)
    return memory.peak(line).host_bytes


moments = st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 4), st.integers(0, 2))


@given(moments, moments)
def test_the_memory_of_a_host_counts_each_rank_of_a_class(
    one: tuple[int, int, int, int], other: tuple[int, int, int, int]
) -> None:
    def rows(times: tuple[int, int, int, int]) -> list[Row]:
        b0, l0, b1, l1 = map(float, times)
        return [(0, 0, b0, b0, b0 + l0), (1, 0, b1, b1, b1 + l1)]

    apart = {rank: rows(one if rank % 2 == 0 else other) for rank in range(4)}
    folded = on_hosts([0, 1, 0, 1], apart)
    assert folded == on_hosts([0, 1, 2, 3], apart)
    if all(length for length in (*one[1::2], *other[1::2])):
        spans = [(size, *times[2 * i : 2 * i + 2]) for times in (one, other) for i, size in enumerate((2, 3))]
        at = [2 * sum(size for size, b, length in spans if b <= moment < b + length) for moment in range(8)]
        assert folded == 4 + max(at)
