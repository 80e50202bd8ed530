"""Repeats: percentiles of the step time, a histogram, and all else of the first run."""

import json

import numpy as np
import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.commands.command_line import run
from clustersim.simulator.charts.bars import repeats_chart
from clustersim.simulator.charts.figures import draw_repeats
from clustersim.simulator.reading.errors import SimulatorError

JITTER = {"simulation.jitter": 0.05, "simulation.seed": 3}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def summary(changes, name="hello"):
    found = Scenario.load(name, changes).run().summary()
    for one in found.get("variants", {"": found}).values():
        one["simulation"].pop("wall_s")
    return found


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize("variation", [{"simulation.jitter": 0.05}, {"simulation.spread": 0.05}])
def test_percentiles_are_those_of_runs_with_seeds_in_turn(engine, variation):
    changes = {**variation, "simulation.seed": 3, "simulation.engine": engine}
    times = [summary({**changes, "simulation.seed": seed})["step_time_s"] for seed in range(3, 10)]
    repeated = summary({**changes, "simulation.repeats": 7})
    found = repeated.pop("step_time_percentiles_s")
    assert found == dict(zip(["p5", "p50", "p95"], np.percentile(times, [5, 50, 95]), strict=True))
    assert found["p50"] == sorted(times)[3]
    assert sum(repeated.pop("ranks_to_blame").values()) == 7
    assert repeated == summary(changes), "all else is of the first run"
    assert repeated["simulation"]["engine"] == engine


@pytest.mark.parametrize(("repeats", "names"), [(99, ["p5", "p50", "p95"]), (100, ["p5", "p50", "p95", "p99"])])
def test_the_tail_is_given_from_a_hundred_on(repeats, names):
    found = summary({**JITTER, "simulation.repeats": repeats})["step_time_percentiles_s"]
    assert list(found) == names
    assert list(found.values()) == sorted(found.values())


def test_one_run_has_no_percentiles():
    assert "step_time_percentiles_s" not in summary(JITTER)
    assert "step_time_percentiles_s" not in summary({**JITTER, "simulation.repeats": 1})


def test_spread_is_drawn_once_for_each_gpu_and_leaves_the_draws_of_jitter():
    # pure computing: with spread each rank keeps one factor in all steps
    times = Scenario.load("hello", {"simulation.spread": 0.2, "training.steps": 3}).run().timeline
    for rank in range(4):
        own = times.of(rank)
        work = (own.end - own.begin).reshape(3, -1)[:, :4]
        np.testing.assert_allclose(work, np.broadcast_to(work[0, 0], work.shape))
    assert len({float(times.of(rank).end[0]) for rank in range(4)}) == 4


def test_the_report_tells_percentiles_and_the_engine():
    text = Scenario.load("hello", {**JITTER, "simulation.repeats": 20}).run().report()
    assert "of 20 repeats; what follows is of the first\n" in text
    assert text.endswith("\nengine simpy: all 4 ranks simulated")
    text = Scenario.load("hello", {"simulation.engine": "compiled"}).run().report()
    assert "repeats" not in text
    assert text.endswith("\nengine compiled: 1 of 4 ranks simulated; each other rank does the same as one of them")
    text = Scenario.load("allreduce_dgx_a100").run().report()
    assert "all_reduce over 8 ranks, transport nccl, flow, engine simpy\n" in text


def test_a_run_writes_a_histogram_and_plot_draws_it(tmp_path, capsys):
    settings = ["--set", "simulation.jitter=0.05", "--set", "simulation.repeats=5"]
    assert run(["run", "hello", *settings]) == 0
    assert "wrote runs/hello/repeats.png\n" in capsys.readouterr().out
    written = (tmp_path / "runs/hello/repeats.png").read_bytes()
    assert written.startswith(b"\x89PNG")
    # from the written scenario, which keeps the repeats
    assert run(["plot", "runs/hello", "repeats", "-o", "again.png"]) == 0
    assert (tmp_path / "again.png").read_bytes() == written


@pytest.mark.exhaustive
def test_variants_have_their_own(tmp_path, capsys):
    settings = ["--set", "simulation.jitter=0.05", "--set", "simulation.repeats=5"]
    assert run(["run", "naive_vs_ddp", *settings]) == 0
    out = capsys.readouterr().out
    assert "p50 of repeats" in out
    result = json.loads((tmp_path / "runs/naive_vs_ddp/result.json").read_text())
    for name, one in result["variants"].items():
        assert list(one["step_time_percentiles_s"]) == ["p5", "p50", "p95"]
        assert f"wrote runs/naive_vs_ddp/repeats_{name}.png\n" in out


def test_there_must_be_repeats_to_draw(capsys, tmp_path):
    assert run(["plot", "hello", "repeats"]) == 2
    assert capsys.readouterr().err == (
        "there are no repeats to draw; give e.g. --set simulation.repeats=20 --set simulation.jitter=0.02\n"
    )
    with pytest.raises(SimulatorError, match="there is one step time"):
        draw_repeats([1.0], tmp_path / "one.png", title="one")


def test_every_repeat_is_in_a_bar():
    times = [1.0, 1.01, 1.02, 1.02, 1.5]
    (axes,) = repeats_chart(times, "five").axes
    assert sum(bar.get_height() for bar in axes.patches) == len(times)
    assert [line.get_xdata()[0] for line in axes.lines[1:]] == pytest.approx(np.percentile(times, [5, 50, 95]))


def test_other_charts_need_the_first_run_only(monkeypatch, capsys):
    def none(simulation, seeds):
        assert not seeds
        return []

    monkeypatch.setattr("clustersim.simulator.simulate.step_times", none)
    settings = ["--set", "simulation.jitter=0.05", "--set", "simulation.repeats=500"]
    assert run(["plot", "hello", "timeline", "-o", "one.png", *settings]) == 0
    assert capsys.readouterr().out == "one.png\n"


def test_the_title_names_the_cluster(tmp_path, capsys):
    settings = ["--set", "simulation.jitter=0.05", "--set", "simulation.repeats=3"]
    assert run(["plot", "hello", "repeats", "-o", str(tmp_path / "r.svg"), *settings]) == 0
    assert ">hello on 4 GPUs of uniform: step times of 3 repeats<" in (tmp_path / "r.svg").read_text()
