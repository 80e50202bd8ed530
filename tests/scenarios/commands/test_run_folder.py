"""Where `run` writes: no run is overwritten silently, nothing half-written stays, and progress covers all of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.commands.terminal import Progress
from clustersim.scenarios.results.run_folder import RESULT, written_into
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.simulate import SimulationRun

FEW = ["--set", "cluster.gpus=2", "--set", "training.global_batch_size=16"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def writing(*names: str) -> object:
    def write(folder: Path) -> Sequence[Path]:
        for name in names:
            (folder / name).write_text(name)
        return [folder / name for name in names]

    return write


def test_a_second_run_has_a_folder_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], FEW, []):
        assert run(["run", "hello", *options]) == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["hello", "hello-2", "hello-3"]
    first, second, third = (
        json.loads((tmp_path / "runs" / name / RESULT).read_text()) for name in ("hello", "hello-2", "hello-3")
    )
    assert first["step_time_s"] == third["step_time_s"] != second["step_time_s"]
    assert "runs/hello holds another run and stays as it is" in capsys.readouterr().out


def test_a_name_names_the_run_and_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "hello", "--name", "mine"]) == 0
    assert json.loads((tmp_path / "runs" / "mine" / RESULT).read_text())["name"] == "mine"
    assert run(["run", "hello", "--name", "../mine"]) == 2
    assert "must be the name of a folder below runs/" in capsys.readouterr().err
    assert run(["run", "hello", "allreduce_dgx_a100", "--name", "mine"]) == 2
    assert capsys.readouterr().err == "--name mine: names one run, not 2\n"


def test_a_folder_of_the_user_loses_what_a_former_run_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "gpipe_vs_varuna", "-o", "x"]) == 0
    (tmp_path / "x" / "mine.txt").write_text("mine")
    (tmp_path / "x" / "links.png").write_text("old")
    assert run(["run", "hello", "-o", "x"]) == 0
    assert everything(tmp_path / "x") == ["mine.txt", RESULT, "scenario.yaml", "spans.csv", "timeline.png"]
    assert "removed x/links.png, of a former run\n" in capsys.readouterr().out


def test_files_of_a_folder_without_a_run_stay(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "memory.png").write_text("mine")
    assert run(["run", "hello", "-o", "x"]) == 0
    assert "memory.png" in everything(tmp_path / "x")


def test_two_runs_of_one_name_in_one_folder_are_both_kept(tmp_path: Path) -> None:
    assert run(["run", "hello", "hello", "-o", "x"]) == 0
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["hello", "hello-2"]


@pytest.mark.parametrize("target", ["runs/hello", "x"])
@pytest.mark.parametrize("there", [False, True])
def test_an_interrupt_while_drawing_leaves_nothing_new(
    target: str, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-o", target] if target == "x" else []
    if there:
        assert run(["run", "hello", *where]) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    folders = set(tmp_path.rglob("*"))

    def interrupted(*arguments: object, **options: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("clustersim.simulator.charts.figures.draw", interrupted)
    assert run(["run", "hello", *FEW, *where]) == 130
    assert capsys.readouterr().err == f"interrupted: {target} was not written\n"
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert set(tmp_path.rglob("*")) == folders


def test_an_interrupt_of_the_simulation_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(Scenario, "run", interrupted)
    assert run(["run", "hello"]) == 130
    assert capsys.readouterr().err == ("interrupted: hello was not simulated to its end; nothing of it was written\n")
    assert everything(tmp_path) == []


@pytest.mark.exhaustive
def test_an_interrupted_process_says_so_and_leaves_no_folder(tmp_path: Path) -> None:
    code = (
        "import os, signal\n"
        "import clustersim.simulator.charts.figures as plot\n"
        "plot.draw = lambda *a, **o: os.kill(os.getpid(), signal.SIGINT)\n"
        "from clustersim.scenarios.commands.command_line import run\n"
        "raise SystemExit(run(['run', 'hello']))"
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "interrupted: runs/hello was not written\n")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert run(["run", "hello", "-o", "file/x"]) == 2
    assert capsys.readouterr().err.startswith("cannot write file")
    assert run(["run", "hello", "-o", "file"]) == 2
    assert everything(tmp_path) == ["file"]


def test_a_fault_while_writing_names_the_folder_that_was_asked_for(tmp_path: Path) -> None:
    def write(folder: Path) -> Sequence[Path]:
        raise SimulatorError(f"cannot write {folder / 'a'}: No space left on device")

    with pytest.raises(SimulatorError, match=r"^cannot write .*/x/y/a: No space left on device$"):
        written_into(tmp_path / "x" / "y", write, numbered=True)
    assert list(tmp_path.iterdir()) == []


def test_the_result_is_the_last_file_that_appears(tmp_path: Path) -> None:
    first = written_into(tmp_path / "x", writing(RESULT, "spans.csv"), numbered=False)  # type: ignore[arg-type]
    again = written_into(tmp_path / "x", writing(RESULT), numbered=False)  # type: ignore[arg-type]
    assert first == ([tmp_path / "x" / RESULT, tmp_path / "x" / "spans.csv"], [])
    assert again == ([tmp_path / "x" / RESULT], [tmp_path / "x" / "spans.csv"])


def test_progress_goes_from_0_to_1_over_several_simulations_and_files() -> None:
    followed: list[SimulationRun] = []
    shown = Progress("simulating", simulations=2)
    assert shown.fraction is None

    def watch(simulation: SimulationRun) -> None:
        shown(simulation)
        followed.append(simulation)

    Scenario.load("hello").run(watch)
    assert len(followed) == 2
    followed[-1].fraction = 0.5
    assert shown.fraction == 0.75
    shown.begin("writing", 4)
    shown.advance()
    assert shown.title == "writing"
    assert shown.fraction == pytest.approx(0.25)
    shown.begin("analysing")
    assert shown.fraction is None


@pytest.mark.parametrize("name", ["hello", "gpipe_vs_varuna", "allreduce_dgx_a100", "naive_vs_ddp"])
def test_simulations_are_counted_before_they_begin(name: str) -> None:
    from clustersim.scenarios.run.running import simulations

    scenario, seen = Scenario.load(name), list[SimulationRun]()
    scenario.run(seen.append)
    assert len(seen) == simulations(scenario)


@pytest.mark.parametrize(
    "name", ["hello", pytest.param("gpipe_vs_varuna", marks=pytest.mark.exhaustive), "allreduce_dgx_a100"]
)
def test_files_are_counted_before_they_are_written(name: str, tmp_path: Path) -> None:
    from clustersim.scenarios.results.result_files import count, write

    result, told = Scenario.load(name).run(), list[int]()
    paths = write(result, tmp_path / "x", finished=lambda: told.append(1))
    assert len(told) == len(paths) == count(result)
