"""Campaigns of one job: closed forms of exponential failures, the chain of machine repair, and accounts that sum up."""

from dataclasses import replace
from math import expm1, inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.scenarios.campaign import job as closed_forms
from clustersim.scenarios.campaign.campaign import simulate
from clustersim.scenarios.campaign.job import Breakdowns, Checkpoints, TrainingRun, TrainingStage

HOUR = 3600.0


def times(job, count):
    return np.array([simulate(job, 0, number).seconds for number in range(count)])


def error(values):
    return values.std(ddof=1) / len(values) ** 0.5


def test_without_failures_a_campaign_is_steps_times_step_time():
    job = TrainingRun((TrainingStage(655_652, 6.121),))
    assert simulate(job, 0).seconds == 655_652 * 6.121
    job = TrainingRun((TrainingStage(1000, 1.5), TrainingStage(500, 4.0)))
    assert simulate(job, 0).seconds == 1000 * 1.5 + 500 * 4.0


def test_checkpoints_add_their_time_except_after_the_last_step():
    job = TrainingRun((TrainingStage(100, 2.0),), checkpoints=Checkpoints(20.0, 5.0, 5.0))
    sample = simulate(job, 0)
    assert (sample.checkpoints, sample.seconds, sample.lost["checkpoint"]) == (9, 245.0, 45.0)


def test_the_mean_time_is_that_of_exponential_failures():
    """E = n M e^(R/M) (e^((tau + delta)/M) - 1), the last segment without a checkpoint (Daly 2006)."""
    mean, restart, tau, delta, segments = 2 * HOUR, 600.0, 1800.0, 120.0, 50
    job = TrainingRun((TrainingStage(segments * 180, 10.0),), checkpoints=Checkpoints(tau, delta, delta))
    job = replace(job, failures=Breakdowns(mean, detect=100.0, restart=restart - 100.0))
    found = times(job, 400)
    again = mean * np.exp(restart / mean)
    expected = again * ((segments - 1) * expm1((tau + delta) / mean) + expm1(tau / mean))
    assert abs(found.mean() - expected) < 3 * error(found)
    assert expected == pytest.approx(segments * tau * closed_forms.cost(tau, delta, restart, mean), rel=0.01)


@pytest.mark.parametrize("delta", [2.0, 30.0, 300.0, 1800.0])
def test_dalys_interval_costs_a_thousandth_more_than_the_least(delta):
    mean, restart = 3.09 * HOUR, 600.0
    least = closed_forms.cost(closed_forms.optimal(delta, mean), delta, restart, mean)
    grid = np.geomspace(0.05, 20, 2001) * closed_forms.optimal(delta, mean)
    assert least == pytest.approx(min(closed_forms.cost(tau, delta, restart, mean) for tau in grid), rel=1e-5)
    assert closed_forms.cost(closed_forms.daly(delta, mean), delta, restart, mean) <= 1.001 * least
    assert closed_forms.cost(closed_forms.young(delta, mean), delta, restart, mean) > least


def test_youngs_interval_is_off_by_some_per_cent():
    off = [closed_forms.young(d, 3.09 * HOUR) / closed_forms.optimal(d, 3.09 * HOUR) - 1 for d in (60.0, 300.0, 1200.0)]
    assert off == pytest.approx([0.036, 0.083, 0.177], abs=0.003)


@pytest.mark.exhaustive
def test_simulated_costs_lie_on_the_curve():
    mean, delta, restart = 2 * HOUR, 300.0, 300.0
    best = closed_forms.optimal(delta, mean)
    for tau in (best / 3, best, 3 * best):
        stage, policy = TrainingStage(6 * 200, tau / 6), Checkpoints(tau, delta, delta)
        job = TrainingRun((stage,), checkpoints=policy, failures=Breakdowns(mean, restart=restart))
        found = times(job, 200) / job.productive
        assert abs(found.mean() - closed_forms.cost(tau, delta, restart, mean)) < 3 * error(found)


@settings(max_examples=40)
@given(
    st.floats(1500, 2e4), st.floats(0, 600), st.floats(0, 900), st.sampled_from([None, 0, 2]), st.booleans(),
    st.integers(0, 5),
)  # fmt: skip
def test_time_is_work_and_losses(mean, delta, restart, held, elastic, number):
    failures = Breakdowns(mean, detect=60.0, restart=restart, spares=held, repair=HOUR, elastic=elastic and held == 0)
    job = TrainingRun(
        (TrainingStage(300, 10.0), TrainingStage(600, 11.0)), 8, 4, Checkpoints(600.0, delta / 2, delta), failures
    )
    sample = simulate(job, 1, number)
    assert sample.seconds == pytest.approx(job.productive + sum(sample.lost.values()), rel=1e-9)
    assert min(sample.lost.values()) > -1e-6
    assert sample.progress[-1] == (sample.seconds, job.steps)
    assert all(a <= b for (a, _), (b, _) in zip(sample.progress, sample.progress[1:], strict=False))


@pytest.mark.parametrize(
    ("held", "restart"),
    [
        (3, 1800.0),
        pytest.param(0, 0.0, marks=pytest.mark.exhaustive),
        pytest.param(3, 0.0, marks=pytest.mark.exhaustive),
    ],
)
def test_waiting_for_spares_is_erlangs_loss(held, restart):
    """The job waits for its share of the time by the birth-death chain; down time of other kinds changes nothing."""
    mean, repair = 2 * HOUR, 6 * HOUR
    failures = Breakdowns(mean, restart=restart, spares=held, repair=repair)
    job = TrainingRun((TrainingStage(6000, 300.0),), 64, 1, Checkpoints(3000.0, 0.0, 0.0), failures)
    samples = [simulate(job, 0, number) for number in range(30)]
    shares = np.array([sample.lost["waiting"] / sample.seconds for sample in samples])
    # the chain begins with all nodes whole
    assert abs(shares.mean() - closed_forms.waiting_share(held, repair / mean)) < 3 * error(shares) + 0.002


def test_erlangs_loss_is_that_of_the_chain():
    load, held = 2.7, 4
    births = [load] * (held + 1)
    weights = np.cumprod([1.0, *(birth / (state + 1) for state, birth in enumerate(births))])
    assert closed_forms.waiting_share(held, load) == pytest.approx(weights[-1] / weights.sum(), rel=1e-12)


@given(st.integers(1, 3000), st.floats(0.01, 50))
def test_the_cheapest_spares_cost_least(nodes, load):
    best = closed_forms.cheapest(nodes, load)
    some = [choice.cost for choice, _ in zip(closed_forms.choices(nodes, load), range(200), strict=False)]
    assert best.cost == min(some)


def test_fewer_replicas_train_while_no_spare_is_there():
    failures = Breakdowns(20 * HOUR, spares=0, repair=20 * HOUR)
    job = TrainingRun((TrainingStage(20_000, 60.0),), 16, 8, Checkpoints(600.0, 1.0, 1.0), failures)
    waits, shrinks = (simulate(replace(job, failures=replace(failures, elastic=e)), 3) for e in (False, True))
    assert waits.lost["shrunk"] == shrinks.lost["waiting"] == 0
    assert shrinks.lost["shrunk"] > 0
    assert shrinks.seconds < waits.seconds
    assert (job.speed(0), job.speed(1), job.speed(2), job.speed(3), job.speed(16)) == (1, 7 / 8, 7 / 8, 6 / 8, 0)


def test_an_asynchronous_checkpoint_counts_when_it_is_written():
    failures = Breakdowns(times=(1015.0, 1030.0), restart=1.0)
    job = TrainingRun((TrainingStage(200, 10.0),), checkpoints=Checkpoints(100.0, 1.0, 50.0), failures=failures)
    sample = simulate(job, 0)
    # at 1015 s the tenth checkpoint (begun at 1009 s) is not written: the ninth has step 90, at 908 s
    lost = [steps for time, steps in sample.progress if time == 1015.0]
    assert lost[-1] == 90
    assert sample.interruptions == 2


def test_no_more_work_is_lost_than_other_nodes_do_not_keep():
    failures = Breakdowns(times=(995.0,), lost_work=25.0)
    sample = simulate(TrainingRun((TrainingStage(200, 10.0),), failures=failures), 0)
    assert sample.lost["rework"] == pytest.approx(25.0)
    whole = simulate(TrainingRun((TrainingStage(200, 10.0),), failures=replace(failures, lost_work=inf)), 0)
    assert whole.lost["rework"] == pytest.approx(995.0)


def test_maintenance_stops_the_job_after_a_checkpoint():
    job = TrainingRun((TrainingStage(100, 10.0),), checkpoints=Checkpoints(100.0, 0.0, 0.0), maintenance=(250.0, 40.0))
    sample = simulate(job, 0)
    # stops at 300, 540 (due at 500), 780 (750) and 1020 s (1000)
    assert sample.lost["maintenance"] == 4 * 40.0
    assert sample.seconds == 1000.0 + 160.0


def test_seeds_repeat_and_differ():
    job = TrainingRun(
        (TrainingStage(1000, 60.0),), checkpoints=Checkpoints(600.0, 5.0, 5.0), failures=Breakdowns(HOUR, restart=60.0)
    )
    assert simulate(job, 7, 3) == simulate(job, 7, 3)
    assert simulate(job, 7, 3).seconds != simulate(job, 7, 4).seconds != simulate(job, 8, 4).seconds
