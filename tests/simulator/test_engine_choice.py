"""The choice of the engine, and the messages if numba is not installed."""

import json
import subprocess
import sys

import pytest

from clustersim.scenarios.scenario import Scenario
from clustersim.simulator import engine_choice as choice
from clustersim.simulator import simulate
from clustersim.simulator.engine_choice import COMPILED_FIRST_FROM, COMPILED_FROM, choose
from clustersim.simulator.reading.errors import SimulatorError

BLOCKED = (
    "import sys; sys.modules['numba'] = None; "
    "from clustersim.scenarios.commands.command_line import main; sys.argv[0] = 'clustersim'; main()"
)
"""The command line where numba is not installed."""

TWICE = ("run", "--json", "hello", "hello")
LARGE = ("--set", "simulation.fold=false", "--set", f"training.steps={COMPILED_FROM // 52 + 1}")
"""A step of hello has 52 ops."""


def without_numba(*arguments, status=0):
    """(stdout, stderr) of the command line."""
    done = subprocess.run([sys.executable, "-c", BLOCKED, *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("engine", "ops", "chosen"),
    [
        ("auto", COMPILED_FROM - 1, "simpy"),
        ("auto", COMPILED_FROM, "compiled"),
        ("simpy", 10**9, "simpy"),
        ("compiled", 1, "compiled"),
    ],
)
def test_small_simulations_take_simpy(engine, ops, chosen, monkeypatch):
    monkeypatch.setattr(choice, "_compiled_before", lambda: True)
    assert choose(engine, ops) == chosen


def test_an_engine_that_was_never_compiled_is_compiled_when_simpy_would_take_as_long(monkeypatch):
    """In a sweep or repeats SimPy runs the first simulations, and the compiled engine the rest."""
    monkeypatch.setattr(choice, "_compiled_before", lambda: False)
    monkeypatch.setattr(choice._Simulated, "ops", 0)
    assert choose("auto", COMPILED_FIRST_FROM) == "compiled"
    part = COMPILED_FIRST_FROM // 4
    assert [choose("auto", part) for _ in range(6)] == ["simpy"] * 3 + ["compiled"] * 3
    assert choose("auto", COMPILED_FROM - 1) == "simpy"


@pytest.mark.exhaustive
def test_a_small_simulation_imports_no_numba():
    code = (
        "import sys; from clustersim.scenarios import Scenario; "
        f"Scenario.load('hello', {{'training.steps': {COMPILED_FROM // 52 - 1}}}).run().summary(); "
        "print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_an_unknown_engine_is_refused():
    with pytest.raises(SimulatorError, match='no engine "fast"; there are auto, simpy, compiled'):
        choose("fast", 1)


def test_without_numba_simpy_runs_everything_and_one_warning_says_so():
    printed, said = without_numba(*TWICE, *LARGE)
    assert [one["simulation"]["engine"] for one in json.loads(printed)] == ["simpy", "simpy"]
    assert all(one["simulation"]["ops"] >= COMPILED_FROM for one in json.loads(printed))
    told = [line for line in said.splitlines() if "so far" not in line]
    assert told == ["numba cannot be imported: SimPy runs the simulation, more slowly (pip install numba)"]


@pytest.mark.exhaustive
def test_without_numba_small_simulations_run_without_a_warning():
    printed, said = without_numba("run", "--json", "hello")
    assert json.loads(printed)["simulation"]["engine"] == "simpy"
    assert said == ""


def test_without_numba_the_compiled_engine_is_refused_at_its_key():
    printed, said = without_numba("run", "hello", "--set", "simulation.engine=compiled", status=2)
    assert printed == ""
    assert said == (
        "--set simulation.engine=compiled: the compiled engine needs numba, which is not installed: "
        "pip install numba, or take engine: simpy\n"
    )


def test_many_rates_for_few_ops_are_left_to_the_compiled_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that all GPUs push to share their ports, so each arrival solves the rates of all flows."""
    servers = {"method": "parameter_server", "servers": 2, "overlap": True, "partition": "40 MB"}
    changes = {"parallelism.data": servers, "cluster.hosts": 2, "simulation.jitter": 0.05}
    scenario = Scenario.load("hello", changes)
    few = scenario.run().summary()
    assert few["simulation"]["engine"] == "simpy"
    monkeypatch.setattr(simulate, "MOST_RATES", 20)
    many = scenario.run().summary()
    assert many["simulation"]["engine"] == "compiled"
    assert many["step_time_s"] == pytest.approx(few["step_time_s"], rel=1e-9)
    assert scenario.changed({"simulation.engine": "simpy"}, "test").run().summary()["simulation"]["engine"] == "simpy"
