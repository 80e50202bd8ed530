"""Imports run downward only and in no circle; importing a package loads no heavy library."""

import subprocess
import sys

import pytest

from tests.structure.imports import ARROWS, IMPORTS, PACKAGES, ROOT, arrows_up, circles, folder_circles

IN_CIRCLES = {"simulator": 15, "topologies": 0, "workloads": 19, "scenarios": 25}
"""Folders of each package that lie on a circle of folders."""


def importers(library: str) -> set[str]:
    """The modules that import *library* or a part of it."""
    return {module for module, name in IMPORTS if name.startswith(library)}


def test_no_import_runs_up() -> None:
    assert arrows_up() == []


def test_no_circle() -> None:
    assert circles() == []


def test_topologies_and_workloads_do_not_know_each_other() -> None:
    both = {"topologies", "workloads"}
    assert [(m, t) for m, t in ARROWS if {m.split(".")[0], t.split(".")[0]} == both] == []


def test_schedule_and_cluster_do_not_know_each_other() -> None:
    both = {"schedule", "cluster"}
    parts = [(m.split(".")[1:2], t.split(".")[1:2]) for m, t in ARROWS if m.startswith("simulator.")]
    assert [(m, t) for m, t in parts if {*m, *t} == both] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_circles_of_folders_only_become_fewer(package: str) -> None:
    """They are to go; a number is lowered when some have gone, and never raised."""
    inside = [folder for circle in folder_circles() for folder in circle if folder.split("/")[0] == package]
    assert len(inside) <= IN_CIRCLES[package], inside


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_loads_no_heavy_library(package: str) -> None:
    code = f"import {package}, sys; print(sorted({{'matplotlib', 'numba', 'scipy', 'torch'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_only_analysis_imports_matplotlib() -> None:
    users = importers("matplotlib")
    assert users
    assert all("analysis" in module for module in users)


def test_lookup_is_the_only_use_of_importlib() -> None:
    assert importers("importlib") <= {"simulator.reading.lookup", "scenarios.commands.command_line"}


HEAVY = {"dask", "matplotlib", "networkx", "numba", "pandas", "plotly", "rich", "scipy", "torch"}
"""Libraries that none of the following commands uses."""

COMMANDS = {
    ("--help",): (HEAVY | {"numpy", "ruamel", "simpy"}, 40),
    ("list",): (HEAVY | {"numpy", "ruamel", "simpy"}, 20),
    ("check", "hello"): (HEAVY | {"simpy"}, 200),
    ("run", "hello", "--json"): (HEAVY, 255),
}
"""Libraries that a command must not load, and how many modules of the project it loads at most."""

AFTER = """
import sys
from scenarios.commands.command_line import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(*sorted(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_loads_what_it_uses(command: tuple[str, ...]) -> None:
    unwanted, most = COMMANDS[command]
    done = subprocess.run([sys.executable, "-c", AFTER, *command], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = done.stderr.split()
    assert unwanted & set(loaded) == set()
    own = [name for name in loaded if name.split(".")[0] in PACKAGES]
    assert len(own) <= most, own


def test_a_run_loads_the_passes_of_its_scenario_only() -> None:
    """Hello has given durations, data parallelism and no collective, memory plan or sweep."""
    done = subprocess.run(
        [sys.executable, "-c", AFTER, "run", "hello", "--json"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    others = (
        "scenarios.plan.",
        "scenarios.run.",
        "scenarios.run",
        "simulator.engine.compil",
        "simulator.network.library.nccl",
        "workloads.architectures.encoder_decoder",
        "workloads.architectures.convolutional",
        "workloads.memory.chains.",
        "workloads.operators.grids.",
        "workloads.parallelism.methods.",
        "workloads.parallelism.zero",
        "workloads.architectures.transformer",
    )
    assert [name for name in done.stderr.split() if name.startswith(others)] == []
