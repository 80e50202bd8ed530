"""The topology as GraphML, which networkx, Gephi, yEd and Cytoscape read: a graph with plain attributes."""

from __future__ import annotations

import networkx as nx

from clustersim.scenarios.exchange.export import Export
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.hardware.accelerator import Accelerator
from clustersim.simulator.hardware.cluster import Cluster


def plain_graph(cluster: Cluster) -> nx.DiGraph[str]:
    """Return the topology of *cluster*. Every direction of a link is an edge.

    Vertices have *kind*, and *node* (number of the server) and *accelerator* (name) where they have them. Edges have
    the *kind* of the link, its *bandwidth* in bytes/s and its *latency* in s.
    """
    graph: nx.DiGraph[str] = nx.DiGraph()
    for name, attributes in cluster.graph.nodes.items():
        accelerator = attributes.get("accelerator")
        plain = {key: value for key, value in attributes.items() if key in ("kind", "node")}
        graph.add_node(name, **plain, **({"accelerator": _named(accelerator)} if accelerator is not None else {}))
    for source, target, attributes in cluster.graph.edges(data=True):
        link = attributes["link"]
        graph.add_edge(source, target, kind=link.kind, bandwidth=float(link.bandwidth), latency=float(link.latency))
    return graph


def _named(accelerator: Accelerator) -> str:
    return accelerator.name


def graphml(scenario: Scenario) -> Export:
    """Return the cluster of *scenario*: vertices with kind, server and accelerator, links with kind and bandwidth."""
    text = "\n".join(nx.generate_graphml(plain_graph(scenario.cluster()), named_key_ids=True))
    return Export({f"{scenario.name}.graphml": text + "\n"})
