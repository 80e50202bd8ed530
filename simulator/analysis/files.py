"""Formats of files by their suffix."""

from __future__ import annotations

import re
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


def file_stems(names: Iterable[str]) -> dict[str, str]:
    """Return for each of *names* a part of a file name without spaces and separators; no two are equal.

    >>> file_stems(["with chunks", "with_chunks", "a/b: 8 MB"])
    {'with chunks': 'with_chunks', 'with_chunks': 'with_chunks-2', 'a/b: 8 MB': 'a_b_8_MB'}
    """
    stems: dict[str, str] = {}
    for name in names:
        stem = re.sub(r"[^\w.+=,-]+", "_", name).strip("_.") or "_"
        number = sum(stem == re.sub(r"-\d+$", "", other) or stem == other for other in stems.values()) + 1
        stems[name] = stem if number == 1 else f"{stem}-{number}"
    return stems
