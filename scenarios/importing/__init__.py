"""Configurations of training programs as a scenario: several files together describe one run.

    files -> sources        text, values and their positions
          -> facts          what each format says, by key, with its place
          -> settled facts  contradictions are errors; what is missing follows, or is assumed and said so
          -> scenario       YAML with a comment on each value

A format is a file of `scenarios.importing.formats`; the folder is the registry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from scenarios.build.schedule import model_share
from scenarios.importing import resolution
from scenarios.importing.facts import Facts
from scenarios.importing.machine import Options
from scenarios.importing.source import opened
from scenarios.importing.writing import yaml_with_sources
from scenarios.scenario import Scenario
from scenarios.specification import loading
from simulator.errors import ScenarioError
from simulator.lookup import find, names
from simulator.plain_text import printable

FORMATS = "scenarios.importing.formats"

__all__ = ["Imported", "Options", "imported"]


@dataclass(frozen=True)
class Imported:
    """The *scenario*, its *text* in YAML, and what the user should know.

    *assumed*: what no file says. *remarks*: what is simulated otherwise. *unread*: keys by file that no reader took.
    *formats*: by file. *sweeps*: files of measured collectives, which are fitted on the scenario's cluster.
    """

    scenario: Scenario
    text: str
    formats: dict[str, list[str]]
    assumed: list[str]
    remarks: list[str]
    unread: dict[str, list[str]]
    sweeps: list[Path]


def imported(
    files: Sequence[str], options: Options, name: str, settings: Sequence[str] = (), folder: Path = Path()
) -> Imported:
    """Return the scenario *name* of the run that *files* describe.

    *settings*: texts ``key.path=value``, which override the files. Paths in the text are relative to *folder*, where it
    will be written. Raises `ScenarioError` with file, line and key of what is wrong.
    """
    facts, formats, sources = Facts(), {}, []
    for file in files:
        source = opened(file)
        readers = [module for module in _formats() if module.recognises(source)]
        if not readers:
            raise ScenarioError(f"{printable(file)}: is of no format that can be imported: {_known()}")
        for reader in readers:
            reader.read(source, facts)
        formats[file] = [_stem(reader) for reader in readers]
        sources.append(source)
    resolution.settle(facts, options, settings)
    document, where = resolution.document(facts, name, folder)
    scenario = Scenario.of_document(document, folder, name, list(settings))
    if scenario.model is not None:
        model_share(scenario.model, scenario.specification.parallelism.parts, scenario.document)
    unread = {one.name: [one.described(path) for path in one.left()] for one in [*sources, *facts.followed]}
    unread = {file: keys for file, keys in unread.items() if keys}
    heading = _heading(files, facts, unread, settings)
    data = loading.overridden(document, loading.options(list(settings))).data
    text = yaml_with_sources(data, _with_settings(where, settings), heading)
    sweeps = [Path(one.name) for one in facts.sweeps]
    return Imported(scenario, text, formats, facts.assumed, facts.remarks, unread, sweeps)


def _formats() -> list[ModuleType]:
    return [find(FORMATS, name) for name in names(FORMATS)]


def _stem(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def _known() -> str:
    """Return the formats in words: the first sentence of each."""
    return "; ".join((module.__doc__ or "").splitlines()[0].split(" (")[0].rstrip(".") for module in _formats())


def _with_settings(sources: dict[tuple[str, ...], str], settings: Sequence[str]) -> dict[tuple[str, ...], str]:
    given = {tuple(one.partition("=")[0].strip().split(".")): f"--set {one}" for one in settings}
    return sources | given


def _heading(files: Sequence[str], facts: Facts, unread: dict[str, list[str]], settings: Sequence[str]) -> list[str]:
    lines = [f"Made by clustersim import from {', '.join(files)}."]
    lines += [f"assumed: {one}" for one in facts.assumed]
    lines += [f"remark: {one}" for one in facts.remarks]
    lines += [f"not read: {file}: {', '.join(keys)}" for file, keys in unread.items()]
    return lines
