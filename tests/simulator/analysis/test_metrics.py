from collections.abc import Callable

import numpy as np
import pytest

from clustersim.simulator.analysis import metrics
from clustersim.simulator.analysis.timeline import Columns, Timeline
from clustersim.simulator.hardware.kernel import Kernel, measured
from clustersim.simulator.schedule.mesh import Axis, Mesh
from clustersim.simulator.schedule.ops import Collective, Compute, Copy, Delay, Op
from clustersim.simulator.schedule.pipeline_order import Action
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule


def compute(name: str, phase: str | None, flops: float = 0.0) -> Compute:
    action = Action(phase, 0, 0) if phase else None
    return Compute(name=name, action=action, kernels=(Kernel(flops, seconds=1.0),))


def over(name: str, axis: str) -> Collective:
    return Collective(name=name, stream=axis, kind="all_reduce", over=axis, nbytes=1.0)


OPS: tuple[Op, ...] = (
    compute("F", "F", 10.0),
    compute("R", "R", 10.0),
    compute("B", "B", 20.0),
    compute("O", "O"),
    over("inner", "tp"),
    over("outer", "dp"),
    Copy(name="copy", stream="copy", nbytes=1.0, to="host"),
    compute("unnamed", None, 5.0),
)
MESH = Mesh.regular({"tp": 2, "dp": 1})


def timeline(*records: tuple[int, float, float], steps: int = 1) -> Timeline:
    """Both ranks do the same; (op, begin, end), alternating over the steps."""
    schedule = Schedule(MESH, (Program("all", OPS),), (0, 0), steps)
    each = len(records) // steps
    own = Columns.of((op, i // each, begin, begin, end) for i, (op, begin, end) in enumerate(records))
    return Timeline.unfolded(schedule, [own, own])


def test_each_kind_of_time_is_told_apart() -> None:
    parts = metrics.rank_breakdown(
        timeline((0, 0, 2), (1, 2, 3), (2, 3, 7), (4, 6, 8), (5, 7.5, 9), (6, 8, 10), (3, 11, 11.5), (7, 12, 13)), 0
    )
    assert parts == {
        "compute": 2 + 4 + 1,
        "recompute": 1,
        "optimizer": 0.5,
        "exposed_tp": 1,
        "exposed_dp": 1,
        "copy": 1,
        "bubble": 1.5,
    }


def test_only_a_schedule_with_delays_has_a_part_for_them() -> None:
    delay = Delay(name="delay", seconds=1.0)
    assert metrics.part_of(delay) == "host"
    assert "host" not in metrics.keys(Schedule(MESH, (Program("all", OPS),), (0, 0)))
    assert metrics.keys(Schedule(MESH, (Program("all", (*OPS, delay)),), (0, 0)))[-3:] == ("copy", "host", "bubble")


def test_waiting_for_partners_is_bubble() -> None:
    schedule = Schedule(MESH, (Program("all", OPS),), (0, 0))
    waiting = Timeline.unfolded(schedule, [Columns.of([(4, 0, 0.0, 3.0, 4.0)]), Columns.of([(0, 0, 0.0, 0.0, 3.0)])])
    parts = metrics.rank_breakdown(waiting, 0)
    assert (parts["bubble"], parts["exposed_tp"]) == (3.0, 1.0)


def test_of_several_steps_the_first_is_left_out() -> None:
    twice = timeline((0, 0, 5), (2, 5, 9), (0, 9, 10), (2, 11, 13), steps=2)
    assert twice.step_time == 4.0
    parts = metrics.rank_breakdown(twice, 0)
    assert (parts["compute"], parts["bubble"]) == (3.0, 1.0)


@pytest.mark.parametrize("ranks", [1, 4, 7])
def test_breakdown_sums_to_the_step_time_for_every_rank_and_their_mean(
    ddp: Callable[[int], Timeline], ranks: int
) -> None:
    line = ddp(ranks)
    each = [metrics.rank_breakdown(line, rank) for rank in range(ranks)]
    for parts in [*each, metrics.breakdown(line)]:
        assert sum(parts.values()) == pytest.approx(line.step_time, abs=1e-9)
        assert min(parts.values()) >= 0
    for part, mean in metrics.breakdown(line).items():
        assert mean == pytest.approx(sum(one[part] for one in each) / ranks, abs=1e-12)


def test_each_rank_of_a_class_counts() -> None:
    schedule = Schedule(Mesh.regular({"tp": 3}), (Program("all", OPS[:1]),), (0, 0, 0))
    columns = {0: Columns.of([(0, 0, 0.0, 0.0, 1.0)]), 2: Columns.of([(0, 0, 0.0, 0.0, 4.0)])}
    shared = Timeline(schedule, None, columns, np.array([0, 0, 2]))
    assert metrics.breakdown(shared)["compute"] == 2.0


def test_a_host_rank_does_not_count() -> None:
    programs = Program("worker", OPS[:1]), Program("server", (compute("F", "F"),), on="host")
    schedule = Schedule(Mesh(2, {"ps.0": Axis(((1, 0),)), "ps.1": Axis(())}), programs, (0, 1))
    line = Timeline.unfolded(schedule, [Columns.of([(0, 0, 0.0, 0.0, 2.0)]), Columns.of([(0, 0, 0.0, 0.0, 4.0)])])
    parts = metrics.breakdown(line)
    assert parts == {**dict.fromkeys(parts, 0.0), "compute": 2.0, "bubble": 2.0}
    assert "exposed_ps" in parts


def test_gpipe_has_the_bubble_of_its_closed_form(gpipe: Callable[[int, int], Timeline]) -> None:
    """(p - 1) / (m + p - 1) of the time, Huang et al. 2019, where sending is as good as free."""
    line = gpipe(4, 8)
    parts = metrics.breakdown(line)
    unhidden = parts["exposed_pp"] + parts["bubble"]
    assert parts["compute"] == pytest.approx(8 * 0.3)
    # each of the 2 (p - 1) hops on the critical path also takes its 10 ms
    assert unhidden == pytest.approx(3 * 0.3 + 6 * 0.01)
    assert metrics.bubble_fraction(parts) < unhidden / line.step_time


def test_flops_of_the_model_leave_recomputation_out() -> None:
    line = timeline((0, 0, 2), (1, 2, 3), (2, 3, 7))
    assert metrics.model_flops(line.schedule) == 2 * 30
    assert metrics.hardware_flops(line.schedule) == 2 * 40
    assert metrics.flops_per_gpu(line) == pytest.approx((300 / 70, 400 / 70))


def test_a_timeline_that_takes_no_time_uses_nothing() -> None:
    still = Timeline.unfolded(Schedule(MESH, (Program("all", ()),), (0, 0)), [Columns.of([])] * 2)
    assert metrics.flops_per_gpu(still) == (0.0, 0.0)
    assert set(metrics.breakdown(still).values()) == {0.0}
    assert metrics.bubble_fraction(metrics.breakdown(still)) == 0.0


@pytest.mark.parametrize(
    ("kind", "factor"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("all_to_all", 0.875), ("broadcast", 1)],
)
def test_busbw_of_eight_ranks_is_that_of_the_nccl_tests_manual(kind: str, factor: float) -> None:
    assert metrics.algbw(4e9, 0.5) == 8e9
    assert metrics.busbw(kind, 4e9, 8, 0.5) == pytest.approx(factor * 8e9)


def test_measured_kernels_without_flops_do_no_work() -> None:
    program = Program("all", (Compute(name="F", action=Action("F", 0, 0), kernels=(measured(1.0),)),))
    assert metrics.hardware_flops(Schedule(Mesh(1, {}), (program,), (0,))) == 0
