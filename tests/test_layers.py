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
    assert importers("importlib") <= {"simulator.lookup", "scenarios.command"}
