"""The executor on a Dask cluster: a real scheduler and two worker processes on this machine."""

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios.commands.command_line import run
from clustersim.scenarios.run import execution
from clustersim.scenarios.run import execution as versions
from clustersim.scenarios.run.execution import execute
from clustersim.scenarios.run.processes import Failure
from clustersim.simulator.reading.errors import ExecutionError
from tests.extras import require

require("distributed")

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a scheduler with two workers of one thread each; one dies in a test below."""
    import distributed

    folder = tmp_path_factory.mktemp("dask")
    file = folder / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--scheduler-file", str(file)]
    started = [_started([*command, "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show"], folder)]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(file)]
    worker += ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(folder)]
    try:
        started += [_started(worker, folder) for _ in range(2)]
        with distributed.Client(scheduler_file=str(file), set_as_default=False) as client:
            client.wait_for_workers(2)
            found = client.scheduler.address
        yield found
    finally:
        for process in started:
            process.kill()
            process.wait()


def _started(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)


pytestmark = pytest.mark.cluster


def test_an_address_without_a_scheduler_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, reason in (
        ("tcp://127.0.0.1:1", "Connection refused"),
        ("x", "write the address as in tcp://host:8786"),
    ):
        assert run(["sweep", "hello", "--over", "cluster.gpus=2,4", "--on", wrong]) == 2
        assert capsys.readouterr().err == f"no Dask scheduler answers at {wrong}: {reason}\n"


def test_without_dask_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ExecutionError, match=r"dask\[distributed\], which is not installed: run pip install"):
        list(execute([(abs, 1)], on="tcp://127.0.0.1:1"))


def test_a_failing_job_is_a_failure(address: str) -> None:
    jobs: Any = [(abs, -1), (int, "x"), (abs, -3)]
    found = dict(execute(jobs, on=address))
    assert (found[0], found[2]) == (1, 3)
    assert isinstance(found[1], Failure)
    assert found[1].message.startswith("unexpected ValueError: invalid literal for int()")


def test_a_sweep_there_gives_the_rows_of_one_here(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # the file of the layers is relative to a folder that the workers do not work in
    Path("layers.csv").write_text((ROOT / "scenarios/published/layer_profiles_v100.csv").read_text())
    Path("own.yaml").write_text(
        "version: 1\ncluster: {preset: zhores, nodes: 2}\n"
        "model: {profile: layers.csv, model: resnet50}\n"
        "training: {global_batch_size: 512}\n"
    )
    over = ["--over", "cluster.nodes=1,2,3"]
    for name, options in (("here.csv", []), ("there.csv", ["--on", address])):
        assert run(["sweep", "own.yaml", *over, "-o", name, *options]) == 0, capsys.readouterr().err
    here, there = (list(csv.DictReader(Path(name).read_text().splitlines())) for name in ("here.csv", "there.csv"))
    for row in (*here, *there):
        row.pop("simulation.wall_s")
    assert here == there
    assert len(here) == 3


def test_other_versions_are_refused_with_one_message(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = versions.versions()
    monkeypatch.setattr(execution, "versions", lambda: {**real, "numpy": "0.1"})
    for late in (False, True):
        if late:
            # a worker that joins after the check of all others refuses the jobs by itself
            monkeypatch.setattr(execution, "_check_versions", lambda client, address: None)
        told = f"of {address} cannot share the runs, it needs the versions used here: numpy {real['numpy']} in "
        told += "place of 0.1"
        with pytest.raises(ExecutionError) as refused:
            list(execute([(abs, 1), (abs, 2)], on=address))
        assert str(refused.value).endswith(told)
        assert len(str(refused.value).splitlines()) == 1


def test_a_worker_that_dies_loses_nothing(address: str, tmp_path: Path) -> None:
    # every job leaves a file, so that it is known which ones were executed twice
    log = tmp_path / "log"
    job = f"import os, time\nopen({str(log)!r}, 'a').write(f'{{os.getpid()}}\\n')\ntime.sleep(0.02)"
    found, killed = [], 0
    with closing(execute([(exec, job)] * 60, on=address)) as ended:
        for index, result in ended:
            found.append((index, result))
            if len(found) == 20:
                killed = int(log.read_text().split()[-1])
                os.kill(killed, signal.SIGKILL)
    assert sorted(found) == [(index, None) for index in range(60)]
    workers = log.read_text().split()
    assert len(workers) > 60 - 1
    assert set(workers[-10:]) == {one for one in workers if int(one) != killed}
