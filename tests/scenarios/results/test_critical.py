"""The critical path of scenarios: in results, reports, charts and on the command line."""

import json
from pathlib import Path

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.commands.command_line import run
from clustersim.simulator import simulate


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("name", ["hello", "lecture_3d_32gpus", "dgx_a100_gpt2_xl_ddp"])
def test_seconds_by_kind_sum_to_the_step_time(name: str, steps: int) -> None:
    summary = Scenario.load(name, {"training.steps": steps}).run().summary()
    seconds = summary["critical_path_s"]
    assert list(seconds)[:6] == ["compute", "recompute", "optimizer", "tp", "pp", "dp"]
    assert sum(seconds.values()) == pytest.approx(summary["step_time_s"], rel=1e-9)


def test_a_straggler_is_named_in_the_report() -> None:
    result = Scenario.load("hello", {"simulation.stragglers": [{"rank": 2, "slowdown": 1.5}]}).run()
    lines = [line.strip() for line in result.report().splitlines()]
    (first,) = (place for place, line in enumerate(lines) if line.startswith("critical path: compute"))
    assert lines[first + 1].startswith("mostly on rank 2 (stage 0)")
    assert lines[first + 2].startswith("would gain at most: GPUs twice as fast 90 ms")


def test_show_critical(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "gpipe_vs_varuna", "critical"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [line for line in out.splitlines() if line.startswith("#")] == ["# gpipe", "# varuna", "# 1f1b"]
    for title in ("critical path: ", "by kind ", "by layer ", "by rank ", "longest stretches ", "longest ops "):
        assert sum(line.startswith(title) for line in out.splitlines()) == 3


def test_plot_critical(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["plot", "hello", "critical", "-o", "x.svg"]) == 0
    assert capsys.readouterr().out == "x.svg\n"
    assert "<svg" in (tmp_path / "x.svg").read_text()


@pytest.mark.parametrize(
    "command", [["show", "allreduce_dgx_a100", "critical"], ["plot", "allreduce_dgx_a100", "critical"]]
)
def test_a_collective_has_no_critical_path(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command) == 2
    assert capsys.readouterr() == ("", "allreduce_dgx_a100 measures a collective; it has no critical path\n")


def test_of_a_run_too_large_to_keep_every_span_it_is_absent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate, "MOST_SPANS", 10)
    large = {"simulation.jitter": 0.1, "simulation.engine": "compiled"}
    result = Scenario.load("hello", large).run()
    assert result.summary()["critical_path_s"] is None
    assert "critical path: absent, since a run of this size does not keep every span" in result.report()
    for command in ("show", "plot"):
        settings = [word for key, value in large.items() for word in ("--set", f"{key}={value}")]
        assert run([command, "hello", "critical", *settings]) == 2
        assert capsys.readouterr().err.startswith("no critical path: it needs the spans of all ranks")


def test_a_trace_marks_the_critical_path(tmp_path: Path) -> None:
    assert run(["run", "hello", "--json", "--trace", "t.json"]) == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    marked = sum(e["dur"] for e in events if e["ph"] == "X" and e["args"].get("critical_path"))
    assert marked == pytest.approx(Scenario.load("hello").run().timeline.makespan * 1e6)
