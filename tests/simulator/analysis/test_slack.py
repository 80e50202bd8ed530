"""Slack: a span that is delayed by less costs nothing, by more the rest."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clustersim.simulator.analysis.critical_path import critical_path, slack
from clustersim.simulator.analysis.intervals import ONE_INSTANT
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.engine.pricing import Variation
from clustersim.simulator.hardware.kernel import measured
from clustersim.simulator.schedule.mesh import Mesh
from clustersim.simulator.schedule.ops import Compute, Delay, Op
from clustersim.simulator.schedule.program import Program
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.simulator.simulate import simulate
from clustersim.topologies.uniform_and_tree import uniform
from tests.simulator.analysis.random_schedules import ENGINES, UNSERVED, run, schedules
from tests.simulator.analysis.test_critical_path import data_parallel
from tests.simulator.engine.folding.test_folding import FABRICS, JITTER, cluster_of
from tests.simulator.engine.folding.test_folding import schedules as contended

UNHURRIED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


def longer(op: Op, seconds: float) -> Op:
    if isinstance(op, Delay):
        return replace(op, seconds=op.seconds + seconds)
    assert isinstance(op, Compute)
    return replace(op, kernels=(*op.kernels, measured(seconds)))


def delayed(schedule: Schedule, rank: int, op: int, seconds: float) -> Schedule:
    """*schedule*, of a program for each rank, where the op of that number of *rank* takes *seconds* more."""
    programs = list(schedule.programs)
    ops = list(programs[rank].ops)
    ops[op] = longer(ops[op], seconds)
    programs[rank] = replace(programs[rank], ops=tuple(ops))
    return replace(schedule, programs=tuple(programs))


def costs(schedule: Schedule, engine: str, data: st.DataObject) -> tuple[float, float, float]:
    """(delay of an op, its slack, what the delay costs), s."""
    timeline = run(schedule, engine)
    rank = data.draw(st.integers(0, timeline.world_size - 1))
    ops = schedule.program(rank).ops
    op = data.draw(st.sampled_from([i for i in range(len(ops)) if isinstance(ops[i], Compute | Delay)]))
    found = float(slack(timeline)[rank][timeline.of(rank).op == op][0])
    seconds = data.draw(st.sampled_from([0.25, 0.5, 1.0, 3.0, found, found + 1.0]))
    late = run(delayed(schedule, rank, op, seconds), engine)
    return seconds, found, late.makespan - timeline.makespan


@settings(max_examples=100, **UNHURRIED)
@given(schedules(UNSERVED), ENGINES, st.data())
def test_a_delay_costs_what_it_exceeds_the_slack_by(schedule: Schedule, engine: str, data: st.DataObject) -> None:
    seconds, found, cost = costs(schedule, engine, data)
    assert cost == pytest.approx(max(0.0, seconds - found), abs=1e-9)


@settings(max_examples=60, **UNHURRIED)
@given(schedules((*UNSERVED, "buffered")), ENGINES, st.data())
def test_of_buffered_sends_a_delay_costs_no_more(schedule: Schedule, engine: str, data: st.DataObject) -> None:
    """When bytes came before their receive is not known, so they are taken to come just then."""
    seconds, found, cost = costs(schedule, engine, data)
    assert cost <= max(0.0, seconds - found) + 1e-9


@settings(max_examples=60, **UNHURRIED)
@given(schedules(), ENGINES)
def test_it_is_never_negative_and_zero_on_the_critical_path(schedule: Schedule, engine: str) -> None:
    assert_zero_on_the_path(run(schedule, engine))


@settings(max_examples=15, **UNHURRIED)
@given(contended(16), st.sampled_from(FABRICS), JITTER, st.booleans())
def test_it_is_never_negative_under_contention(schedule: Schedule, fabric: object, jitter: float, fold: bool) -> None:
    assert_zero_on_the_path(simulate(schedule, cluster_of(fabric, 1), variation=Variation(jitter=jitter), fold=fold))


def assert_zero_on_the_path(timeline: Timeline) -> None:
    found, path = slack(timeline), critical_path(timeline)
    assert all((own >= 0.0).all() for own in found.values())
    close = 10 * ONE_INSTANT * timeline.makespan
    for rank, step, op in zip(path.rank.tolist(), path.step.tolist(), path.op.tolist(), strict=True):
        own = timeline.of(rank)
        (left,) = found[int(timeline.representative[rank])][(own.op == op) & (own.step == step)]
        assert left <= close


@settings(max_examples=15, **UNHURRIED)
@given(contended(16), st.sampled_from(FABRICS))
def test_folded_equals_unfolded(schedule: Schedule, fabric: object) -> None:
    folded, plain = (simulate(schedule, cluster_of(fabric, 4), fold=fold) for fold in (True, False))
    ours, theirs = slack(folded), slack(plain)
    for rank in range(plain.world_size):
        mine = ours[int(folded.representative[rank])]
        assert mine == pytest.approx(theirs[rank], rel=0, abs=1e-9 * plain.makespan)


def test_ranks_that_wait_for_a_straggler_have_as_much_slack_as_it_is_late() -> None:
    """Seven ranks have computed 3 s when the reduction begins, the straggler 4.5 s; the other layer takes 1 s more."""
    timeline = simulate(
        data_parallel(8, nbytes=8e9),
        uniform(gpus=8, hosts=0, bandwidth=1e9, latency=0.0),
        variation=Variation(stragglers={5: 1.5}),
        algorithms={"all_reduce": "ring"},
    )
    found = slack(timeline)
    assert found[5][:3] == pytest.approx([0.0, 0.0, 0.0])
    assert found[0][:3] == pytest.approx([1.5, 1.5, 0.0])
    # a reduction of 2 x 7/8 x 8 s, and an optimizer that takes the straggler 0.25 s more
    assert found[5][3] == pytest.approx(14.0 - 3.0)
    assert found[0][3] == pytest.approx(4.5 + 14.0 - 5.0 + 0.25)


def test_of_a_schedule_without_ops_there_is_none() -> None:
    schedule = Schedule(Mesh.regular({"dp": 2}), (Program("all", ()),), (0, 0))
    found = slack(simulate(schedule, uniform(gpus=2, hosts=0, bandwidth=1e9, latency=0.0)))
    assert [own.tolist() for own in found.values()] == [[]]
