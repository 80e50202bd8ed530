"""The widgets of the page: each is a key of a scenario, described by the JSON schema, with the names of the catalogue
where the schema takes any text; the changes that they make, and the place of a fault among them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from typing import Any

from clustersim.scenarios.scenario import Scenario
from clustersim.scenarios.specification.loading import split
from clustersim.scenarios.specification.specification import Specification, json_schema
from clustersim.simulator.reading.dataclass import dataclass
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.lookup import names
from clustersim.simulator.reading.yaml_and_json import read_value
from clustersim.workloads.default_software_stack import AUTO

GROUPS: Mapping[str, Sequence[str]] = {
    "Model": ("model.preset", "model.seq_length"),
    "Cluster": ("cluster.preset", "cluster.nodes", "cluster.node.accelerator", "cluster.gpus"),
    "Batch and memory": (
        "training.global_batch_size",
        "training.micro_batch_size",
        "training.precision",
        "training.recompute",
    ),
    "Parallelism": (
        "parallelism.tp",
        "parallelism.sequence_parallel",
        "parallelism.pp",
        "parallelism.schedule",
        "parallelism.virtual_stages",
        "parallelism.cp",
        "parallelism.ep",
        "parallelism.dp",
        "parallelism.data.method",
        "parallelism.data.stage",
        "parallelism.data.servers",
        "parallelism.data.overlap",
    ),
    "Collective": ("collective.kind", "collective.size"),
    "Software and network": ("software", "network.algorithms.all_reduce"),
}
"""The keys that have a widget."""

CATALOGUE = {
    "model.preset": "clustersim.workloads.models",
    "cluster.preset": "clustersim.topologies.clusters",
    "cluster.node.accelerator": "clustersim.topologies.gpus",
    "parallelism.schedule": "clustersim.workloads.pipelines",
    "network.algorithms.all_reduce": "clustersim.simulator.network.collectives",
    "software": "clustersim.workloads.software",
}
"""The package whose files are the choices of a key."""

WHOLE = {"model.preset": "model", "cluster.preset": "cluster", "parallelism.data.method": "parallelism.data"}
"""Keys that decide which others their section has: a change of one begins the section anew."""

KEPT = ("nodes",)
"""Keys that a section keeps when it begins anew."""


@dataclass(frozen=True)
class Widget:
    """An input for *key*: a menu of *choices*, or, if it is *free*, a field for any value that suggests them.

    *default*: the value of the schema if none is given; empty if it has none.
    """

    key: str
    group: str
    description: str
    choices: tuple[str, ...]
    free: bool
    default: str


@cache
def widgets() -> tuple[Widget, ...]:
    """Return all widgets in order."""
    schema = json_schema()
    return tuple(_widget(schema, group, key) for group, keys in GROUPS.items() for key in keys)


def _widget(schema: dict[str, Any], group: str, key: str) -> Widget:
    found = list(_at(schema, schema, key.split(".")))
    above = list(_at(schema, schema, key.split(".")[:-1]))
    described = next((text for node in [*found, *above] if (text := node.get("description"))), "")
    ends = [end for node in found for end in _alternatives(schema, node)]
    choices = [choice for end in ends for choice in _choices(end)]
    if key in CATALOGUE:
        choices = [*([AUTO] if key == "software" else []), *names(CATALOGUE[key])]
    free = not choices or any(end.get("type") == "integer" and "enum" not in end for end in ends)
    default = next((str(node["default"]) for node in found if isinstance(node.get("default"), str | int)), "")
    return Widget(key, group, described, tuple(dict.fromkeys(choices)), free, default.replace("False", "false"))


def _alternatives(schema: dict[str, Any], node: Any) -> Iterator[dict[str, Any]]:
    """Yield the members of *node*, references followed; it is one itself if it is no union."""
    if "$ref" in node:
        yield from _alternatives(schema, schema["$defs"][node["$ref"].rpartition("/")[2]])
        return
    several = [*node.get("anyOf", ()), *node.get("oneOf", ())]
    for one in several:
        yield from _alternatives(schema, one)
    if not several:
        yield node


def _at(schema: dict[str, Any], node: Any, path: list[str]) -> Iterator[dict[str, Any]]:
    """Yield what the schema says below *node* at *path*, in each member of a union that has it."""
    if not path:
        yield node
        return
    for one in _alternatives(schema, node):
        below = one.get("properties", {}).get(path[0], one.get("additionalProperties"))
        if isinstance(below, dict):
            yield from _at(schema, below, path[1:])
        if isinstance(one.get("items"), dict):
            yield from _at(schema, one["items"], path)


def _choices(end: Mapping[str, Any]) -> Iterator[str]:
    if end.get("type") == "boolean":
        yield from ("true", "false")
    for value in (*end.get("enum", ()), *([end["const"]] if "const" in end else [])):
        yield str(value)


def not_applying(specification: Specification) -> set[str]:
    """Return the keys that have no meaning in a scenario of *specification*, whose widgets are hidden."""
    parallelism, model = specification.parallelism, specification.model
    hidden = {"network.algorithms.all_reduce"} if specification.collective is None else set()
    if specification.collective is None:
        hidden |= _of_group("Collective")
    else:
        hidden |= {key for group in ("Model", "Batch and memory", "Parallelism") for key in _of_group(group)}
        hidden.add("software")
    hidden |= {f"cluster.{key}" for key in ("nodes", "gpus") if not hasattr(specification.cluster, key)}
    if not hasattr(specification.cluster, "node"):
        hidden.add("cluster.node.accelerator")
    if getattr(model, "kind", "") != "transformer":
        hidden |= {"model.seq_length", *(f"parallelism.{key}" for key in ("tp", "sequence_parallel", "cp", "ep"))}
    if getattr(model, "num_experts", None) is None:
        hidden.add("parallelism.ep")
    if parallelism.pp == 1:
        hidden |= {"parallelism.schedule", "parallelism.virtual_stages"}
    if parallelism.tp == 1:
        hidden.add("parallelism.sequence_parallel")
    data = type(parallelism.data).model_fields
    return hidden | {f"parallelism.data.{key}" for key in ("stage", "servers", "overlap") if key not in data}


def _of_group(group: str) -> set[str]:
    return set(GROUPS[group])


def changed(data: Mapping[str, Any], key: str, text: str) -> dict[str, Any]:
    """Return *data* with the value that *text* is in YAML at *key*; an empty text removes the key.

    Raises `ScenarioError` for a key or a text that cannot be read.
    """
    try:
        value = read_value(text) if text.strip() else None
    except ValueError as error:
        raise ScenarioError(f"{key}: {error}") from None
    made = deepcopy(dict(data))
    path = split(key)
    if key in WHOLE:
        _begin_anew(made, WHOLE[key], value)
    _assign(made, path, value)
    held = _get(made, ("parallelism", "data"))
    if isinstance(held, dict):
        held.setdefault("method", "ddp")
    return made


def _begin_anew(data: dict[str, Any], section: str, value: Any) -> None:
    """Remove what belongs to the former choice of *section* if *value* is another one."""
    path = split(section)
    held = _get(data, path)
    if isinstance(held, dict) and value not in (held.get("preset"), held.get("method")):
        _assign(data, path, {key: held[key] for key in KEPT if key in held} or None)


def _get(data: Any, path: Iterable[Any]) -> Any:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _assign(data: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    """Set *value* at *path*; None removes it, and sections that are empty then."""
    key, *rest = path
    if rest:
        below = data.get(key)
        if not isinstance(below, dict):
            # a name alone is a preset
            below = {"preset": below} if below is not None else {}
        _assign(below, tuple(rest), value)
        value = below or None
    if value is None:
        data.pop(key, None)
    else:
        data[key] = value


def value_text(data: Mapping[str, Any], key: str) -> str:
    """Return the value at *key* as the text of its widget; empty if it is not given."""
    value = _get(data, split(key))
    if isinstance(value, dict) and key == "software":
        value = value.get("preset")
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def faults(error: Exception, keys: Iterable[str]) -> list[dict[str, str]]:
    """Return the messages of *error*, each with the widget of *keys* beside which it belongs; "" is the page."""
    known = list(keys)
    found: list[dict[str, str]] = []
    for line in str(error).splitlines():
        named = re.match(r"([a-z_]\w*(?:\.\w+)*)[:=]", line)
        place = _nearest(named[1], known) if named else ""
        if named or not found:
            found.append({"key": place, "text": line})
        else:
            found[-1]["text"] += f"\n{line.strip()}"
    return found


def _nearest(key: str, known: list[str]) -> str:
    """Return the widget of *key*, of the key that holds it, or the first below it; "" if there is none."""
    if key in known:
        return key
    holding = [one for one in known if key.startswith(f"{one}.")]
    below = [one for one in known if one.startswith(f"{key}.")]
    return next(iter([*holding, *below]), "")


NOT_SHOWN = ("variants", "expect", "table", "jobs", "plan", "campaign")
"""Sections of a scenario that the page leaves out: it runs one step of one job."""


def plain(scenario: Scenario) -> dict[str, Any]:
    """Return the data of *scenario* as the page changes it; of several variants the first.

    Raises `ScenarioError` if it has several jobs.
    """
    scenario.check_one_job()
    first = next(iter(scenario.variants.values()), scenario)
    return {key: value for key, value in first.source.data.items() if key not in NOT_SHOWN}
