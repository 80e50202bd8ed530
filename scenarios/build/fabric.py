"""What the network section asks of the switches between nodes."""

from __future__ import annotations

from scenarios.specification.specification import Specification
from simulator.cluster import Cluster
from simulator.cluster.vertices import NONE
from simulator.document import Document
from simulator.network.transport.networks.tcp import is_tcp

ADDING = "ib_hdr", "ib_ndr", "ib_xdr"
"""Kinds of links whose switches add vectors of any size (streaming aggregation). Those of EDR add small ones only
(Graham et al., ISC 2020)."""


def check_network(specification: Specification, cluster: Cluster, document: Document) -> None:
    """Raise `ScenarioError` if the network section needs NICs or switches that *cluster* does not have."""
    _check_sharp(specification, cluster, document)
    if specification.network.sockets > 1 and not is_tcp(cluster.links.distinct):
        raise document.error(("network", "sockets"), "needs NICs that speak TCP; give cluster.node.nic protocol: tcp")


def _check_sharp(specification: Specification, cluster: Cluster, document: Document) -> None:
    """Raise `ScenarioError` if SHARP is wanted of switches that do not add."""
    if not specification.network.sharp:
        return
    node, topology = cluster.vertices.node, cluster.topology
    outside = (node[topology.source] == NONE) | (node[topology.target] == NONE)
    kinds = {cluster.links[number].kind for number in outside.nonzero()[0].tolist()}
    wrong = sorted(kind for kind in kinds if not kind.startswith(ADDING))
    if wrong or not kinds:
        found = f"nodes are joined by {', '.join(wrong)}" if wrong else "there is one node"
        raise document.error(
            ("network", "sharp"), f"needs InfiniBand switches that add ({', '.join(ADDING)}), but {found}"
        )
