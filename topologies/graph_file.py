"""A user's own cluster: networkx node-link data in a JSON file, with GPUs and links of any structure.

A vertex has ``id`` and ``kind``, inside a server also ``node``. A GPU or host may name its ``accelerator``. An edge has
``kind``, ``bandwidth`` and ``latency``, directly or under ``link``, as text with a unit or as a number of bytes/s and
s. In a graph that is not ``directed`` every link goes both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from pathlib import Path
from typing import Any

import networkx as nx

from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.links import Link
from clustersim.simulator.reading import lookup, units
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.reading.files import UnreadableFile, read_text
from clustersim.simulator.reading.plain_text import written
from clustersim.simulator.reading.quantities import check_size
from clustersim.simulator.reading.validation import Fault
from clustersim.simulator.reading.yaml_and_json import parse_json, shown_at
from clustersim.topologies.catalogue import CPUS, GPUS, device

LARGEST_FILE = 2**30
"""Bytes. A graph of a hundred thousand GPUs has a tenth of it."""

BEYOND = 10**300
"""Whole numbers from here on are taken as infinite: a float holds little more."""


def load(path: Path, gpu: Accelerator | None = None, processor: Accelerator | None = None) -> Cluster:
    """Return the cluster in the file at *path*. *gpu* and *processor* are for devices without an accelerator of their
    own.

    Raises `ScenarioError` with the file and the wrong vertex or edge, and for a GPU that another one cannot reach.
    """
    data = _read(path)
    if data.get("multigraph"):
        raise ScenarioError(f"{path}: is a multigraph; write parallel links as one edge with their bandwidths summed")
    graph: nx.DiGraph[str] = nx.DiGraph()
    defaults = {"gpu": gpu, "host": processor}
    for number, vertex in enumerate(_list(path, data, "nodes")):
        _add_vertex(path, graph, number, vertex, defaults)
    edges = "edges" if "edges" in data else "links"
    for number, edge in enumerate(_list(path, data, edges)):
        _add_edge(path, graph, f"{edges}[{number}]", edge, directed=data.get("directed") is True)
    _check_reach(path, graph)
    return Cluster(graph, None, path.stem)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = parse_json(read_text(path, LARGEST_FILE))
    except UnreadableFile as error:
        raise ScenarioError(f"{error}; networkx node-link data is JSON") from None
    except Fault as fault:
        raise ScenarioError(f"{shown_at(str(path), fault)}: {fault.message}; networkx node-link data is JSON") from None
    if not isinstance(data, dict):
        raise ScenarioError(f"{path}: must be an object with nodes and edges (networkx node-link data)")
    return data


def _list(path: Path, data: Mapping[str, Any], key: str) -> list[Any]:
    value = data.get(key)
    if not isinstance(value, list):
        raise ScenarioError(f"{path}: needs a list of {key} (networkx node-link data)")
    return value


def _add_vertex(
    path: Path, graph: nx.DiGraph[str], number: int, vertex: Any, defaults: Mapping[str, Accelerator | None]
) -> None:
    where = f"{path}: nodes[{number}]"
    if not isinstance(vertex, dict) or "id" not in vertex:
        raise ScenarioError(f'{where}: needs an id, e.g. {{"id": "gpu 0", "kind": "gpu"}}')
    if isinstance(vertex["id"], list | dict) or vertex["id"] is None:
        raise ScenarioError(f"{where}: the id must be text or a number, not {written(vertex['id'])}")
    name = str(vertex["id"])
    if name in graph:
        raise ScenarioError(f'{where}: the id "{name}" appears twice')
    kind = vertex.get("kind")
    if not isinstance(kind, str) or not kind:
        raise ScenarioError(f'{where} ("{name}"): needs a kind: gpu, host, or the kind of switch or NIC')
    attributes: dict[str, Any] = {"kind": kind}
    if isinstance(vertex.get("node"), int | str):
        attributes["node"] = vertex["node"]
    if kind in defaults:
        attributes["accelerator"] = _accelerator(f'{where} ("{name}")', kind, vertex, defaults[kind])
    graph.add_node(name, **attributes)


def _accelerator(where: str, kind: str, vertex: Mapping[str, Any], default: Accelerator | None) -> Accelerator:
    name = vertex.get("accelerator")
    if name is None:
        if default is None:
            raise ScenarioError(f"{where}: has no accelerator; give one here, or one for all beside graph")
        return default
    folder = GPUS if kind == "gpu" else CPUS
    try:
        return device(folder, str(name)).accelerator()
    except lookup.UnknownName as error:
        raise ScenarioError(f"{where}: accelerator: {error}") from None


def _add_edge(path: Path, graph: nx.DiGraph[str], label: str, edge: Any, *, directed: bool) -> None:
    if not isinstance(edge, dict) or "source" not in edge or "target" not in edge:
        raise ScenarioError(f"{path}: {label}: needs a source and a target")
    source, target = str(edge["source"]), str(edge["target"])
    where = f"{path}: {label} ({source} - {target})"
    for end in (source, target):
        if end not in graph:
            near = ", ".join(lookup.nearest(end, list(graph))[:4])
            raise ScenarioError(f'{where}: there is no vertex "{end}"; near it are: {near}')
    if source == target:
        raise ScenarioError(f"{where}: a link must join two vertices")
    link = _link(where, edge.get("link", edge))
    for pair in [(source, target)] if directed else [(source, target), (target, source)]:
        if graph.has_edge(*pair):
            raise ScenarioError(f"{where}: appears twice; write parallel links as one with their bandwidths summed")
        graph.add_edge(*pair, link=link)


def _link(where: str, data: Any) -> Link:
    if not isinstance(data, dict):
        raise ScenarioError(f"{where}: link must be an object with kind, bandwidth and latency")
    kind = data.get("kind", "link")
    if not isinstance(kind, str):
        raise ScenarioError(f"{where}: kind must be text, not {written(kind)}")
    return Link(kind, _quantity(where, data, "bandwidth"), _quantity(where, data, "latency"))


def _quantity(where: str, data: Mapping[str, Any], key: str) -> float:
    dimension = {"bandwidth": "bandwidth", "latency": "time"}[key]
    value = data.get(key)
    if value is None:
        raise ScenarioError(f"{where}: needs a {key}, e.g. {units.EXAMPLES[dimension]}")
    try:
        number = units.parse(value, dimension) if isinstance(value, str) else _plain(value)
    except ValueError as error:
        raise ScenarioError(f"{where}: {key}: {error}") from None
    if not isfinite(number) or number < 0 or (number == 0 and key == "bandwidth"):
        least = "above 0" if key == "bandwidth" else "at least 0"
        raise ScenarioError(f"{where}: {key} must be finite and {least}, not {value}")
    try:
        check_size(number, dimension, value)
    except ValueError as error:
        raise ScenarioError(f"{where}: {key}: {error}") from None
    return number


def _plain(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a quantity, not {written(value)}")
    return float(value) if abs(value) < BEYOND else inf


def _check_reach(path: Path, graph: nx.DiGraph[str]) -> None:
    gpus = [vertex for vertex, data in graph.nodes.items() if data["kind"] == "gpu"]
    if not gpus:
        raise ScenarioError(f'{path}: has no GPU; a GPU is a vertex of kind "gpu"')
    first = gpus[0]
    reached, reaching = nx.descendants(graph, first), nx.ancestors(graph, first)
    for gpu in gpus[1:]:
        if gpu not in reached:
            raise ScenarioError(f"{path}: {gpu} cannot be reached from {first}; every GPU must reach every other")
        if gpu not in reaching:
            raise ScenarioError(f"{path}: {first} cannot be reached from {gpu}; every GPU must reach every other")
