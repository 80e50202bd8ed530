"""The topology as GraphML, which networkx, Gephi, yEd and Cytoscape read."""

from __future__ import annotations

import networkx as nx

from scenarios.exporting import Export
from scenarios.exporting._graph import plain_graph
from scenarios.scenario import Scenario


def graphml(scenario: Scenario) -> Export:
    """Return the cluster of *scenario*: vertices with kind, server and accelerator, links with kind and bandwidth."""
    text = "\n".join(nx.generate_graphml(plain_graph(scenario.cluster()), named_key_ids=True))
    return Export({f"{scenario.name}.graphml": text + "\n"})
