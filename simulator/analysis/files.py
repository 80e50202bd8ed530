"""Formats of files by their suffix."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from simulator.errors import SimulatorError


def suffix_of(path: Path, suffixes: Iterable[str]) -> str:
    """Return the longest of *suffixes* with which the name of *path* ends. Raises `SimulatorError` if there is none.

    >>> suffix_of(Path("a/run.json.gz"), [".gz", ".json.gz"])
    '.json.gz'
    """
    fitting = [suffix for suffix in suffixes if path.name.lower().endswith(suffix)]
    if not fitting:
        raise SimulatorError(f"{path}: the name must end with one of {', '.join(suffixes)}")
    return max(fitting, key=len)
