"""The numbers that an earlier run wrote, beside those of the same scenario simulated again."""

from __future__ import annotations

from math import isclose
from pathlib import Path
from typing import Any

from scenarios.results.result import Result
from simulator.document import Fault
from simulator.document.json_text import parse_json
from simulator.files import UnreadableFile, read_text
from simulator.lookup import version

LARGEST = 64 * 2**20
"""Bytes of a result at most."""

VERSION = "clustersim"
"""The key of clustersim's version in ``result.json``."""

SHOWN = 3
"""Numbers that a warning names."""

VARYING = ("simulation.wall_s", "simulation.engine")
"""Ends of the keys of numbers that differ between runs of the same scenario."""


def recorded(result: Result) -> dict[str, Any]:
    """Return the content of ``result.json``: the summary of *result* and the version that made it."""
    return {**result.summary(), VERSION: version()}


def warnings(folder: Path, result: Result) -> list[str]:
    """Return what differs between the result in *folder* and *result*, simulated again; none if no run wrote there."""
    path = folder / "result.json"
    if not (folder / "scenario.yaml").is_file():
        return []
    try:
        before = parse_json(read_text(path, LARGEST))
    except UnreadableFile as error:
        return [] if error.missing else [f"{error}; the scenario was simulated again"]
    except Fault as fault:
        return [f"{path}: {fault.message}; the scenario was simulated again"]
    old, new = _flat(before), _flat(recorded(result))
    made_by, here = old.pop(VERSION, "an unknown version"), new.pop(VERSION)
    told = [] if made_by == here else [f"{path} was written by clustersim {made_by}; this is {here}"]
    changed = [f"{key} was {old[key]}, is {new[key]}" for key in new if key in old and not _equal(key, old, new)]
    if changed:
        more = f", and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        told.append(f"{path} has other numbers than its scenario.yaml gives now: {'; '.join(changed[:SHOWN])}{more}")
    return told


def _equal(key: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
    before, now = old[key], new[key]
    if key.endswith(VARYING):
        return True
    if isinstance(before, int | float) and isinstance(now, int | float):
        return isclose(before, now, rel_tol=1e-9, abs_tol=1e-15)
    return bool(before == now)


def _flat(data: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of nested *data* by dotted key."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else None
    if items is None:
        return {prefix: data}
    return {
        key: value
        for name, inner in items
        for key, value in _flat(inner, f"{prefix}.{name}" if prefix else str(name)).items()
    }
