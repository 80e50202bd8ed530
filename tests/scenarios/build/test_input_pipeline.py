"""The input pipeline: a step waits where data come too late; checkpoints in the background share the storage."""

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.build.input_pipeline import Loading
from clustersim.scenarios.campaign import build
from clustersim.scenarios.campaign.campaign import run as simulated
from clustersim.scenarios.commands.command_line import run

STEP = 0.13503


def hello(section, **changes):
    return Scenario.load("hello", {"input": section, "training.samples": 3200, **changes}).run()


def test_data_in_time_cost_nothing():
    result = hello({"sample": "1 MB", "storage": "1 GB/s"})
    assert result.summary()["input"] == {"bytes": 32e6, "load_s": pytest.approx(0.032), "wait_s": 0.0}
    assert result.summary()["training"]["days"] * 86_400 == pytest.approx(100 * STEP)
    assert "beside the step before" in result.report()


def test_a_step_waits_for_data_that_come_too_late():
    result = hello({"sample": "10 MB", "storage": {"bandwidth": "500 MB/s", "nodes": 2}})
    assert result.summary()["input"]["wait_s"] == pytest.approx(0.32 - STEP)
    assert result.summary()["training"]["days"] * 86_400 == pytest.approx(100 * 0.32)
    assert "each step waits 185 ms more" in result.report()


def test_processes_prepare_the_samples_of_a_replica():
    result = hello({"sample": "1 B", "prepare": "50 ms", "workers": 2})
    assert result.summary()["input"]["load_s"] == pytest.approx(8 * 0.05 / 2)
    assert "input" not in Scenario.load("hello").run().summary()


def test_a_write_in_the_background_shares_the_storage_fairly():
    little = Loading(nbytes=10.0, bandwidth=100.0, prepare=0.0, shared=True)
    # ten bytes a second are read, ninety are left
    assert little.writing(900.0, 1.0) == (pytest.approx(10.0), pytest.approx(0.0))
    much = Loading(nbytes=80.0, bandwidth=100.0, prepare=0.0, shared=True)
    # reading wants 80 and gets 50: in 18 s the steps do the work of 11.25 s
    assert much.writing(900.0, 1.0) == (pytest.approx(18.0), pytest.approx(6.75))


def test_a_campaign_waits_for_data_in_every_step():
    campaign = {"checkpoint": {"every": "1 h", "storage": "1 GB/s", "asynchronous": True}, "tokens": 1e6}
    one = Scenario.load("hello", {"input": {"sample": "10 MB"}, "campaign": campaign, "training.samples": 3200})
    found = simulated(one, 1)
    assert found.job.stages[0].seconds == pytest.approx(0.32)
    alone = Scenario.load("hello", {"campaign": campaign, "training.samples": 3200})
    size = build.checkpoint_bytes(one)
    assert build.writing(alone, STEP).write == pytest.approx(size / 1e9)
    # reading wants all of the storage and gets half of it
    assert build.writing(one, STEP).write == pytest.approx(2 * size / 1e9 * 1.5)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("input={}", "input.sample: is required"),
        ("input={sample: 0 MB}", "must be above 0"),
        ("input={sample: 1 MB, workers: 0}", "must be at least 1"),
        ("input={sample: 1 MB, storage: 5}", 'must be a bandwidth, e.g. "200 GB/s"'),
        ("input={sample: 1 MB, storage: {nodes: 5}}", "input.storage.bandwidth: is required"),
    ],
)
def test_bad_input(setting, told, capsys):
    assert run(["run", "hello", "--json", "--set", setting]) == 2
    err = capsys.readouterr().err
    assert told.partition(": ")[2] in err
    assert "Traceback" not in err
