"""The topology in the DOT language of Graphviz: ``dot -Tsvg FILE``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import networkx as nx

from clustersim.scenarios.exchange.export import Export
from clustersim.scenarios.exchange.exporting.graphml import plain_graph
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.units import show


def dot(scenario: Scenario) -> Export:
    """Return the cluster of *scenario*: a box for each server, an edge for both directions of equal links."""
    return Export({f"{scenario.name}.dot": "\n".join(_lines(scenario.name, plain_graph(scenario.cluster()))) + "\n"})


def _lines(name: str, graph: nx.DiGraph[str]) -> Iterator[str]:
    yield f"digraph {_quoted(name)} {{"
    yield "  node [shape=box]; edge [dir=both];"
    servers: dict[Any, list[str]] = {}
    for vertex, attributes in graph.nodes.items():
        servers.setdefault(attributes.get("node"), []).append(vertex)
    for number, (server, vertices) in enumerate(servers.items()):
        inside = server is not None
        yield from [f"  subgraph cluster_{number} {{", f"    label={_quoted(f'node {server}')};"] if inside else []
        yield from (f"  {'  ' if inside else ''}{_vertex(vertex, graph.nodes[vertex])}" for vertex in vertices)
        yield from ["  }"] if inside else []
    for source, target, attributes in graph.edges(data=True):
        back = graph.get_edge_data(target, source)
        if back == attributes and source > target:
            continue
        one_way = "" if back == attributes else ", dir=forward"
        yield f"  {_quoted(source)} -> {_quoted(target)} [label={_quoted(_described(attributes))}{one_way}];"
    yield "}"


def _vertex(name: str, attributes: dict[str, Any]) -> str:
    accelerator = attributes.get("accelerator")
    label = f"{name}\n{accelerator}" if accelerator else name
    return f"{_quoted(name)} [label={_quoted(label)}, kind={_quoted(attributes['kind'])}];"


def _described(link: dict[str, Any]) -> str:
    return f"{link['kind']} {show(link['bandwidth'], 'bandwidth')}"


def _quoted(text: str) -> str:
    # a JSON string with no escapes beyond \" \\ and \n is a quoted DOT string
    return json.dumps(text, ensure_ascii=False)
