"""`clustersim sweep`: output, files, charts, bad input and interrupts."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.run import sweep
from clustersim.simulator.reading.errors import ExecutionError
from tests.golden.text import lasting

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    assert run(["sweep", *arguments]) == status
    return capsys.readouterr()


def test_a_line_for_each_run_and_the_best_marked(capsys: pytest.CaptureFixture[str]) -> None:
    over = ("--over", "cluster.gpus=2,8,4", "--over", "training.global_batch_size=100,64")
    out, err = answer(capsys, "hello", *over, "-o", "r.csv")
    lines = out.splitlines()
    assert err == ""
    assert lines[0] == "hello: 6 runs, 1 without a result"
    assert lines[2].split() == ["2", "100", "130", "ms", "769.2", "0.0%", "3.3", "GB", "yes", "*"]
    assert lines[4].split() == ["8", "100"]
    assert lines[-3:] == [
        "* best samples_per_s",
        "cluster.gpus 8, training.global_batch_size 100: --over training.global_batch_size=100: 100 is not a multiple "
        "of dp 8; the nearest are 96 and 104",
        "wrote r.csv",
    ]
    with Path("r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["cluster.gpus"] for row in rows] == ["2", "2", "8", "8", "4", "4"]


def test_json_has_every_scalar_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = answer(capsys, "hello", "--over", "cluster.gpus=2,4", "--set", "training.global_batch_size=64", "--json")
    assert err == ""
    result = json.loads(out)
    assert (list(result), result["name"]) == (["name", "rows"], "hello")
    for row, gpus in zip(result["rows"], (2, 4), strict=True):
        alone = Scenario.load("hello", {"cluster.gpus": gpus, "training.global_batch_size": 64}).run().summary()
        assert (row["set"], row["error"]) == ({"cluster.gpus": gpus}, None)
        assert row["memory.peak_bytes"] == alone["memory"]["peak_bytes"]
        assert row["memory.stage_peak_bytes.0"] == alone["memory"]["stage_peak_bytes"][0]
        assert row["simulation.engine"] == "simpy"


def test_a_collective_is_told_by_its_largest_size(capsys: pytest.CaptureFixture[str]) -> None:
    out = answer(capsys, "allreduce_dgx_a100", "--over", "network.algorithms.all_reduce=ring,tree").out.splitlines()
    assert [line.split()[:3] for line in out[1:4]] == [
        ["network.algorithms.all_reduce", "size", "time"],
        ["ring", "1.07", "GB"],
        ["tree", "1.07", "GB"],
    ]
    assert out[-1] == "* best collective.7.busbw"


def test_a_chart_stands_beside_the_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    gpus = ("--over", "cluster.gpus=2,4")
    out = answer(capsys, "hello", *gpus, "-o", "d/r.csv.gz", "--plot", "cluster.gpus:mfu_6nd", status=2)
    assert out.err == 'nothing to draw: no run has a number "mfu_6nd"\n'
    assert Path("d/r.csv.gz").is_file()
    out = answer(capsys, "hello", *gpus, "-o", "d/r.csv.gz", "--plot", "cluster.gpus:step_time_s")
    assert out.out.endswith("wrote d/r.csv.gz\nwrote d/r.png\n")
    out = answer(capsys, "hello", *gpus, "--plot", "cluster.gpus:samples_per_s", "--json")
    assert out.err == "wrote hello_sweep.png\n"
    assert Path("hello_sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--over parallelism.tpp=1,2", '--over parallelism.tpp=1: unknown key\n     help: did you mean "tp"?'),
        ("--over cluster.gpus=", "--over cluster.gpus: has no values; give some as in --over parallelism.tp=1,2,4"),
        ("--over cluster.gpus", "--over cluster.gpus: needs values; write it as in --over parallelism.tp=1,2,4"),
        ("--over cluster.gpus=2,,4", "--over cluster.gpus=2,,4: has an empty value"),
        ("--over cluster.gpus=2,", "--over cluster.gpus=2,: has an empty value"),
        ("--over cluster.gpus=2,2", "--over cluster.gpus: the value 2 is given twice"),
        (
            "--over cluster.gpus=2 --over cluster.gpus=4",
            "--over cluster.gpus: is given twice; give all its values at once",
        ),
        ("--over cluster.gpus=two", '--over cluster.gpus=two: must be a whole number, not "two"'),
        (
            "--over cluster.gpus=2,4 --over parallelism.pp=1 --zip",
            "a zip needs equally many values of each key: cluster.gpus has 2, parallelism.pp has 1",
        ),
        ("--over cluster.gpus=2 -o r.txt", "r.txt: the name must end with one of .csv, .csv.gz, .parquet"),
        ("--over cluster.gpus=2 -o file/r.csv", "cannot write file/r.csv: Not a directory"),
        ("--over cluster.gpus=2 -o folder.csv", "cannot write folder.csv: Is a directory"),
        (
            "--over cluster.gpus=2 --plot mfu",
            "--plot mfu: write columns as x:y or x:y:hue, e.g. parallelism.tp:step_time_s",
        ),
        ("--over cluster.gpus=2,4 --plot gpus:mfu", 'the sweep has no column "gpus"; did you mean "cluster.gpus"?'),
        ("--over cluster.gpus=2,4 --plot cluster.gpus:mfuu", 'the sweep has no column "mfuu"; did you mean "mfu"?'),
        ("--over cluster.gpus=2 --plot cluster.gpus:mfu", "nothing to draw: cluster.gpus has one value"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("file").touch()
    Path("folder.csv").mkdir()
    monkeypatch.setattr("clustersim.scenarios.run.running.run", None)
    assert answer(capsys, "hello", *arguments.split(), status=2) == ("", f"{message}\n")
    assert sorted(path.name for path in Path().iterdir()) == ["file", "folder.csv"]


def test_a_column_that_the_results_lack_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    plot = ("--plot", "cluster.gpus:memory.peek_bytes")
    out = answer(capsys, "hello", "--over", "cluster.gpus=2,4", *plot, "-o", "r.csv", status=2)
    assert out.err == 'the sweep has no column "memory.peek_bytes"; did you mean "memory.peak_bytes"?\n'
    # what was simulated is not lost
    assert Path("r.csv").is_file()


def test_a_sweep_without_any_result_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    out = answer(capsys, "hello", "--over", "parallelism.tp=3,5", status=2).out
    assert out.startswith("hello: 2 runs, 2 without a result\n")
    assert "parallelism.tp 5: --over parallelism.tp=5: tp 5 x pp 1 x dp 1 needs 5 GPUs, but there are 4" in out


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.exhaustive)])
def test_an_interrupt_keeps_the_rows_that_are_done(jobs: str) -> None:
    # the signal goes to the whole process group, as from a terminal
    code = (
        "import os, signal, sys\n"
        "from clustersim.scenarios.run import sweep as runs\n"
        "executed = runs.executed\n"
        "def interrupted(*arguments):\n"
        "    for number, row in enumerate(executed(*arguments)):\n"
        "        yield row\n"
        "        if number == 2: os.killpg(0, signal.SIGINT)\n"
        "runs.executed = interrupted\n"
        "sys.argv[0] = 'clustersim'\n"
        "from clustersim.scenarios.commands.command_line import main\n"
        "main()"
    )
    over = ["--over", "cluster.gpus=2,4,8,16", "--over", "training.global_batch_size=32,64,128,256"]
    command = [sys.executable, "-c", code, "sweep", "hello", *over, "-j", jobs, "-o", "r.csv"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # output ends when all processes that have inherited it have ended
    done = subprocess.run(command, env=environment, capture_output=True, text=True, start_new_session=True, check=False)
    told = "interrupted: 3 of 16 runs were done; their rows are in r.partial.csv"
    assert (done.returncode, done.stdout, lasting(done.stderr)) == (130, "", [told])
    assert [path.name for path in Path().iterdir()] == ["r.partial.csv"]
    assert len(Path("r.partial.csv").read_text().splitlines()) == 1 + 3


def test_a_lost_cluster_keeps_the_rows_that_are_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    executed = sweep.executed

    def lost(*arguments: Any) -> Any:
        yield next(executed(*arguments))
        raise ExecutionError("the Dask scheduler at tcp://host:8786 is lost")

    monkeypatch.setattr(sweep, "executed", lost)
    told = "the Dask scheduler at tcp://host:8786 is lost; 1 of 2 runs were done; their rows are in r.partial.csv\n"
    assert answer(capsys, "hello", "--over", "cluster.gpus=2,4", "-o", "r.csv", status=2) == ("", told)
    assert len(Path("r.partial.csv").read_text().splitlines()) == 1 + 1


def test_processes_change_nothing_in_a_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for jobs in ("1", "2"):
        assert run(["compare", "gpipe_vs_varuna", "-j", jobs]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
