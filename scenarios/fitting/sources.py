"""Sources of published measurements: which published scenarios and tables are of one source, and what explains a miss.

A published scenario that `sources.yaml` does not name is a source of its own, of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from scenarios.specification.loading import SHIPPED, shipped
from simulator.document import read

FILE = SHIPPED / "published" / "sources.yaml"


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
    data: dict[str, Any] = read(FILE).data["sources"]
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
