"""A fat tree: leaves of several nodes each, spines above them, and cores if a spine cannot reach all leaves."""

from __future__ import annotations

from math import ceil

import numpy as np

from clustersim.simulator.reading.errors import ClusterError
from clustersim.simulator.reading.quantities import Count, Ratios
from clustersim.topologies.fabrics._clos import clos, down_ports, even, ratios
from clustersim.topologies.fabrics._network import FabricRouter, Network


def fat_tree(network: Network, oversubscription: Ratios = 1.0, radix: Count | None = None) -> FabricRouter:
    """*oversubscription*: bandwidth down over bandwidth up of a leaf, or a list for leaves and spines.

    *radix*: ports of a switch (default: by the NIC's kind). All NICs of a node are on one leaf. Nodes are spread evenly
    over at least two leaves, because a tree of one leaf would be a switch. Leiserson, "Fat-Trees" (IEEE Trans.
    Computers, 1985).
    """
    radix = radix or network.radix
    up = ratios(oversubscription)
    starts = network.starts
    nodes, most = len(starts) - 1, int(np.diff(starts).max())
    down = down_ports(radix, up[0])
    if most > down:
        raise ClusterError(
            f"the {most} NICs of a node do not fit the {down} ports that a leaf of {radix} has for them;"
            " give the fabric a larger radix"
        )
    number = min(nodes, max(2, ceil(nodes / (down // most))))
    leaves = [np.arange(starts[begin], starts[end]) for begin, end in even(nodes, number)]
    return clos(network, leaves, up, radix, max(1, radix // 2))
