"""`clustersim validate` from end to end: text, JSON, files, rejected options, and its end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clustersim.scenarios.commands.command_line import run
from tests.extras import require
from tests.golden.text import lasting

require("torch")

SCENARIO = """
version: 1
cluster: {preset: uniform, gpus: 4, hosts: 1, bandwidth: 1 GB/s, latency: 50 us, accelerator: unit}
model: {kind: unit, num_layers: 2, forward: 1 ms, backward: 2 ms, parameters: 10e3}
training: {global_batch_size: 8}
network: {transport: gloo}
"""
COMMAND = [sys.executable, "-c", "from clustersim.scenarios.commands.command_line import main; main()"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(SCENARIO)


def answer(capsys, *arguments, status=0):
    assert run(["validate", *arguments]) == status
    out, err = capsys.readouterr()
    return err if status else out


def test_simulated_stands_beside_measured(capsys):
    out = answer(capsys, "tiny.yaml", "--ranks", "2", "--repeat", "2")
    assert out.startswith(
        "tiny: 2 ranks with gloo, computing by sleeping; the median of 2 repetitions after a warm-up\n"
    )
    header, step, communication, computation = out.split("\n\n")[1].splitlines()
    assert header.split() == ["number", "each", "simulated", "measured", "error"]
    assert step.split()[0] == "step"
    # 10,000 parameters of 4 B, in torch's first bucket
    assert communication.split()[:5] == ["dp", "all_reduce", "1", "40", "kB"]
    assert computation.split()[:2] == ["computation", "8"]
    assert "where the step time went" in out
    assert "order of ops: as simulated on every stream of all 2 ranks" in out
    assert sorted(path.name for path in Path("runs/tiny").iterdir()) == [
        "measured_spans.csv",
        "validation.json",
        "validation.png",
    ]
    before = Path("runs/tiny/validation.json").read_bytes()
    again = answer(capsys, "tiny.yaml", "--ranks", "2", "--repeat", "1")
    assert "wrote runs/tiny-2/validation.json" in again
    assert again.endswith("runs/tiny holds another run and stays as it is\n")
    assert Path("runs/tiny/validation.json").read_bytes() == before


def test_json_is_the_contract_and_nothing_is_written(capsys):
    result = json.loads(answer(capsys, "tiny.yaml", "--ranks", "2", "--repeat", "3", "--json"))
    assert result["name"] == "tiny"
    simulated, measured = result["simulated_step_time_s"], result["measured_step_time_s"]
    assert measured == sorted(result["repeats_s"])[1]
    assert result["relative_error"] == pytest.approx(simulated / measured - 1)
    # two layers forward and back
    assert simulated > 6e-3 <= measured
    assert {(one["rank"], one["op"]) for one in result["ops"]} == {
        (rank, op) for rank in (0, 1) for op in {one["op"] for one in result["ops"]}
    }
    assert all(set(one) == {"rank", "op", "simulated_s", "measured_s"} for one in result["ops"])
    assert result["same_order"] is True
    assert [path.name for path in Path().iterdir()] == ["tiny.yaml"]


def test_variants_are_replayed_one_by_one(capsys):
    Path("two.yaml").write_text(SCENARIO + "variants: {ddp: {}, naive: {parallelism.data: {method: naive}}}\n")
    result = json.loads(answer(capsys, "two.yaml", "--ranks", "2", "--repeat", "1", "--json"))
    assert set(result["variants"]) == {"ddp", "naive"}
    assert {line["what"] for line in result["variants"]["naive"]["kinds"]} >= {"dp scatter", "dp gather"}


def test_a_collective_alone_and_scaled(capsys):
    Path("sum.yaml").write_text(
        "version: 1\n"
        "cluster: {preset: uniform, gpus: 4, bandwidth: 1 GB/s, latency: 50 us, accelerator: unit}\n"
        "collective: {kind: all_reduce, size: [1 kB, 1 MB]}\n"
        "network: {transport: ideal}\n"
    )
    out = answer(capsys, "sum.yaml", "--ranks", "2", "--repeat", "1", "--scale", "0.5")
    assert "note: all that is communicated was scaled by 0.5, in the simulation too" in out
    assert "note: simulated with transport ideal, replayed with gloo: --set network.transport=gloo" in out
    assert " 500 B " in out
    assert " 500 kB " in out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--backend", "ncll"], '--backend ncll: must be gloo or nccl; did you mean "nccl"?'),
        (["--compute", "run"], "--compute run: must be sleep, spin or kernels"),
        (["--scale", "0"], "--scale 0: must be above 0"),
        (["--timeout", "-1"], "--timeout -1: must be above 0"),
        (["--ranks", "9"], "--ranks 9: tp 1 x pp 1 x dp 9 needs 9 GPUs, but there are 4"),
        (
            ["--ranks", "3", "--set", "parallelism.pp=2"],
            "--ranks 3: must be a multiple of tp 1 x pp 2 = 2",
        ),
        (
            ["--ranks", "1", "--set", "parallelism.data={method: parameter_server}"],
            "--ranks 1: must be a multiple of tp 1 x pp 1 = 1, plus 1 for parameter servers",
        ),
    ],
)
def test_a_fault_is_reported_in_one_line(options, expected, capsys):
    assert answer(capsys, "tiny.yaml", *options, status=2) == f"{expected}\n"


@pytest.mark.exhaustive
def test_too_many_ranks_for_one_machine(capsys):
    told = "mt_nlg_530b: 2240 ranks exceed the 64 of one machine; use --ranks, or torchrun\n"
    assert answer(capsys, "mt_nlg_530b", status=2) == told


@pytest.mark.exhaustive
def test_without_torch_it_says_what_to_install():
    Path("torch.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')\n")
    done = subprocess.run(
        [*COMMAND, "validate", "tiny.yaml", "--ranks", "2"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": "."},
        timeout=60,
    )
    assert done.returncode == 2
    install = 'torch is not installed, and ranks need it: run pip install -e ".[torch]" in a clone of clustersim\n'
    # a slow machine may say before how far it is
    assert re.search(rf"^rank \d failed: {re.escape(install)}\Z", done.stderr, re.M)


def started(*options):
    """A validation without end, in a process session of its own, after its first measurement."""
    command = subprocess.Popen(
        [*COMMAND, "validate", "tiny.yaml", "--ranks", "2", "--repeat", "100000", *options],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # the command, the resource tracker, the fork server, two ranks
    for _ in range(600):
        if len(session(command.pid)) == 5:
            break
        time.sleep(0.05)
    time.sleep(0.5)
    return command


def session(number):
    """The processes of a session, oldest first."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(after_name[3]) == number and after_name[0] != "Z":
            found.append((int(after_name[19]), int(path.parent.name)))
    return [process for _, process in sorted(found)]


def all_gone(number):
    for _ in range(100):
        if not session(number):
            return True
        time.sleep(0.05)
    return False


def test_a_killed_rank_is_reported_and_measurements_are_kept():
    command = started()
    os.kill(session(command.pid)[-1], signal.SIGKILL)
    _, err = command.communicate(timeout=60)
    assert command.returncode == 2
    (told,) = lasting(err)
    assert told.startswith(("rank 0 died (SIGKILL); the warm-up", "rank 1 died (SIGKILL); the warm-up"))
    assert told.endswith(" had been measured: runs/tiny/measured_spans_*.csv")
    assert Path("runs/tiny/measured_spans_0.csv").read_text().startswith("rank,")
    assert all_gone(command.pid)


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_do_not_outlive_a_command_that_is_killed(how):
    command = started()
    command.send_signal(how)
    command.communicate(timeout=60)
    assert command.returncode == -how
    assert all_gone(command.pid)


@pytest.mark.exhaustive
def test_an_interrupt_from_the_terminal():
    command = started()
    os.killpg(command.pid, signal.SIGINT)
    _, err = command.communicate(timeout=60)
    assert (command.returncode, lasting(err)) == (130, ["interrupted"])
    assert all_gone(command.pid)


@pytest.mark.exhaustive
def test_under_torchrun_its_processes_are_the_ranks():
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    done = subprocess.run(
        [*torchrun, *COMMAND, "validate", "tiny.yaml", "--ranks", "2", "--repeat", "1", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ranks"] == 2
    assert result["same_order"] is True
