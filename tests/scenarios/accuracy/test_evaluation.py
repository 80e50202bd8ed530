"""Evaluation of scenarios: comparisons by figure, group and category, and runs that fail."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.accuracy import comparisons
from clustersim.scenarios.accuracy.accuracy import page, rows_page
from clustersim.scenarios.accuracy.comparisons import SourceErrors, group, headline
from clustersim.scenarios.accuracy.evaluation import Evaluation, error_statistics, evaluate
from clustersim.scenarios.commands.command_line import run
from clustersim.simulator.reading.errors import ScenarioError

# four layers of 1 + 2 s on each of two GPUs: 12 s a micro-batch, or 24 s for two
SCENARIO = """\
version: 1
description: A toy
cluster: {preset: uniform, gpus: 2, hosts: 1, bandwidth: 1 GB/s, latency: 0 s}
model: {kind: unit, num_layers: 4, forward: 1 s, backward: 2 s, parameters: 0, activations: 0 B}
training: {global_batch_size: 2, micro_batch_size: 1}
network: {transport: ideal}
variants:
  one: {expect.step_time_s: {value: 10 s, tolerance: 0.3, fitted: true}}
  two:
    training.global_batch_size: 4
    expect.step_time_s: {value: 2, relative_to: one, tolerance: 0.01}
    expect.samples_per_s: {value: 0.2, tolerance: 0.1}
  unexpected: {training.global_batch_size: 8}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # no line of progress, however slow the machine is
    monkeypatch.setattr("clustersim.scenarios.commands.terminal.Due.wait", lambda now: 1e6)
    Path("toy.yaml").write_text(SCENARIO)


def evaluated(jobs: int = 1) -> list[Evaluation]:
    return list(evaluate([Scenario.load("toy.yaml")], jobs))


def test_each_figure_has_a_comparison() -> None:
    (evaluation,) = evaluated()
    told = [(one.run, one.outcome.key, one.outcome.met, round(one.outcome.error, 9)) for one in evaluation.comparisons]
    assert told == [
        ("one", "step_time_s", True, 0.2),
        ("two", "step_time_s", True, 0.0),
        ("two", "samples_per_s", False, round(1 / 6 / 0.2 - 1, 9)),
    ]


def test_a_throughput_too_low_is_a_time_too_long() -> None:
    (evaluation,) = evaluated()
    assert [one.outcome.slower for one in evaluation.comparisons] == pytest.approx([0.2, 0.0, 0.2])


def test_the_statistics_of_errors() -> None:
    (evaluation,) = evaluated()
    found = error_statistics(evaluation.comparisons)
    assert found is not None
    assert found.count == 3
    assert [found.mean, found.middle, found.worst] == pytest.approx([(0.2 + 0 + 1 / 6) / 3, 1 / 6, 0.2])
    assert error_statistics([]) is None


def test_processes_change_nothing() -> None:
    assert evaluated(jobs=2)[0].comparisons == evaluated()[0].comparisons


def test_times_are_seconds_of_steps() -> None:
    # 0.2 samples/s are 20 s for 4 of them, and 24 are predicted
    times = comparisons.times(evaluated())
    assert list(times) == ["toy"]
    assert [seconds for pair in times["toy"] for seconds in pair] == pytest.approx([10, 12, 20, 24])


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, status: int) -> tuple[str, str]:
    assert run([*arguments]) == status
    return capsys.readouterr()


def test_several_runs_are_told_in_a_table_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, err = answer(capsys, "run", "toy.yaml", "--check", status=1)
    assert err == ""
    lines = out.splitlines()
    assert lines[0].split() == ["scenario", "run", "figure", "predicted", "measured", "error"]
    assert lines[1].split() == ["toy", "one", "step_time_s", "12", "s", "10", "s", "+20.0%", "ok,", "fitted"]
    assert lines[2].split() == ["toy", "two", "step_time_s", "/", "one", "2", "2", "+0.0%", "ok"]
    assert lines[3].split() == ["toy", "two", "samples_per_s", "0.1667", "0.2", "-16.7%", "MISSED", "(within", "10%)"]
    assert lines[-1] == "2 of 3 figures within their tolerance"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["toy.yaml"]


def test_jobs_belong_to_a_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "run", "toy.yaml", "-j", "2", status=2)[1] == (
        "--jobs shares the runs of --check; give that too\n"
    )


def test_json_has_the_figures_too(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = answer(capsys, "run", "toy.yaml", "--check", "--json", status=1)
    result: dict[str, Any] = json.loads(out)
    assert err == ""
    assert list(result["variants"]) == ["one", "two", "unexpected"]
    assert [(one["variant"], one["key"], one["met"], one["fitted"]) for one in result["expected"]] == [
        ("one", "step_time_s", True, True),
        ("two", "step_time_s", True, False),
        ("two", "samples_per_s", False, False),
    ]


def test_one_run_that_cannot_be_does_not_hide_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    uneven = "  uneven: {cluster.gpus: 3, parallelism.pp: 3, expect.mfu: {value: 1}}\n"
    Path("toy.yaml").write_text(SCENARIO + uneven)
    out, err = answer(capsys, "run", "toy.yaml", "--check", status=2)
    assert "2 of 3 figures within their tolerance" in out
    assert err.startswith("toy (uneven): toy.yaml:")
    assert "3 stages do not divide the 4 layers of unit" in err


def test_the_page_of_rows_tells_every_figure_and_what_is_predicted_only() -> None:
    text = rows_page(evaluated(), [], "clustersim accuracy toy.yaml", date(2026, 1, 2))
    assert "Made by `clustersim accuracy toy.yaml` on 02 January 2026." in text
    assert "| [toy](#toy) | 3 | 2 | 12.2% | 16.7% | 20.0% | +13.3% |" in text
    assert "| one | step_time_s | 12 s | 10 s | +20.0% | ok, fitted |" in text
    assert "| two | samples_per_s | 0.1667 | 0.2 | -16.7% | MISSED (within 10%) |" in text
    assert "Predicted only: unexpected, 48 s a step" in text
    # all figures of time and throughput are in one category: two GPUs, DDP
    assert "| GPUs: 1 to 8 | 3 | 2 |" in text
    assert "| data parallel: ddp | 3 | 2 |" in text


def test_the_page_tells_sources_and_what_was_not_evaluated() -> None:
    (one,) = evaluated()
    one = replace(one, refused={"three": "/home/me/toy.yaml:3:2: cluster.gpus: is absurd\n  3 | gpus"})
    text = page([one], {"other": "not evaluated yet"}, [], "clustersim accuracy toy.yaml", date(2026, 1, 2))
    assert "| steps | strangers | 1 | 3 | 13.3% | +13.3% |" in text
    assert "| toy | stranger | 3 | 13.3% | +13.3% |" in text
    assert "- other: not evaluated yet\n- toy: three: refused: toy.yaml:3:2: cluster.gpus: is absurd\n" in text
    # one source has no others whose intervals it could have
    assert "Sources above" not in text


def test_every_source_counts_once_and_those_that_inform_constants_apart() -> None:
    def source(name: str, *errors: float) -> SourceErrors:
        return SourceErrors(name, "steps", errors, errors)

    assert (group("toy"), group("vtrain"), group("llm_foundry"), group("internlm_7b_a100"), group("bloom")) == (
        "stranger",
        "left out",
        "informs",
        "informs",
        "seen",
    )
    many = source("toy", *[0.1] * 99)
    found = headline([many, source("bloom", -0.3, -0.3), source("other", 0.2)])
    assert found is not None
    assert (found.sources, found.rows, found.far) == (3, 102, 1)
    assert [found.mean, found.bias] == pytest.approx([0.2, 0.1])
    assert headline([]) is None


def test_a_refused_variant_is_left_out_and_told() -> None:
    Path("toy.yaml").write_text(SCENARIO + "  bad: {cluster.gpus: 2000000000}\n")
    refused: dict[str, str] = {}
    scenario = Scenario.load("toy.yaml", refused=refused)
    assert list(scenario.variants) == ["one", "two", "unexpected"]
    assert list(refused) == ["bad"]
    with pytest.raises(ScenarioError, match="gpus"):
        Scenario.load("toy.yaml")


def test_the_command_writes_the_pages_and_its_charts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, err = answer(capsys, "accuracy", "toy.yaml", "-o", "page.md", "--figures", "drawn", status=0)
    assert err == ""
    assert out.endswith("wrote page.md\nwrote page_rows.md\nwrote drawn/accuracy.png\n")
    assert (tmp_path / "page.md").read_text().startswith("# Accuracy\n")
    assert (tmp_path / "page_rows.md").read_text().startswith("# All figures\n")
    assert (tmp_path / "drawn" / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_all_figures_are_a_page_of_the_site_if_there_is_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    answer(capsys, "accuracy", "toy.yaml", "-o", "ACCURACY.md", status=0)
    assert (tmp_path / "docs" / "accuracy_rows.md").exists()


def test_intervals_need_steps_of_several_sources(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = answer(capsys, "accuracy", "toy.yaml", "--intervals", "intervals.json", status=2)
    assert err == "intervals.json: intervals need steps of 10 sources that inform no constant\n"


def test_what_is_left_out_is_told_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "accuracy", "toy.yaml", "zero_bubble", "--except", "zero_bubble", "-o", "page.md", status=0)
    text = Path("page.md").read_text()
    assert "Made by `clustersim accuracy toy.yaml zero_bubble --except zero_bubble` on" in text
    assert "## What could not be evaluated here\n\n- zero_bubble: left out with --except\n" in text
    _, err = answer(capsys, "accuracy", "--except", "zero_bobble", status=2)
    assert err.startswith('unknown scenario "zero_bobble"; did you mean "zero_bubble"? ')


def test_some_runs_only_leave_the_page_of_all_runs_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ACCURACY.md").write_text("all runs\n")
    out, err = answer(capsys, "accuracy", "toy.yaml", status=0)
    assert err == ""
    assert out.endswith("some of the published runs: ACCURACY.md is left as it is; -o FILE.md writes a page of these\n")
    assert "toy          3  12.2%" in out
    assert sorted(path.name for path in Path().iterdir()) == ["ACCURACY.md", "toy.yaml"]
    assert Path("ACCURACY.md").read_text() == "all runs\n"


def test_absent_data_are_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    Path("absent.yaml").write_text(SCENARIO.partition("variants:")[0] + "table: {file: ../none/runs.csv, name: a}\n")
    for command in (["accuracy", "absent.yaml"], ["run", "--check", "absent.yaml", "hello"]):
        _, err = answer(capsys, *command, status=2)
        assert err.startswith("absent.yaml:7:15: table.file: ../none/runs.csv: no such file\n")
    assert not Path("ACCURACY.md").exists()
