"""The next change against a bubble is simulated, and gains what the closed form says."""

from __future__ import annotations

from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.results.step_numbers import StepNumbers
from clustersim.scenarios.search import sensitivity as module
from clustersim.scenarios.search.sensitivity import next_change


def unit(layers: int, micro_batches: int = 8, **parallelism: Any) -> Scenario:
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {
                "preset": "uniform",
                "gpus": 4,
                "hosts": 1,
                "accelerator": "unit",
                "bandwidth": "100 GB/s",
                "latency": "0 s",
            },
            "model": {"kind": "unit", "num_layers": layers, "forward": "1 s", "backward": "2 s"},
            "training": {"global_batch_size": micro_batches, "micro_batch_size": 1},
            "parallelism": {"pp": 4, **parallelism},
            "network": {"transport": "ideal"},
        }
    )


def told(scenario: Scenario) -> str:
    result = scenario.run()
    assert isinstance(result, StepNumbers)
    return next_change(scenario, result)


def test_equal_stages_are_interleaved() -> None:
    # (m + p - 1) x 3 s x 2 layers, and with two virtual stages (m + (p - 1)/2) of them
    assert told(unit(8)) == (
        "next change: --set parallelism.schedule=interleaved --set parallelism.virtual_stages=2: "
        "66 s -> 57 s, 13.6% less (simulated)"
    )


def test_a_slow_stage_gives_a_layer_away() -> None:
    # the slowest stage of 5, 3, 3, 3 layers gives one to a neighbour; 3 s for each layer and micro-batch
    line = told(unit(14, 16, schedule="gpipe", layout=[5, 3, 3, 3]))
    before, after = 3 * (14 + 15 * 5), 3 * (14 + 15 * 4)
    assert line.startswith('next change: --set parallelism.layout="[4, ')
    assert f": {before} s -> {after} s, " in line


@pytest.mark.parametrize(
    "scenario",
    [unit(8, 256), unit(4), Scenario.load("hello")],
    ids=["a small bubble", "no change that fits", "no pipeline"],
)
def test_nothing_is_told_without_a_gain(scenario: Scenario) -> None:
    assert told(scenario) == ""


def test_large_runs_are_not_simulated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SPANS", 10)
    assert told(unit(8)) == ""


@pytest.mark.exhaustive
def test_the_command_prints_it_after_the_report(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    assert run(["run", "gpt_6_7b_64a100", "-o", str(tmp_path / "x")]) == 0
    assert "\n\nnext change: --set parallelism.schedule=interleaved" in capsys.readouterr().out
