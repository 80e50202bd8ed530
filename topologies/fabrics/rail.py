"""A rail-optimised fabric: NIC i of every node of a pod hangs on leaf i of the pod, spines join the rails."""

from __future__ import annotations

from simulator.document import Count
from topologies.clos import clos, down_ports, ratios
from topologies.network import Network, Way
from topologies.parameters import Ratios


def rail(
    network: Network,
    oversubscription: Ratios = 1.0,
    radix: Count | None = None,
    nodes_per_pod: Count | None = None,
) -> Way:
    """Nodes of a pod meet on equal rails at one switch; all else goes over the spines.

    *nodes_per_pod* (default: as many as a leaf has ports down; 20 with 40-port switches, as NVIDIA's DGX SuperPOD
    reference architecture with A100 has them); *oversubscription* and *radix* as in `fat_tree`.
    """
    radix = radix or network.radix
    up = ratios(oversubscription)
    size = nodes_per_pod or down_ports(radix, up[0])
    nodes = network.nodes
    rails = max(map(len, nodes))
    leaves = []
    for begin in range(0, len(nodes), size):
        pod = nodes[begin : begin + size]
        leaves += [[node[number] for node in pod if number < len(node)] for number in range(rails)]
    pods_together = max(1, radix // 2 // rails)
    return clos(network, [leaf for leaf in leaves if leaf], up, radix, pods_together * rails)
