"""The wheel has all files of the project under one name, and runs beside folders with the names of its parts."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.structure.imports import PACKAGES, ROOT


@pytest.fixture(name="wheel", scope="module")
def _wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, capture_output=True, text=True, check=True, cwd=ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(name="site")
def _site(wheel: Path, tmp_path: Path) -> Path:
    """A folder of packages with the wheel only."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture(name="home")
def _home(tmp_path: Path) -> Path:
    """A user's folder, whose packages have the names of the project's top folders."""
    for package in PACKAGES:
        (tmp_path / "home" / package).mkdir(parents=True)
        (tmp_path / "home" / package / "__init__.py").write_text(f"WHOSE = 'the {package} of the user'\n")
    return tmp_path / "home"


def outcome(site: Path, home: Path, *arguments: str) -> str:
    environment = {"PYTHONPATH": str(site), "HOME": str(home), "PATH": ""}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=home, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_each_file_of_the_project_once(wheel: Path) -> None:
    files = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    below = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    listed = [f"clustersim/{path.relative_to(ROOT)}" for path in below if path.parent.name != "__pycache__"]
    assert sorted(files) == sorted(["clustersim/__init__.py", "clustersim/__main__.py", "clustersim/py.typed", *listed])


def test_the_command_runs_beside_folders_of_those_names(site: Path, home: Path) -> None:
    assert json.loads(outcome(site, home, "-m", "clustersim", "run", "hello", "--json"))["name"] == "hello"


def test_a_script_has_the_users_folders_and_the_packages_scenario(site: Path, home: Path) -> None:
    script = (
        "import clustersim, scenarios, simulator\n"
        "from clustersim import Scenario\n"
        "print(clustersim.__file__, scenarios.WHOSE, simulator.WHOSE, Scenario.load('hello').cluster().name, sep='\\n')"
    )
    file, *others = outcome(site, home, "-c", script).splitlines()
    assert Path(file).is_relative_to(site)
    assert others == ["the scenarios of the user", "the simulator of the user", "uniform"]


def test_in_a_clone_the_old_import_gives_the_same_class() -> None:
    script = "import scenarios, clustersim; from scenarios import Scenario; print(Scenario is clustersim.Scenario)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "True\n"
