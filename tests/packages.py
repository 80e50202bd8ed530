"""A package outside the project, as a user writes it."""

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
