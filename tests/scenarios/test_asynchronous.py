"""Asynchronous orders report their steady state: the mean interval between updates once the pipeline is full."""

import pytest

from scenarios import Scenario


def summary(schedule, **parallelism):
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": 4, "bandwidth": "1000 TB/s", "latency": "0 s"},
            "model": {"kind": "unit", "num_layers": 4, "forward": "1 s", "backward": "2 s"},
            "training": {"global_batch_size": 8, "micro_batch_size": 1},
            "parallelism": {"pp": 4, "schedule": schedule, **parallelism},
            "network": {"transport": "ideal"},
        }
    ).run()


@pytest.mark.parametrize("schedule", ["pipedream", "pipedream_2bw"])
def test_the_steady_state_has_no_bubble(schedule):
    result = summary(schedule)
    # Narayanan et al. 2021, arXiv:2006.09503: a pipeline that never drains takes m (F + B) a batch
    assert result.timeline.step_time == pytest.approx(8 * 3.0)
    told = result.summary()
    assert told["samples_per_s"] == pytest.approx(8 / 24)
    assert sum(told["breakdown_s"].values()) == pytest.approx(told["step_time_s"])
    assert told["traffic_bytes"]["pp"] == 0.0


def test_a_flush_costs_its_bubble():
    assert summary("1f1b").timeline.step_time == pytest.approx((8 + 3) * 3.0)
