"""Loading finds a scenario's file, lays options over it and presets below it, and keeps where everything came from."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

from simulator.document import Document, Path, Position, merged, read, read_value, replaced
from simulator.document.quantities import written
from simulator.document.validation import near
from simulator.errors import ScenarioError
from simulator.lookup import UnknownName, data_file, names, nearest

SHIPPED = pathlib.Path(__file__).parent
"""The folder of the scenarios that come with clustersim."""

PRESETS = {"cluster": "topologies.clusters", "model": "workloads.models"}
"""Sections that take a preset, and the package that holds its file."""

FILES = (("cluster", "graph"), ("model", "profile"))
"""Keys that name a file of the user's, from the scenario's own folder."""


def shipped() -> list[str]:
    """The names of the scenarios that come with clustersim."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def located(scenario: str | os.PathLike[str]) -> pathlib.Path:
    """The file of *scenario*, a path or the bare name of a shipped one; names that are near tell what was meant."""
    path = pathlib.Path(scenario)
    if (path / "scenario.yaml").is_file():
        return path / "scenario.yaml"
    if path.is_file() or path.suffix or len(path.parts) != 1:
        return path
    if path.name in shipped():
        return SHIPPED / f"{path.name}.yaml"
    if path.exists():
        return path
    choices = ", ".join(nearest(path.name, shipped()))
    raise ScenarioError(f'unknown scenario "{scenario}"; there are: {choices}, or give the path of a file')


def split(key: str) -> Path:
    """The path that a dotted *key* means. Raises `ScenarioError` for an empty one.

    What follows ``network.algorithms`` and ``expect`` is one key, dots included.

    >>> split("cluster.degraded.0.bandwidth"), split("network.algorithms.dp.all_reduce")
    (('cluster', 'degraded', 0, 'bandwidth'), ('network', 'algorithms', 'dp.all_reduce'))
    """
    parts = key.split(".")
    if not all(part.strip() for part in parts):
        raise ScenarioError(f'"{key}" is not a key; write it as in cluster.nodes')
    for prefix in (["network", "algorithms"], ["expect"]):
        if parts[: len(prefix)] == prefix and len(parts) > len(prefix) + 1:
            last = 1 if prefix == ["expect"] and parts[-1] in ("value", "tolerance", "source") else 0
            end = len(parts) - last
            return (*prefix, ".".join(parts[len(prefix) : end]), *parts[end:])
    return tuple(int(part) if part.isdigit() else part for part in parts)


def options(settings: list[str]) -> dict[str, tuple[Any, str]]:
    """What ``--set key.path=value`` asks for: (value, how it was written) by key."""
    result: dict[str, tuple[Any, str]] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        shown = f"--set {setting}"
        if not equals:
            raise ScenarioError(f"{shown}: needs a value: --set {setting}=...")
        try:
            result[key.strip()] = read_value(text), shown
        except ValueError as error:
            raise ScenarioError(f"{shown}: {error}") from None
    return result


def overridden(document: Document, changes: Mapping[str, tuple[Any, str]]) -> Document:
    """*document* with each key of *changes* set to its value, told as it was written if it is wrong."""
    for key, (value, shown) in changes.items():
        try:
            path = split(key)
        except ScenarioError as error:
            raise ScenarioError(f"{shown}: {error}") from None
        document = replaced(document, path, value, Position(option=shown, key=path))
    return document


def variants(document: Document) -> dict[str, Document]:
    """The documents of the variants of *document* by name; each is *document* with that variant's keys set."""
    given = document.get(("variants",)) or {}
    if not isinstance(given, dict):
        raise document.error(("variants",), "must be a mapping (name: changes)")
    plain = Document({k: v for k, v in document.data.items() if k != "variants"}, document.positions)
    return {str(name): _variant(plain, str(name), changes) for name, changes in given.items()}


def _variant(document: Document, name: str, changes: Any) -> Document:
    at: Path = ("variants", name)
    if not isinstance(changes, dict):
        raise document.error(at, f"must be a mapping (key.path: value), not {written(changes)}")
    for key, value in changes.items():
        try:
            path = split(key)
        except ScenarioError as error:
            raise document.error((*at, key), str(error), at_key=True) from None
        inner = {where: p for where, p in document.positions.items() if where[: len(at) + 1] == (*at, key)}
        document = replaced(document, path, value, document.position((*at, key)))
        moved = {path + where[len(at) + 1 :]: position for where, position in inner.items()}
        document = Document(document.data, {**document.positions, **moved})
    return document


def found_from(document: Document, folder: pathlib.Path) -> Document:
    """*document* with the user's files, which it names from *folder*, named from the working directory."""
    for path in FILES:
        name = document.get(path)
        if isinstance(name, str) and name:
            if not (folder / name).is_file():
                raise document.error(path, f"{name}: no such file")
            document = Document(_with(document.data, path, str(folder / name)), document.positions)
    return document


def expanded(document: Document) -> Document:
    """*document* with its presets laid below the keys beside them."""
    for section, package in PRESETS.items():
        preset = document.get((section, "preset"))
        if preset is None or preset in WITHOUT_FILE.get(section, ()):
            continue
        document = merged(_preset(document, section, package, preset), document, (section,))
    return document


WITHOUT_FILE: Mapping[str, tuple[str, ...]] = {"cluster": ("uniform", "tree")}
"""Presets that are built, not read."""


def _preset(document: Document, section: str, package: str, preset: Any) -> Document:
    at = (section, "preset")
    if not isinstance(preset, str):
        raise document.error(at, f"must be the name of a {section}, not {written(preset)}")
    try:
        return read(data_file(package, preset))
    except UnknownName:
        choices = sorted([*names(package), *WITHOUT_FILE.get(section, ())])
        known = ", ".join(nearest(preset, choices))
        raise document.error(at, f'unknown {section} "{preset}"; there are: {known}', near(preset, choices)) from None


def _with(data: dict[str, Any], path: tuple[str, str], value: Any) -> dict[str, Any]:
    return {**data, path[0]: {**data[path[0]], path[1]: value}}
