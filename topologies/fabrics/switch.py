"""One switch for all NICs: the NICs are the only bottleneck."""

from __future__ import annotations

import numpy as np

from clustersim.topologies.fabrics._network import FabricRouter, Network, Tree


def switch(network: Network) -> FabricRouter:
    """Every port on one non-blocking switch."""
    centre = network.switch("switch")
    network.plug(np.arange(len(network.ports)), centre)
    return Tree([centre] * len(network.ports), {})
