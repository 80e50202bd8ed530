"""The campaign of a scenario: its job, its numbers, its report and chart, and bad input."""

import json

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.build.built import BuiltScenario
from clustersim.scenarios.campaign import build
from clustersim.scenarios.campaign.campaign import run as simulated
from clustersim.scenarios.campaign.report import report, summary
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.specification import loading
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.yaml_and_json import yaml_text

GPT = {
    "version": 1,
    "cluster": {"preset": "dgx_a100_80gb", "nodes": 2},
    "model": {"preset": "gpt2"},
    "training": {"global_batch_size": 64, "micro_batch_size": 4, "precision": "bf16"},
    "campaign": {
        "tokens": 5e10,
        "checkpoint": {"every": "optimal", "storage": "10 MB/s"},
        "failures": {"mtbf_per_node": "2 days", "detect": "5 min", "restart": "10 min"},
    },
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def scenario(changes=None, without=()):
    found = Scenario.model_validate({**GPT, "campaign": {k: v for k, v in GPT["campaign"].items() if k not in without}})
    return found.changed(changes, "test") if changes else found


def test_a_campaign_without_failures_is_steps_times_step_time():
    campaign = simulated(scenario(without=("failures", "checkpoint")), 1)
    steps = -(-5e10 // (64 * 1024))
    assert campaign.job.steps == steps
    assert campaign.samples[0].seconds == steps * campaign.phases[0].result.timeline.step_time
    numbers = summary(campaign)
    assert (numbers["goodput"], numbers["interruptions"], numbers["checkpoint_interval_s"]) == (1.0, 0, None)


def test_checkpoints_hold_parameters_and_optimizer_states():
    one = scenario()
    assert build.checkpoint_bytes(one) == 14 * one.model.parameters
    found = build.writing(one)
    assert found.write == pytest.approx(14 * one.model.parameters / 10e6)
    asynchronous = build.writing(scenario({"campaign.checkpoint.asynchronous": True}))
    assert asynchronous.copy < asynchronous.write == found.write
    storage = {"campaign.checkpoint.storage": {"bandwidth": "1 MB/s", "nodes": 10}}
    assert build.writing(scenario(storage)) == found


@pytest.mark.parametrize(
    ("name", "terabytes"), [("bloom_176b_384a100", 2.3e12 * 2**30 / 1e9 * 0.998 / 1), ("megatron_1t_3072a100", 13.8e12)]
)
def test_checkpoints_are_as_large_as_published(name, terabytes):
    """BLOOM: 2.3 TB, binary; a trillion parameters: 13.8 TB (cluster facts of arXiv:2104.04473)."""
    assert build.checkpoint_bytes(BuiltScenario.load(name)) == pytest.approx(terabytes, rel=0.03)


def test_failures_scale_with_nodes_and_gpus():
    given = build.breakdowns(scenario(), 60.0)
    assert given.mtbf == 86_400.0
    assert given.restart == 660.0
    per_gpu = scenario({"campaign.failures": {"mtbf_per_gpu": "16 days"}})
    assert build.breakdowns(per_gpu, 0.0).mtbf == 86_400.0


def test_phases_have_batches_of_their_own():
    more = {"training.global_batch_size": 128}
    one = scenario({"campaign.schedule": [{"tokens": 1e9, "global_batch_size": 64, "seq_length": 512}], **more})
    campaign = simulated(one, 1)
    first, second = campaign.job.stages
    assert (first.tokens, second.tokens) == (64 * 512, 128 * 1024)
    assert first.steps == -(-1e9 // first.tokens)
    assert second.steps == -(-4.9e10 // second.tokens)
    assert first.seconds < second.seconds


def test_the_same_seed_gives_the_same_bytes(capsys):
    (path := loading.pathlib.Path("c.yaml")).write_text(yaml_text(GPT))
    printed = []
    for seed in (1, 1, 2):
        settings = ["--set", f"simulation.seed={seed}"]
        assert run(["campaign", str(path), "--json", "--repeats", "12", *settings]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]
    numbers = json.loads(printed[0])
    contract = (
        "days", "days_percentiles", "goodput", "interruptions", "checkpoint_interval_s", "lost_s", "cost",
        "energy_mwh", "co2_t",
    )  # fmt: skip
    assert set(contract) <= set(numbers)
    assert list(numbers["days_percentiles"]) == ["p5", "p50", "p95"]


def test_p99_needs_a_hundred_samples():
    assert "p99" in summary(simulated(scenario(), 100))["days_percentiles"]
    assert "p99" not in summary(simulated(scenario(), 99))["days_percentiles"]


def test_the_parts_of_the_time_sum_to_it():
    spares = {"campaign.failures.spares": 0, "campaign.failures.repair": "5 h"}
    campaign = simulated(scenario({**spares, "campaign.maintenance": {"every": "1 days", "duration": "1 h"}}), 10)
    numbers = summary(campaign)
    whole = campaign.job.productive + sum(numbers["lost_s"].values())
    assert numbers["days"] * 86_400 == pytest.approx(whole, rel=1e-12)
    assert numbers["lost_s"]["waiting"] > 0 < numbers["lost_s"]["maintenance"]
    text = report(campaign)
    assert "by the chain of machine repair" in text
    assert "without a spare: to wait takes" in text


def test_energy_of_a_campaign_has_idle_gpus_where_nothing_trains():
    cost = {"cost.gpu_power": "400 W", "cost.idle_power": "0.001 W", "cost.gpu_hour": 1.0}
    campaign = simulated(scenario(cost), 5)
    step = campaign.phases[0].result
    busy = campaign.job.productive + summary(campaign)["lost_s"]["rework"]
    expected = step.power.of_step(step.breakdown) * busy / 3.6e9
    assert summary(campaign)["energy_mwh"] == pytest.approx(expected, rel=1e-5)
    spare = {"campaign.failures.spares": 2, "campaign.failures.repair": "1 h"}
    assert summary(simulated(scenario({**cost, **spare}), 5))["gpu_hours"] > 1.9 * summary(campaign)["gpu_hours"]


def test_a_trace_of_failures(tmp_path):
    (tmp_path / "trace.csv").write_text("hours,node\n1,3\n2.5,4\n")
    failures = {"trace": "trace.csv", "restart": "10 min"}
    one = scenario({"campaign.failures": failures, "campaign.checkpoint.every": "1 h"})
    assert summary(simulated(one, 2))["interruptions"] == 2
    (tmp_path / "trace.csv").write_text("hours\n2\n1\n")
    with pytest.raises(SimulatorError, match=r"trace\.csv:3: hours must be numbers above 0 that ascend, not 1"):
        simulated(one, 1)
    (tmp_path / "trace.csv").write_text("time\n2\n")
    with pytest.raises(SimulatorError, match='needs a column "hours"'):
        simulated(one, 1)


def test_a_run_prints_its_report_and_draws(capsys):
    loading.pathlib.Path("c.yaml").write_text(yaml_text(GPT))
    assert run(["campaign", "c.yaml", "--repeats", "5"]) == 0
    out = capsys.readouterr().out
    assert "where the time goes" in out
    assert "optimal" in out
    assert "wrote c_campaign.png" in out
    assert loading.pathlib.Path("c_campaign.png").read_bytes().startswith(b"\x89PNG")


BAD = [
    ({"failures.mtbf_per_node": "0 h"}, "campaign.failures.mtbf_per_node=0 h: must be above 0, not 0 h"),
    ({"failures.mtbf_per_gpu": "1 h"}, ": mtbf_per_gpu stands already"),
    ({"checkpoint.every": "1 s"}, "a checkpoint takes 2.9 minutes to write, longer than the 1 s between two"),
    ({"checkpoint.every": "best"}, "or one of optimal, daly, young"),
    ({"checkpoint.every": "0 h"}, "must be above 0, not 0 h"),
    ({"checkpoint": {"every": "1 h"}}, "campaign.checkpoint.storage: is required: a bandwidth such as 200 GB/s"),
    ({"failures.spares": 4}, "needs repair: the mean time"),
    ({"failures.repair": "1 h"}, "needs spares: the number of spare nodes"),
    ({"failures.elastic": True}, "needs spares: the number of spare nodes"),
    ({"failures": {"mtbf_per_node": "1 s"}}, "the campaign would hardly ever end: a failure comes every 500 ms"),
    ({"tokens": 0}, "campaign.tokens=0: must be above 0"),
    ({"tokens": "many"}, 'must be a number, e.g. 300e9 or "300B"'),
    ({"schedule": [{"tokens": 6e10}]}, "campaign.schedule.0.tokens: no tokens are left after this of 5e+10 in all"),
    ({"maintenance": {"every": "1 h", "duration": "2 h"}}, "must be shorter than the time between stops"),
    ({"failures": {"restart": "1 h"}}, "campaign.failures.mtbf_per_node: is required (or mtbf_per_gpu, or trace)"),
    ({"failures.brokn": 0.5}, 'did you mean "broken"?'),
    ({"failures": {"trace": "none.csv"}}, "no such file"),
]


@pytest.mark.parametrize(("changes", "told"), BAD, ids=lambda value: str(value)[:40])
def test_bad_input(changes, told, capsys):
    loading.pathlib.Path("c.yaml").write_text(yaml_text(GPT))
    settings = [f"--set=campaign.{key}={json.dumps(value).strip(chr(34))}" for key, value in changes.items()]
    assert run(["campaign", "c.yaml", "--repeats", "2", *settings]) == 2
    out, err = capsys.readouterr()
    assert told in err
    assert "Traceback" not in err
    assert not out
    assert not loading.pathlib.Path("c_campaign.png").exists()


def test_spares_need_nodes():
    failures = {"mtbf_per_gpu": "10 days", "spares": 1, "repair": "1 h"}
    one = Scenario.load("hello", {"campaign": {"tokens": 1e6, "failures": failures}})
    with pytest.raises(SimulatorError, match=r"campaign.failures.spares: this cluster is not made of nodes"):
        build.breakdowns(one, 0.0)
    with pytest.raises(SimulatorError, match="is missing; a campaign needs at least"):
        simulated(Scenario.load("hello"))
    with pytest.raises(SimulatorError, match="stands beside collective, which trains nothing"):
        Scenario.load("allreduce_dgx_a100", {"campaign": {"tokens": 1e9}})
