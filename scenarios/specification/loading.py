"""Loading: find a scenario's file, merge options and presets into it, and keep the position of every value."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clustersim.simulator.network.algorithm_files.algorithm_file import is_file
from clustersim.simulator.reading.document import Document, Path, Position, dotted, merged, part, replaced
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.lookup import UnknownName, data_file, is_path, names, nearest, told
from clustersim.simulator.reading.plain_text import written
from clustersim.simulator.reading.validation import close_matches, listed, near
from clustersim.simulator.reading.yaml_and_json import read, read_value
from clustersim.workloads.architectures.model_keys import is_config, plain_path, with_plain_keys

SHIPPED = pathlib.Path(__file__).resolve().parents[1]
"""The folder of the scenarios that come with clustersim."""

FOLDERS = ("published", "testbed", "several_jobs", "traced")
"""Folders of further scenarios below it."""

NO_SCENARIO = ("sources",)
"""Files of these folders that are no scenarios: ``published/sources.yaml`` says which runs are of one source."""

PRESETS = {"cluster": "clustersim.topologies.clusters", "model": "clustersim.workloads.models"}
"""Sections that take a preset, and the package of the presets' files."""

FILES = re.compile(
    r"workload\.trace(\.\d+)?|cluster\.graph|model\.profile|table\.file|campaign\.failures\.trace|queue\.arrivals|simulation\.variation\.(op|gpu|step)\.file"
)
"""Keys that name a file of the user's, relative to the folder of the scenario."""

_PRESETS = r"software|cluster\.(node\.)?(\d+\.)?(accelerator|processor)"

PRESET_ALONE = re.compile(_PRESETS)
"""Keys of sections for which a name may stand alone: that of their preset."""

NAMES = re.compile(rf"network\.transport|(cluster|model)\.preset|({_PRESETS})(\.preset)?")
"""Keys that may name a file: their value is a name of the catalogue, or the path of a file, .yaml or .json."""


ALGORITHMS = re.compile(r"network\.algorithms\..+")
"""Keys that may name an algorithm file, .xml or .json, relative to the folder of the scenario."""

TABLES = re.compile(r"model\.router_load|parallelism\.schedule")
"""Keys that may name a table, .csv, relative to the folder of the scenario."""

EXPECTATION = ("value", "tolerance", "source", "relative_to", "fitted")
"""Keys of an expectation, which may follow the result's key in a dotted key."""


def shipped(folder: str = "") -> list[str]:
    """Return the names of the scenarios that come with clustersim, or of those in a *folder* of them."""
    return sorted(path.stem for path in (SHIPPED / folder).glob("*.yaml") if path.stem not in NO_SCENARIO)


def located(scenario: str | os.PathLike[str]) -> pathlib.Path:
    """Return the file of *scenario*, a path or the name of a shipped one.

    Raises `ScenarioError`, with similar names, for an unknown name.
    """
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
    raise ScenarioError(_unknown(path.name))


def _unknown(name: str) -> str:
    """Return the error that no scenario is called *name*, with the nearest names and all names in order."""
    there = {folder: shipped(folder) for folder in ("", *FOLDERS)}
    close = close_matches(name, [one for names_there in there.values() for one in names_there])
    hint = f"did you mean {listed(close)}? " if close else ""
    lines = [f"  {f'{folder}: ' if folder else ''}{', '.join(names_there)}" for folder, names_there in there.items()]
    told = f'unknown scenario "{name}"; {hint}{"Give" if hint else "give"} the path of a file, or one of these names:'
    return "\n".join([told, *lines])


def split(key: str) -> Path:
    """Return the path of a dotted *key*. Raises `ScenarioError` for an empty part.

    The rest after ``network.algorithms`` and ``expect`` is one key, dots included.

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
    return plain_path(tuple(int(part) if part.isdigit() else part for part in parts))


def options(settings: list[str]) -> dict[str, tuple[Any, str]]:
    """Return the *settings* ``key.path=value`` of ``--set``: (value, text as given) by key."""
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
    """Return *document* with *changes*, (value, text as given) by key; messages about a wrong value show the text."""
    for key, (value, shown) in changes.items():
        try:
            path = split(key)
        except ScenarioError as error:
            raise ScenarioError(f"{shown}: {error}") from None
        document = changed(document, path, value, Position(option=shown, key=path))
    return document


def changed(document: Document, path: Path, value: Any, position: Position) -> Document:
    """Return *document* with *value* and its *position* at *path*; a name alone on the path is a preset.

    Raises `ScenarioError` as `replaced` does.
    """
    for end in range(1, len(path)):
        name = document.get(path[:end])
        if isinstance(name, str) and PRESET_ALONE.fullmatch(_key(path[:end])):
            document = replaced(document, path[:end], {"preset": name}, document.position(path[:end]))
    return replaced(document, path, value, position)


def found_from(document: Document, folder: pathlib.Path) -> Document:
    """Return *document* with the paths of the user's files, relative to *folder*, made relative to the working
    directory."""
    for path, name in named_files(document.data):
        # traces may be folders of files
        exists = pathlib.Path.exists if path[0] == "workload" else pathlib.Path.is_file
        begin = pathlib.Path() if _typed(document, path) and exists(pathlib.Path(name)) else folder
        if not exists(begin / name):
            raise document.error(path, f"{name}: no such file")
        document = replaced(document, path, str(begin / name), document.position(path))
    return document


def named_files(value: Any, path: Path = ()) -> list[tuple[Path, str]]:
    """Return the files that *value*, at *path* of a scenario, names, as (path, name); also those of its variants."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [one for key, inner in items for one in named_files(inner, (*path, key))]
    key = _key(path)
    if not isinstance(value, str) or not value:
        return []
    table = TABLES.fullmatch(key) and value.endswith(".csv")
    table = table or (ALGORITHMS.fullmatch(key) and is_file(value))
    names_file = FILES.fullmatch(key) or table or (NAMES.fullmatch(key) and is_path(value))
    return [(path, value)] if names_file else []


def _key(path: Path) -> str:
    """Return the key at *path* as it is without the variant, or the job, that it is in."""
    return dotted(path[2:] if path[:1] in (("variants",), ("jobs",)) else path)


def _typed(document: Document, path: Path) -> bool:
    """Return whether the value at *path* was given as an option.

    A shell completes paths from the working directory.
    """
    return bool(document.position(path).option)


def expanded(document: Document) -> Document:
    """Return *document* with its presets merged in; keys beside a preset override it."""
    document = with_plain_keys(document, ("model",))
    for section, package in PRESETS.items():
        preset = document.get((section, "preset"))
        if isinstance(preset, str) and is_path(preset):
            document = _with_file(document, section, package, preset)
            preset = document.get((section, "preset"))
        if preset is None or preset in WITHOUT_FILE.get(section, ()):
            continue
        base = _preset(document, section, package, preset)
        document = merged(base, _with_devices_of(base, document, section), (section,))
    return document


def _with_devices_of(base: Document, document: Document, section: str) -> Document:
    """Return *document* with the GPUs and processors of *base*, the preset of *section*, as presets of its mappings
    that change some of their figures; one with a peak of its own is a device of its own."""
    for path in base.positions:
        name, whole = base.get(path), (section, *path)
        own = document.get(whole) if isinstance(name, str) else None
        if isinstance(own, dict) and not {"preset", "peak_flops"} & own.keys() and PRESET_ALONE.fullmatch(_key(whole)):
            document = replaced(document, (*whole, "preset"), name, document.position(whole))
    return document


def of_job(document: Document, job: str) -> Document:
    """Return the scenario of *job* alone: the document with the sections of the job in place of jobs.

    Traffic from outside is that of the cluster, and stays with the document.
    """
    path = "jobs", job
    positions = {
        where[2:]: replace(position, within=path) for where, position in document.positions.items() if where[:2] == path
    }
    shared = {where: position for where, position in document.positions.items() if where[:1] != ("jobs",)}
    whole = {key: value for key, value in document.data.items() if key not in NOT_OF_JOB}
    own = {key: value for key, value in document.data["jobs"][job].items() if key not in OF_PLACE}
    if isinstance(whole.get("network"), dict):
        whole["network"] = {key: value for key, value in whole["network"].items() if key != "background"}
    return Document({**whole, **own}, {**shared, **positions})


NOT_OF_JOB = ("jobs", "queue", "expect", "variants", "table")
"""Sections of several jobs that a job alone does not have."""

OF_PLACE = ("nodes", "placement", "start")
"""Keys of a job that say where and when it runs."""


def _with_file(document: Document, section: str, package: str, path: str) -> Document:
    """Return *document* with the file at *path* merged into *section*; the preset is then that of the file, if any."""
    file = _preset(document, section, package, path)
    if is_path(str(file.data.get("preset", ""))):
        raise file.error(("preset",), f"must be the name of a {section}: a file does not lie on another file")
    keys = {key: value for key, value in document.data[section].items() if key != "preset"}
    positions = {where: p for where, p in document.positions.items() if where != (section, "preset")}
    return merged(file, Document({**document.data, section: keys}, positions), (section,))


WITHOUT_FILE: Mapping[str, tuple[str, ...]] = {"cluster": ("uniform", "tree")}
"""Presets that are built by code, without a file."""


def _preset(document: Document, section: str, package: str, preset: Any) -> Document:
    at = (section, "preset")
    if not isinstance(preset, str):
        raise document.error(at, f"must be the name of a {section}, not {written(preset)}")
    try:
        found = part(read(data_file(package, preset)), section)
        if section != "model":
            return found
        if not is_config(found):
            return with_plain_keys(found, ())
        from clustersim.workloads.architectures.huggingface_config import model_section

        return model_section(found)
    except UnknownName:
        choices = sorted([*names(package), *WITHOUT_FILE.get(section, ())])
        known = told(nearest(preset, choices))
        raise document.error(at, f'unknown {section} "{preset}"; there are: {known}', near(preset, choices)) from None
