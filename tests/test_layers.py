"""Imports run downward only and in no circle; importing a package loads no heavy library."""

import subprocess
import sys

import pytest

from tests.structure.imports import PACKAGES, ROOT, all_imports, arrows, arrows_up, circles, folder_circles, package_of


def importers(library: str) -> set[str]:
    """The modules that import *library* or a part of it."""
    return {module for module, name in all_imports() if name.startswith(library)}


def test_no_import_runs_up() -> None:
    assert arrows_up() == []


def test_no_circle() -> None:
    assert circles() == []


def test_topologies_and_workloads_do_not_know_each_other() -> None:
    both = {"topologies", "workloads"}
    assert [(m, t) for m, t in arrows() if {package_of(m), package_of(t)} == both] == []


def test_schedule_and_cluster_do_not_know_each_other() -> None:
    assert importers("clustersim.simulator.hardware.cluster")
    schedule = "clustersim.simulator.schedule."
    assert [m for m in importers("clustersim.simulator.hardware.cluster") if m.startswith(schedule)] == []
    assert [m for m in importers(schedule) if m.startswith("clustersim.simulator.hardware.")] == []


def test_no_circle_of_folders() -> None:
    assert folder_circles() == []


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_loads_no_heavy_library(package: str) -> None:
    heavy = "{'matplotlib', 'numba', 'scipy', 'torch'}"
    code = f"import sys, clustersim.{package}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_only_charts_import_matplotlib() -> None:
    users = importers("matplotlib")
    assert users
    assert all(module.startswith("clustersim.simulator.charts.") for module in users)


def test_lookup_is_the_only_use_of_importlib() -> None:
    assert importers("importlib") <= {
        "clustersim.simulator.reading.lookup",
        "clustersim.scenarios.commands.command_line",
    }


HEAVY = {"dask", "matplotlib", "networkx", "numba", "pandas", "plotly", "rich", "scipy", "torch"}
"""Libraries that none of the following commands uses."""

COMMANDS = {
    ("--help",): (HEAVY | {"numpy", "ruamel", "simpy"}, 40),
    ("list",): (HEAVY | {"numpy", "ruamel", "simpy"}, 20),
    ("check", "hello"): (HEAVY | {"simpy"}, 190),
    ("run", "hello", "--json"): (HEAVY, 240),
}
"""Libraries that a command must not load, and how many modules of the project it loads at most."""

AFTER = """
import sys
from clustersim.scenarios.commands.command_line import main
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
    own = [name for name in loaded if name.startswith("clustersim.")]
    assert len(own) <= most, own


def test_a_run_loads_the_passes_of_its_scenario_only() -> None:
    """Hello has given durations, data parallelism and no collective, memory plan or sweep."""
    done = subprocess.run(
        [sys.executable, "-c", AFTER, "run", "hello", "--json"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    others = (
        "clustersim.scenarios.search.",
        "clustersim.scenarios.run.sweep",
        "clustersim.scenarios.run.execution",
        "clustersim.scenarios.specification.campaign",
        "clustersim.scenarios.specification.cost",
        "clustersim.scenarios.specification.queue",
        "clustersim.scenarios.specification.variation",
        "clustersim.simulator.engine.compiled.",
        "clustersim.simulator.network.library.nccl",
        "clustersim.workloads.architectures.encoder_decoder",
        "clustersim.workloads.architectures.image_model",
        "clustersim.workloads.architectures.tower",
        "clustersim.workloads.memory.chain",
        "clustersim.workloads.memory.offload_and_recompute",
        "clustersim.workloads.memory.optimal_checkpointing",
        "clustersim.workloads.operators.tensor_grids",
        "clustersim.workloads.parallelism.methods.",
        "clustersim.workloads.parallelism.zero",
        "clustersim.workloads.architectures.transformer",
    )
    assert [name for name in done.stderr.split() if name.startswith(others)] == []
