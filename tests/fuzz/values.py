"""Values of scenarios as the JSON schema describes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from clustersim.simulator.reading import lookup
from clustersim.workloads.software_stack import aliases

SCHEMA = Path(__file__).parents[2] / "scenarios" / "scenario.schema.json"

SECTIONS = ("model", "training", "parallelism", "network", "software", "simulation", "cost", "input")
"""Sections whose keys are features; the cluster is that of the base."""

COUNTS = (1, 2, 2, 4, 4, 8)
"""Whole numbers: mostly small powers of two, which divide what they should."""

NAMES = ("name", "description", "source", "sources")
"""Keys of texts that change nothing."""

QUANTITIES = {"size": ("1 MB", "40 MB", "8 GB"), "time": ("10 us", "1 ms"), "bandwidth": ("1 GB/s", "20 GB/s")}
"""Values by dimension; a quantity of another dimension takes a number and one of its units."""


NAMED: Mapping[str, Sequence[Any]] = {
    "schedule": lookup.names("clustersim.workloads.pipelines"),
    "software": [*lookup.names("clustersim.workloads.software"), *aliases(), "auto"],
    "transport": ["nccl", "gloo", "ideal"],
    "algorithms": [{"all_reduce": name} for name in ("ring", "tree", "hierarchical", "halving_doubling", "auto")],
    "rank_order": [["tp", "dp", "pp"], ["tp", "pp", "dp"], ["dp", "tp", "pp"]],
}
"""Values by key that the schema does not list, because the user's own files are values too."""

NAMED_SHARE = 0.8


@dataclass(frozen=True)
class Feature:
    """The key at *path* of a scenario, whose values *schema* describes."""

    path: tuple[str, ...]
    schema: Mapping[str, Any]

    def value(self, random: Random) -> Any:
        """Return a value."""
        if self.path[-1] in NAMED and random.random() < NAMED_SHARE:
            return random.choice(NAMED[self.path[-1]])
        return value(self.schema, random)


@cache
def _whole() -> Mapping[str, Any]:
    made: Mapping[str, Any] = json.loads(SCHEMA.read_text())
    return made


def features() -> list[Feature]:
    """Return the keys of the sections, in order of the schema."""
    return [feature for section in SECTIONS for feature in _features((section,), _whole()["properties"][section])]


def _features(path: tuple[str, ...], schema: Mapping[str, Any]) -> Iterator[Feature]:
    objects = [one for one in _alternatives(schema) if "properties" in one]
    if len(path) > 1 or not objects:
        yield Feature(path, schema)
        return
    seen: set[str] = set()
    for one in objects:
        for key, inner in one["properties"].items():
            if key not in NAMES and key not in seen:
                seen.add(key)
                yield from _features((*path, key), inner)


def _alternatives(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a value of *schema* may be, references followed, without null."""
    if "$ref" in schema:
        return _alternatives(_whole()["$defs"][schema["$ref"].rpartition("/")[2]])
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if inner:
        return [one for each in inner for one in _alternatives(each)]
    return [] if schema.get("type") == "null" else [schema]


def value(schema: Mapping[str, Any], random: Random, depth: int = 0) -> Any:
    """Return a value of *schema*; of an object the required keys and up to two others."""
    options = _alternatives(schema)
    if not options:
        return None
    one = random.choice(options)
    if "const" in one:
        return one["const"]
    if "enum" in one:
        return random.choice(one["enum"])
    return _of_type(one, random, depth)


def _of_type(one: Mapping[str, Any], random: Random, depth: int) -> Any:
    kind = one.get("type")
    if kind == "boolean":
        return random.random() < 0.7
    if kind == "integer":
        return max(random.choice(COUNTS), int(one.get("minimum", 0)))
    if kind == "number":
        low, high = float(one.get("minimum", one.get("exclusiveMinimum", 0.0))), float(one.get("maximum", 1.0))
        return random.choice([low or 0.5, (low + high) / 2, high])
    if kind == "array":
        count = max(int(one.get("minItems", 0)), random.randint(1, 2))
        return [value(one.get("items", {"type": "integer"}), random, depth + 1) for _ in range(count)]
    if kind == "object" or "properties" in one:
        return _object(one, random, depth)
    return _text(one, random)


def _object(one: Mapping[str, Any], random: Random, depth: int) -> dict[str, Any]:
    properties, required = one.get("properties", {}), one.get("required", ())
    others = [key for key in properties if key not in required and key not in NAMES]
    extra = random.sample(others, min(len(others), random.randint(0, 2) if depth < 3 else 0))
    return {key: value(properties[key], random, depth + 1) for key in (*required, *extra)}


def _text(one: Mapping[str, Any], random: Random) -> Any:
    pattern, told = one.get("pattern", ""), one.get("description", "")
    dimension = re.match(r"an? (\w+) with its unit", told)
    if dimension and dimension[1] in QUANTITIES:
        return random.choice(QUANTITIES[dimension[1]])
    units = re.search(r"\(([^()]*)\)\\s\*\$$", pattern)
    if units and "[" not in units[1]:
        return f"{random.choice([1, 10, 100])} {random.choice(units[1].split('|'))}"
    return "100e6" if units else "auto"
