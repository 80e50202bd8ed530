"""Packages outside the project, such as users write."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest


def package(files: Mapping[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write *files* (path -> text, with LAB for the package) below *folder*; return the package's name.

    The name is like no other test's, since imported modules stay.
    """
    name = f"lab_{abs(hash(folder))}"
    for path, text in files.items():
        file = folder / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text).lstrip("\n").replace("LAB", name))
    monkeypatch.syspath_prepend(str(folder))
    return name


def clustersim(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in *folder*; it can import the packages there."""
    command = [str(Path(sys.executable).with_name("clustersim")), *arguments]
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
