"""Variation of times in scenarios: distributions, order statistics, slow times, pauses, links, presets, bad input."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.specification.variation import PRESETS
from clustersim.simulator.engine.pricing import Distribution, Pauses, Spells, Variation
from clustersim.simulator.reading.lookup import names

SHARED = Path(__file__).parents[3] / "shared/data"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def computing(gpus, **simulation):
    """*gpus* replicas of one layer of 3 s, without parameters: nothing is communicated."""
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": gpus, "bandwidth": "10 GB/s", "latency": "0 s"},
            "model": {"kind": "unit", "num_layers": 1, "forward": "1 s", "backward": "2 s", "parameters": 1},
            "training": {"global_batch_size": gpus},
            "parallelism": {"data": {"method": "ddp"}},
            "network": {"transport": "ideal"},
            "simulation": {"engine": "simpy", **simulation},
        }
    )


@pytest.mark.parametrize(("gpus", "sigmas"), [(8, 1.42), pytest.param(64, 2.34, marks=pytest.mark.exhaustive)])
def test_the_slowest_of_n_normal_gpus_is_so_many_deviations_slower(gpus, sigmas):
    """The expected maximum of n normal variables: 1.42 standard deviations of 8, 2.34 of 64."""
    deviation, repeats = 0.02, 200
    gpu = {"distribution": "normal", "variation": deviation}
    result = computing(gpus, variation={"gpu": gpu}, repeats=repeats).run()
    grown = (np.array(result.step_times) / 3.0 - 1.0) / deviation
    # the standard deviation of the maximum is below 0.65
    assert grown.mean() == pytest.approx(sigmas, abs=3 * 0.65 / repeats**0.5)


def test_dp_waits_for_the_slowest_of_all_and_tp_of_few():
    """One slow GPU of 8: all replicas wait for it; a spread over 8 costs more than over 2."""
    slow = computing(8, stragglers=[{"rank": 3, "slowdown": 1.5}]).run()
    assert slow.timeline.step_time == pytest.approx(4.5, rel=1e-6)
    gpu = {"gpu": {"distribution": "normal", "variation": 0.02}}
    few, all_of_them = (np.mean(computing(n, variation=gpu, repeats=100).run().step_times) for n in (2, 8))
    assert few == pytest.approx(3 * (1 + 0.56 * 0.02), rel=0.003)
    assert few < all_of_them


@pytest.mark.parametrize("kind", ["lognormal", "gamma", "normal"])
def test_distributions_have_mean_1_and_their_variation(kind):
    draws = Distribution(kind, 0.2).draw(np.random.default_rng(0), 200_000)
    assert draws.mean() == pytest.approx(1, abs=0.002)
    assert draws.std() == pytest.approx(0.2, rel=0.01)
    assert draws.min() > 0


def test_an_empirical_distribution_has_its_quantiles(tmp_path):
    quantiles = ((0.0, 0.9), (0.5, 1.0), (1.0, 1.4))
    draws = Distribution("empirical", quantiles=quantiles).draw(np.random.default_rng(0), 100_000)
    assert np.percentile(draws, [25, 50, 75]) == pytest.approx([0.95, 1.0, 1.2], abs=0.005)
    (tmp_path / "t.csv").write_text("op,ratio\nF,1\nB,0.9\nF,1.4\n")
    step = {"distribution": "empirical", "file": "t.csv"}
    times = computing(1, variation={"step": step}, repeats=300).run().step_times
    assert np.percentile(times, [0, 50, 100]) / 3 == pytest.approx([0.9, 1.0, 1.4], abs=0.07)


def test_short_forms_are_the_long_ones():
    short = computing(4, jitter=0.1, spread=0.05, stragglers=[{"rank": 1, "slowdown": 1.2}]).run()
    long = {"op": {"variation": 0.1}, "gpu": {"variation": 0.05}, "stragglers": [{"rank": 1, "slowdown": 1.2}]}
    assert computing(4, variation=long).run().timeline.step_time == short.timeline.step_time


def test_a_step_factor_is_common_to_all_ranks_and_folds():
    one = computing(8, variation={"step": {"variation": 0.2}}, repeats=5)
    assert len(set(one.run().step_times)) == 5
    assert one.run().summary()["simulation"]["representatives"] == 1


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_engines_agree_on_every_kind_of_variation(engine):
    variation = {
        "op": {"distribution": "gamma", "variation": 0.1}, "step": {"variation": 0.1},
        "spells": {"probability": 0.2, "steps": 2, "slowdown": 2.0}, "pauses": {"probability": 0.5, "duration": "1 s"},
        "links": [{"link": ["gpu 0", "crossbar 0"], "bandwidth": 0.5, "duration": "10 s"}],
    }  # fmt: skip
    changes = {"simulation.variation": variation, "training.steps": 4}
    del variation["links"]
    times = [
        Scenario.load("hello", {**changes, "simulation.engine": one}).run().timeline.step_time
        for one in ("simpy", engine)
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-12)


def test_slow_times_and_pauses_happen_as_often_as_they_say():
    spells = Variation(spells=Spells(0.02, 10, 1.5))
    slow = np.concatenate([spells.factors(rank, 400, 1)[:, 0] > 1 for rank in range(300)])
    assert slow.mean() == pytest.approx(0.02 / (0.02 + 0.1), rel=0.03)
    # a run begins somewhere in a longer one: its first step is slow as often as any other
    assert slow.reshape(300, 400)[:, 0].mean() == pytest.approx(0.02 / (0.02 + 0.1), abs=0.05)
    begins = np.flatnonzero(np.diff(slow.astype(int)) == 1)
    assert slow.sum() / len(begins) == pytest.approx(10, rel=0.05)
    pauses = Variation(pauses=Pauses(0.25, 2.0))
    seconds = np.array([pauses.paused(rank, 100, np.array([1, 2]), 4) for rank in range(100)])
    assert seconds[:, :, [0, 3]].sum() == 0
    assert (seconds > 0).any(axis=2).mean() == pytest.approx(0.25, abs=0.02)
    assert set(np.unique(seconds)) == {0.0, 2.0}


def test_a_pause_delays_the_step_by_its_time():
    always = {"pauses": {"probability": 1, "duration": "5 s"}}
    assert computing(2, variation=always).run().timeline.step_time == pytest.approx(8.0)


def test_a_link_that_degrades_for_a_while_slows_what_crosses_it():
    """hello: its last bucket of 100 MB goes through ports of 10 GB/s from 120 ms on."""
    link = {"link": ["gpu 0", "switch 0"], "bandwidth": 0.1, "begin": "0 s", "duration": "1 s"}
    slow = Scenario.load("hello", {"simulation.variation": {"links": [link]}}).run().timeline.step_time
    assert slow > 2 * 0.13503
    over = {**link, "duration": "1 us"}
    brief = Scenario.load("hello", {"simulation.variation": {"links": [over]}}).run().timeline.step_time
    assert brief == pytest.approx(0.13503, rel=1e-6)
    flaps = {**link, "duration": "10 ms", "every": "20 ms", "times": 6}
    flapping = Scenario.load("hello", {"simulation.variation": {"links": [flaps]}}).run().timeline.step_time
    assert brief < flapping < slow


def test_presets_load():
    assert names(PRESETS) == ["bytedance_8gpu", "bytedance_8gpu_per_op"]
    for name in names(PRESETS):
        times = computing(2, variation={"preset": name}, repeats=20).run().step_times
        assert 2.7 < min(times) < max(times) < 3.5


PROFILE = """model,node,op,forward_ms,backward_ms,activation_bytes,parameter_bytes,preds
job,a,Block,67.35,143.99,8388608,2560000000,
job,b,Block,67.57,144.26,8388608,2560000000,a
job,c,Block,67.97,145.47,8388608,2560000000,b
job,d,Block,140.23,204.96,8388608,2560000000,c
"""
"""Medians of the stages (bytedance_trace_rank_medians.csv). Bytes are assumed: gradients and parameters that take about
the reduce-scatter's 50 ms and the all-gather's 25 ms on 25 GB/s."""


FIXED = 0.042 + 0.0065 + 0.0125
"""s a step on the last stage: optimizer, clipping of gradients, all-reduce of the embeddings' gradients (medians of
bytedance_trace_rank_medians.csv; of the all-reduce the shortest, the others wait)."""

LAUNCH_DELAYS = 0.042
"""s a step by which the authors' replay is shorter without launch delays (bytedance_step_times.csv, medians)."""


def job(tmp_path, preset, repeats):
    (tmp_path / "job.csv").write_text(PROFILE)
    scenario = Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "uniform", "gpus": 8, "bandwidth": "25 GB/s", "latency": "5 us"},
            "model": {"profile": "job.csv", "model": "job"},
            "training": {"global_batch_size": 8, "micro_batch_size": 1, "precision": "bf16", "gradient_dtype": "fp32"},
            "parallelism": {"pp": 4, "dp": 2, "schedule": "1f1b", "data": {"method": "zero", "stage": 1}},
            "network": {"transport": "ideal"},
            "simulation": {"variation": {"preset": preset}, "repeats": repeats},
        }
    )
    return scenario.with_software(replace(scenario.software, load_seconds=FIXED + LAUNCH_DELAYS))


@pytest.mark.exhaustive
def test_percentiles_of_bytedances_job_of_eight_gpus(tmp_path):
    """Measured: 32 steps of the job whose last stage takes twice as long as the others, 2.213 s in the median."""
    table = SHARED / "bytedance_step_times.csv"
    if not table.is_file():
        pytest.skip("the published step times are not beside this clone")
    measured = [float(row[4]) for row in csv.reader(table.open()) if row[2] == "step_t_base"]
    assert len(measured) == 32
    times = job(tmp_path, "bytedance_8gpu", 200).run().step_times
    found, expected = (np.percentile(one, [5, 25, 50, 75, 95]) for one in (times, measured))
    assert found == pytest.approx(expected, rel=0.05)
    # drawn for each op the same table leaves the median and loses the spread: variation is one of steps
    apart = np.percentile(job(tmp_path, "bytedance_8gpu_per_op", 50).run().step_times, [5, 50, 95])
    assert apart[1] == pytest.approx(found[2], rel=0.01)
    assert (apart[2] - apart[0]) < 0.4 * (found[4] - found[0])


def test_the_slowest_rank_is_to_blame():
    spread = {"gpu": {"distribution": "normal", "variation": 0.01}, "stragglers": [{"rank": 5, "slowdown": 1.2}]}
    result = computing(8, variation=spread, repeats=6).run()
    assert result.summary()["ranks_to_blame"] == {"5": 6}
    assert "most on the critical path: rank 5 in 6, of 6 repeats" in result.report()
    assert "ranks_to_blame" not in computing(8).run().summary()


BAD = [
    ({"jitter": 0.1, "variation": {"op": {"variation": 0.1}}}, "give variation.op in place of it"),
    ({"spread": 0.1, "variation": {"preset": "bytedance_8gpu"}}, "give variation.gpu in place of it"),
    ({"stragglers": [{"rank": 0, "slowdown": 2}], "variation": {}}, "give variation.stragglers in place of it"),
    ({"variation": {"op": {"distribution": "normal", "variation": 0.5}}}, "must be at most 0.3 of a normal"),
    ({"variation": {"op": {"distribution": "weibull"}}}, "must be lognormal, gamma, normal or empirical"),
    ({"variation": {"op": {"distribution": "empirical"}}}, "give quantiles or a file"),
    ({"variation": {"op": {"quantiles": [[0, 1], [1, 2]]}}}, "belongs to distribution empirical"),
    ({"variation": {"op": {"distribution": "empirical", "quantiles": [[0, 1], [0.5, 2]]}}}, "ascend from 0 to 1"),
    ({"variation": {"op": {"distribution": "empirical", "quantiles": [[0, 2], [1, 1]]}}}, "factors that ascend"),
    ({"variation": {"op": {"distribution": "empirical", "file": "no.csv"}}}, "no such file"),
    ({"variation": {"preset": "bytedance"}}, 'unknown variation "bytedance"; there are: bytedance_8gpu'),
    ({"variation": {"spells": {"probability": 0.1, "steps": 0.5, "slowdown": 2}}}, "must be at least 1, not 0.5"),
    ({"variation": {"pauses": {"probability": 0, "duration": "1 s"}}}, "must be above 0"),
    ({"variation": {"pauses": {"probability": 0.1}}}, "duration"),
    ({"variation": {"stragglers": [{"rank": 9, "slowdown": 2}]}}, "there is no rank 9; ranks go from 0 to 3"),
    ({"repeats": 3, "variation": {"stragglers": [{"rank": 1, "slowdown": 2}]}}, "all runs would be equal"),
    ({"variation": {"links": [{"link": ["gpu 0", "gpu 9"], "bandwidth": 0.5, "duration": "1 s"}]}}, "there is no link"),
    (
        {"variation": {"links": [{"link": ["gpu 0", "switch 0"], "bandwidth": 0.5, "duration": "1 s", "times": 2}]}},
        "must be longer than duration",
    ),
    (
        {"variation": {"links": [{"link": ["gpu 0", "switch 0"], "bandwidth": 2, "duration": "1 s", "every": "2 s"}]}},
        "needs times: how often it happens",
    ),
]


@pytest.mark.parametrize(("simulation", "told"), BAD, ids=lambda value: str(value)[:60])
def test_bad_input(simulation, told, capsys):
    data = "\n".join(f"  {key}: {value}" for key, value in simulation.items())
    text = Path(Scenario.load("hello").document.position(("version",)).file or "hello.yaml")
    assert text.name == "hello.yaml"
    source = (Path(__file__).parents[2] / "scenarios/hello.yaml").read_text()
    Path("bad.yaml").write_text(f"{source}\nsimulation:\n{data}\n".replace("'", '"'))
    assert run(["run", "bad.yaml", "--json"]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert "bad.yaml" in err
