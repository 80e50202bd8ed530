"""A rail-optimised fabric: NIC i of every node of a pod is on leaf i of the pod; spines join the rails."""

from __future__ import annotations

import numpy as np

from clustersim.simulator.reading.quantities import Count, Ratios
from clustersim.topologies.fabrics._clos import clos, down_ports, ratios
from clustersim.topologies.fabrics._network import FabricRouter, Network


def rail(
    network: Network,
    oversubscription: Ratios = 1.0,
    radix: Count | None = None,
    nodes_per_pod: Count | None = None,
) -> FabricRouter:
    """Nodes of a pod communicate on equal rails through one switch, otherwise over the spines.

    *nodes_per_pod*: default the ports down of a leaf (20 with 40-port switches, as in NVIDIA's DGX SuperPOD reference
    architecture with A100). *oversubscription* and *radix*: as in `fat_tree`.
    """
    radix = radix or network.radix
    up = ratios(oversubscription)
    size = nodes_per_pod or down_ports(radix, up[0])
    starts = network.starts
    rails = int(np.diff(starts).max())
    leaves = []
    for begin in range(0, len(starts) - 1, size):
        first, behind = starts[begin : begin + size + 1][:-1], starts[begin : begin + size + 1][1:]
        ports = first + np.arange(rails)[:, None]
        there = ports < behind
        leaves += list(ports) if there.all() else [own[some] for own, some in zip(ports, there, strict=True)]
    pods_together = max(1, radix // 2 // rails)
    return clos(network, [leaf for leaf in leaves if len(leaf)], up, radix, pods_together * rails)
