"""Loading finds a scenario's file, lays options over it and presets below it, and keeps where everything came from."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from simulator.document import Document, Path, Position, dotted, merged, part, read, read_value, replaced
from simulator.document.quantities import written
from simulator.document.validation import near
from simulator.errors import ScenarioError
from simulator.lookup import UnknownName, data_file, is_path, names, nearest

SHIPPED = pathlib.Path(__file__).parents[1]
"""The folder of the scenarios that come with clustersim."""

FOLDERS = ("published", "testbed")
"""The folders below it with further scenarios."""

PRESETS = {"cluster": "topologies.clusters", "model": "workloads.models"}
"""Sections that take a preset, and the package that holds its file."""

FILES = re.compile(r"cluster\.graph|model\.profile|table\.file")
"""Keys that name a file of the user's, from the scenario's own folder."""

NAMES = re.compile(r"network\.transport|(cluster|model)\.preset|cluster\.(node\.)?(\d+\.)?accelerator(\.preset)?")
"""Keys that may: they name what there is in the house, or the path of a file that ends with .yaml."""


EXPECTATION = ("value", "tolerance", "source", "relative_to", "fitted")
"""Keys of an expectation, which may follow the key of the result that it is of."""


def shipped(folder: str = "") -> list[str]:
    """The names of the scenarios that come with clustersim: those to begin with, or those of a *folder* below."""
    return sorted(path.stem for path in (SHIPPED / folder).glob("*.yaml"))


def located(scenario: str | os.PathLike[str]) -> pathlib.Path:
    """The file of *scenario*, a path or the bare name of a shipped one; names that are near tell what was meant."""
    path = pathlib.Path(scenario)
    if (path / "scenario.yaml").is_file():
        return path / "scenario.yaml"
    if path.is_file() or path.suffix or len(path.parts) != 1:
        return path
    for folder in ("", *FOLDERS):
        if path.name in shipped(folder):
            return SHIPPED / folder / f"{path.name}.yaml"
    if path.exists():
        return path
    choices = ", ".join(nearest(path.name, [name for folder in ("", *FOLDERS) for name in shipped(folder)]))
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
            last = 1 if prefix == ["expect"] and parts[-1] in EXPECTATION else 0
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


def found_from(document: Document, folder: pathlib.Path) -> Document:
    """*document* with the user's files, which it names from *folder*, named from the working directory."""
    for path, name in named_files(document.data):
        begin = pathlib.Path() if _typed(document, path) and pathlib.Path(name).is_file() else folder
        if not (begin / name).is_file():
            raise document.error(path, f"{name}: no such file")
        document = replaced(document, path, str(begin / name), document.position(path))
    return document


def named_files(value: Any, path: Path = ()) -> list[tuple[Path, str]]:
    """The files that *value*, at *path* of a scenario, names: (path, name), those of its variants too."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [one for key, inner in items for one in named_files(inner, (*path, key))]
    key = dotted(path[2:] if path[:1] == ("variants",) else path)
    if not isinstance(value, str) or not value:
        return []
    names_file = FILES.fullmatch(key) or (NAMES.fullmatch(key) and is_path(value))
    return [(path, value)] if names_file else []


def _typed(document: Document, path: Path) -> bool:
    """Whether the value at *path* was typed as an option, where a shell completes names from the working directory."""
    return bool(document.position(path).option)


def expanded(document: Document) -> Document:
    """*document* with its presets laid below the keys beside them."""
    for section, package in PRESETS.items():
        preset = document.get((section, "preset"))
        if isinstance(preset, str) and is_path(preset):
            document = _on_file(document, section, package, preset)
            preset = document.get((section, "preset"))
        if preset is None or preset in WITHOUT_FILE.get(section, ()):
            continue
        document = merged(_preset(document, section, package, preset), document, (section,))
    return document


def _on_file(document: Document, section: str, package: str, path: str) -> Document:
    """*document* with the file at *path* laid below its *section*; the preset is then the one that the file names."""
    file = _preset(document, section, package, path)
    if is_path(str(file.data.get("preset", ""))):
        raise file.error(("preset",), f"must be the name of a {section}: a file does not lie on another file")
    keys = {key: value for key, value in document.data[section].items() if key != "preset"}
    positions = {where: p for where, p in document.positions.items() if where != (section, "preset")}
    return merged(file, Document({**document.data, section: keys}, positions), (section,))


WITHOUT_FILE: Mapping[str, tuple[str, ...]] = {"cluster": ("uniform", "tree")}
"""Presets that are built, not read."""


def _preset(document: Document, section: str, package: str, preset: Any) -> Document:
    at = (section, "preset")
    if not isinstance(preset, str):
        raise document.error(at, f"must be the name of a {section}, not {written(preset)}")
    try:
        return part(read(data_file(package, preset)), section)
    except UnknownName:
        choices = sorted([*names(package), *WITHOUT_FILE.get(section, ())])
        known = ", ".join(nearest(preset, choices))
        raise document.error(at, f'unknown {section} "{preset}"; there are: {known}', near(preset, choices)) from None
