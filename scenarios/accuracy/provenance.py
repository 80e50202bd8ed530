"""Sources of published measurements, and the constants that they inform, by a fit or by hand. ``constants.yaml`` and
``published/sources.yaml`` declare them. A published scenario that is named there by no source is one of its own; a
source that informs nothing judges all constants.

``constants.yaml`` declares them, by sources. A source that informs nothing judges all of them.

A published scenario that `sources.yaml` does not name is a source of its own, of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import Any

from clustersim.scenarios.specification.loading import SHIPPED, shipped
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.lookup import UnknownName, data_file, module
from clustersim.simulator.reading.plain_text import table
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.workloads.software_stack import PACKAGE as STACKS
from clustersim.workloads.software_stack import described

CONSTANTS_FILE = Path(__file__).with_name("constants.yaml")

ROOT = SHIPPED.parent
"""Paths of the table are relative to this folder."""

COLUMNS = ("constant", "value", "+-", "how", "informed by")

NCCL = "clustersim.simulator.network.library.nccl_fitted"
"""The package and file to which NCCL's fit goes: its own calibration file."""


@dataclass(frozen=True)
class Constant:
    """A constant that *sources* inform.

    *at*: where it stands, ``package.file:key`` or ``package.module:NAME``; a file alone stands for all its switches.
    *value* is as used. *uncertainty*: relative, one standard deviation; None if not known. *how*: the fit that has it,
    the fitted parameter that it follows from, or ``by hand``. *by_hand*: no refit takes its sources out of it.
    """

    at: str
    value: Any
    uncertainty: float | None
    how: str
    sources: tuple[str, ...]
    by_hand: bool
    note: str = ""


@lru_cache(maxsize=1)
def constants() -> tuple[Constant, ...]:
    """Return all constants, fitted ones first. Raises `ScenarioError` for an entry that does not stand where it is said
    to."""
    data: dict[str, Any] = read(CONSTANTS_FILE).data
    fits = {name: list(_fitted(name, entry)) for name, entry in data["fits"].items()}
    fitted = {parameter: one for entries in fits.values() for parameter, one in entries}
    chosen = [
        Constant(
            place,
            value_at(place),
            entry.get("uncertainty", fitted[entry["as"]].uncertainty if "as" in entry else None),
            f"as {entry['as']}" if "as" in entry else "by hand",
            tuple(dict.fromkeys((*entry["sources"], *(fitted[entry["as"]].sources if "as" in entry else ())))),
            bool(entry["sources"]),
            entry.get("note", ""),
        )
        for entry in data["chosen"]
        for place in entry["at"]
    ]
    return (*(one for entries in fits.values() for _, one in entries), *chosen)


def _fitted(fit: str, entry: Mapping[str, Any]) -> Iterator[tuple[str, Constant]]:
    """Yield (parameter, constant) for each place to which a parameter of *fit* goes."""
    data: dict[str, Any] = read(ROOT / entry["file"]).data
    sources, how = tuple(entry["sources"]), f"fit {fit}"
    for name, one in data.get("parameters", {}).items():
        for place in one["lands"]:
            yield name, Constant(place, value_at(place), one["uncertainty"], how, sources, False, one["meaning"])
    if "transport" in data:
        for key, deviation in data["uncertainty"].items():
            place = f"{NCCL}:transport.{key}"
            yield f"{fit}.{key}", Constant(place, value_at(place), deviation, how, sources, False)


def value_at(place: str) -> Any:
    """Return the value at *place*, ``package.file:key`` or ``package.module:NAME``, as it is written there, or
    in what the software stack there is composed of.

    Raises `KeyError` if there is none.

    >>> value_at("clustersim.topologies.gpus.a100_80gb:k_half")
    176.0
    >>> value_at("clustersim.simulator.hardware.accelerator:UNALIGNED")
    0.5
    """
    where, _, key = place.partition(":")
    package, _, name = where.rpartition(".")
    try:
        data: Any = described(name).data if package == STACKS else read(data_file(package, name)).data
    except UnknownName:
        return getattr(module(where), key)
    for part in key.split(".") if key else ():
        data = data[part]
    return data if key else "its switches"


@lru_cache(maxsize=1)
def informed_by_hand() -> Mapping[str, int]:
    """Return how many constants each source informs other than by a fit."""
    counts: dict[str, int] = {}
    for entry in read(CONSTANTS_FILE).data["chosen"]:
        for source in entry["sources"]:
            counts[source] = counts.get(source, 0) + len(entry["at"])
    return counts


@lru_cache(maxsize=1)
def fitted_to() -> frozenset[str]:
    """Return the sources whose rows a fit has."""
    return frozenset(source for entry in read(CONSTANTS_FILE).data["fits"].values() for source in entry["sources"])


def constants_text() -> str:
    """Return the table that `clustersim show constants` prints."""
    data: dict[str, Any] = read(CONSTANTS_FILE).data
    rows = [
        [
            one.at,
            _written(one.value),
            f"{one.uncertainty:.0%}" if one.uncertainty is not None else "",
            one.how,
            ", ".join(one.sources if one.how == "by hand" else _further(one, data["fits"])),
        ]
        for one in constants()
    ]
    sources = {source for one in constants() for source in one.sources}
    return "\n".join(
        [
            f"{len(rows)} constants are informed by {len(sources)} sources of measurements; others only judge them.",
            "",
            *(f"fit {name}: {', '.join(entry['sources'])} ({entry['file']})" for name, entry in data["fits"].items()),
            "",
            table(rows, COLUMNS, "lrrll"),
        ]
    )


def _further(one: Constant, fits: Mapping[str, Any]) -> list[str]:
    """Return the sources of a constant that no fit has."""
    fitted = {source for entry in fits.values() for source in entry["sources"]}
    return [source for source in one.sources if source not in fitted]


def as_json() -> list[dict[str, Any]]:
    """Return all constants as plain data."""
    return [
        {
            "constant": one.at,
            "value": one.value,
            "uncertainty": one.uncertainty,
            "how": one.how,
            "sources": list(one.sources),
        }
        for one in constants()
    ]


def _written(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) and not isinstance(value, bool) else str(value)


SOURCES_FILE = SHIPPED / "published" / "sources.yaml"


@dataclass(frozen=True)
class Source:
    """A source: its published *scenarios*, and the stems of *tables* that fits and constants are informed by.

    *stranger*: its runs were written as scenarios before any prediction of them was seen. *causes*: why its runs are
    predicted worse than others, by kind of figure (steps, collectives, products, memory), as its own text supports.
    """

    name: str
    scenarios: tuple[str, ...]
    tables: tuple[str, ...] = ()
    stranger: bool = False
    causes: Mapping[str, str] = field(default_factory=dict)


@lru_cache(maxsize=1)
def sources() -> Mapping[str, Source]:
    """Return all sources by name: those of the file, and each scenario that it does not name."""
    data: dict[str, Any] = read(SOURCES_FILE).data["sources"]
    named = {
        name: Source(
            name,
            tuple(entry.get("scenarios", ())),
            tuple(entry.get("tables", ())),
            entry.get("stranger", False),
            entry.get("causes", {}),
        )
        for name, entry in data.items()
    }
    taken = {scenario for one in named.values() for scenario in one.scenarios}
    return named | {name: Source(name, (name,)) for name in shipped("published") if name not in taken}


def source_of(scenario: str) -> str:
    """Return the name of the source of a *scenario*; one that is not published is a source of its own."""
    return next((name for name, one in sources().items() if scenario in one.scenarios), scenario)


def source_of_table(stem: str) -> str:
    """Return the name of the source of a table of measurements; the *stem* itself if no source has it."""
    return next((name for name, one in sources().items() if stem in one.tables), stem)
