"""The widgets of the page: each is a key of a scenario, described by the JSON schema, with the names of the catalogue
where the schema takes any text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from clustersim.scenarios.specification.specification import Specification, json_schema
from clustersim.simulator.reading.lookup import names
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
