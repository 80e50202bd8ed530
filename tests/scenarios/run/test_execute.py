"""The executor: jobs here and in processes end with results or failures, each index once."""

import operator
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from clustersim.scenarios import Scenario
from clustersim.scenarios.run.execution import execute
from clustersim.scenarios.run.processes import Failure, outcome
from clustersim.simulator.reading.errors import DeadlockError, ExecutionError, ScenarioError

ROOT = Path(__file__).parents[3]


def sorted_outcomes(jobs: Any, processes: int) -> list[Any]:
    found = list(execute(jobs, processes))
    assert sorted(index for index, _ in found) == list(range(len(found)))
    return [result for _, result in sorted(found, key=lambda one: one[0])]


@pytest.mark.parametrize("processes", [1, 3])
def test_each_job_has_one_outcome(processes: int) -> None:
    assert sorted_outcomes([(operator.neg, number) for number in range(50)], processes) == [-n for n in range(50)]
    assert sorted_outcomes([], processes) == []


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_is_an_outcome_and_the_others_go_on(processes: int) -> None:
    wrong, right, unexpected = sorted_outcomes([(Scenario.load, "helo"), (abs, -1), (int, "x")], processes)
    assert wrong.message.startswith('unknown scenario "helo"; did you mean "hello"?')
    assert (wrong.kind, right) == ("ScenarioError", 1)
    assert unexpected.message.startswith("unexpected ValueError: invalid literal for int() with base 10: 'x' (")


def test_a_process_that_dies_loses_its_own_job_only() -> None:
    found = sorted_outcomes([(abs, -1), (os._exit, 3), (abs, -2), (abs, -3), (abs, -4)], 2)
    assert found == [1, Failure("its process died (exit status 3), 2 times"), 2, 3, 4]


def test_a_job_whose_process_was_killed_runs_again(tmp_path: Path) -> None:
    # a function of this module is not importable in other processes: `exec` stands for one
    code = (
        "import os, pathlib, signal\n"
        f"path = pathlib.Path({str(tmp_path / 'seen')!r})\n"
        "if not path.exists():\n    path.touch()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert sorted_outcomes([(exec, code), (abs, -1)], 2) == [None, 1]
    always, _ = sorted_outcomes([(exec, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"), (abs, -1)], 2)
    assert always.message == "its process died (SIGKILL), 2 times; perhaps the machine ran out of memory"


def test_jobs_are_taken_when_they_can_run() -> None:
    taken = []

    def jobs() -> Iterator[Any]:
        for number in range(100):
            taken.append(number)
            yield abs, number

    for processes, most in ((1, 1), (2, 3)):
        taken.clear()
        ended = execute(jobs(), processes)
        next(ended)
        ended.close()
        assert len(taken) <= most


def test_closing_ends_the_processes() -> None:
    before = set(active_children())
    jobs: Any = [(abs, -1), (time.sleep, 1000), (time.sleep, 1000)]
    ended = execute(jobs, 3)
    assert next(ended) == (0, 1)
    assert len(set(active_children()) - before) == 3
    ended.close()
    assert set(active_children()) == before


def test_a_script_is_not_executed_again_in_each_process(tmp_path: Path) -> None:
    script = (
        "from clustersim.scenarios.run.execution import execute\nprint(sorted(execute([(abs, -1), (abs, -2)], 2)))\n"
    )
    path = tmp_path / "script.py"
    path.write_text(script)
    for arguments, text in (([str(path)], ""), (["-"], script)):
        command = [sys.executable, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, input=text, env=environment, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("[(0, 1), (1, 2)]\n", "")


def test_processes_work_in_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sorted_outcomes([(os.path.realpath, "x"), (os.path.realpath, "y")], 2) == [
        str(tmp_path / "x"),
        str(tmp_path / "y"),
    ]


def test_the_error_of_a_failure_keeps_the_exit_status() -> None:
    def circle(_: int) -> None:
        raise DeadlockError("rank 0 waits for rank 1")

    failed = outcome(circle, 0)
    assert isinstance(failed, Failure)
    assert isinstance(failed.error(), DeadlockError)
    assert str(failed.error()) == "rank 0 waits for rank 1"
    assert isinstance(Failure("no", ScenarioError.__name__).error(), ExecutionError)
