"""A fat tree: leaves of several nodes each, spines above them, and cores where a spine cannot reach all leaves."""

from __future__ import annotations

from math import ceil

import numpy as np

from simulator.document import Count
from simulator.errors import ClusterError
from topologies.clos import clos, down_ports, even, ratios
from topologies.network import Network, Way
from topologies.parameters import Ratios


def fat_tree(network: Network, oversubscription: Ratios = 1.0, radix: Count | None = None) -> Way:
    """*oversubscription*: bandwidth down over bandwidth up of a leaf, or a list, of leaves and then of spines.

    *radix*: ports of a switch (default: of the NIC's kind). A node's NICs go to one leaf, and nodes are spread evenly
    over at least two leaves: a tree of one would be a switch. Leiserson, "Fat-Trees" (IEEE Trans. Computers, 1985).
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
